// `reference.records.StoredRecords`: records as they are stored, found by filter.

#pragma once

#include "stored.hpp"
#include "tables.hpp"

namespace txbroker {

struct Text {
    const Byte* at;
    size_t size;
};

// `txbroker.model.topics.matches`, of a valid filter.
inline bool is_match(Text filter, Text topic) {
    const Byte *want = filter.at, *want_end = want + filter.size;
    const Byte *at = topic.at, *end = at + topic.size;
    if (topic.size && *at == '$' && filter.size && (*want == '+' || *want == '#')) return false;
    for (;; ++want, ++at) {
        const Byte* want_stop = level_end(want, want_end);
        size_t size = want_stop - want;
        if (size == 1 && *want == '#') return true;
        const Byte* stop = level_end(at, end);
        bool is_plus = size == 1 && *want == '+';
        if (!is_plus && (size != size_t(stop - at) || !are_same(want, at, size))) return false;
        want = want_stop;
        at = stop;
        if (want == want_end || at == end) break;
    }
    if (at != end) return false;
    // The # also stands for its parent level.
    return want == want_end || (want_end - want == 2 && want[1] == '#');
}

class RecordData {
    struct Topic {
        size_t start, size, length;  // in the packets; in characters
    };
    struct Record {
        int64_t offset;
        size_t start;
        uint32_t topic;
        int32_t publisher;
    };

    uint64_t after_ = 0, end_ = 0, most_ = 0, room_ = 0;
    Byte least_ = 0;
    bool is_begun_ = false;  // something was looked at
    std::string packets_;
    std::vector<Record> records_;
    std::vector<Topic> topics_;
    Table numbers_;  // of topics
    uint32_t last_ = NONE;  // the topic that came last
    std::vector<Byte> known_;  // of each topic, while something is found

    enum Known : Byte { UNKNOWN, WANTED, UNWANTED };

    const Byte* data() const { return reinterpret_cast<const Byte*>(packets_.data()); }
    bool is_topic(uint32_t number, Text text) const {
        const Topic& one = topics_[number];
        return one.size == text.size && are_same(data() + one.start, text.at, text.size);
    }
    uint32_t find_topic(Text text, uint64_t hash) const {
        return numbers_.find(hash, [&](uint32_t number) { return is_topic(number, text); });
    }

public:
    uint64_t through = 0;
    Publishers publishers;

    void set(uint64_t after, uint64_t end, uint64_t most, uint64_t room, Byte least) {
        after_ = through = after;
        end_ = std::max(after, end);
        most_ = most;
        room_ = room;
        least_ = least;
    }

    size_t count() const { return records_.size(); }
    size_t topics() const { return topics_.size(); }
    const std::string& packets() const { return packets_; }
    int64_t offset(size_t place) const { return records_[place].offset; }
    uint32_t topic(size_t place) const { return records_[place].topic; }
    size_t length(size_t place) const { return topics_[records_[place].topic].length; }
    int32_t publisher(size_t place) const { return records_[place].publisher; }

    size_t size() const {
        return packets_.capacity() + records_.capacity() * sizeof(Record) + numbers_.bytes() +
               topics_.size() * (sizeof(Topic) + 120);  // also as Python has them
    }

    Packet packet(size_t place) const {
        Packet one;
        packet_at(data(), packets_.size(), records_[place].start, one);
        return one;
    }

    bool has_room(size_t count, size_t size) const { return count <= most_ && size <= room_; }

    // `more`: whether another one like it is of use, too.
    Problem add(uint64_t first, const Byte* body, size_t size, size_t count, const Byte* places,
                size_t places_size, bool& more) {
        Opened opened;
        more = false;
        if (Problem found = open_body(body, size, count, opened)) return found;
        if (Problem found = check_places(places, places_size, count)) return found;
        uint64_t lowest = places_size ? little_at(places) : 0;
        uint64_t highest = places_size ? little_at(places + 2 * count - 2) : count - 1;
        if (first > INT64_MAX || first + highest > INT64_MAX) return ORDER;
        if (Problem found = publishers.find(body, opened)) return found;
        if (first + lowest) through = std::max(through, std::min(first + lowest - 1, end_));
        bool is_whole = first + highest <= end_ && has_room(count, size);
        if (is_begun_ && first <= end_ && !is_whole) return FINE;
        size_t at = opened.packets;
        for (size_t index = 0; index < count; ++index) {
            Packet one;
            if (Problem found = packet_at(body, size, at, one)) return found;
            uint64_t offset = first + (places_size ? little_at(places + 2 * index) : index);
            at = one.end;
            if (offset > end_) {
                through = end_;
                return FINE;
            }
            if (offset <= after_) continue;
            if (offset <= through) return ORDER;
            size_t who = opened.places ? little_at(body + opened.places + 2 * index) : 0;
            if ((one.first >> 1 & 3) >= least_)
                if (Problem found = take(offset, body, one, publishers.own[who])) return found;
            through = offset;
            is_begun_ = true;
            most_ -= std::min<uint64_t>(1, most_);
            room_ -= std::min<uint64_t>(one.end - one.start, room_);
            if (!most_ || !room_) return FINE;
        }
        if (at != size) return REST;
        more = has_room(count, size);
        return FINE;
    }

    size_t place_above(uint64_t offset) const {
        return std::partition_point(records_.begin(), records_.end(), [&](const Record& one) {
            return uint64_t(one.offset) <= offset;
        }) - records_.begin();
    }

    void find(const std::vector<Text>& filters, uint64_t after, size_t most,
              std::vector<size_t>& found) {
        std::vector<Text> wild;
        bool is_any = false;
        known_.assign(topics_.size(), UNKNOWN);
        for (Text filter : filters) {
            if (std::any_of(filter.at, filter.at + filter.size,
                            [](Byte one) { return one == '+' || one == '#'; })) {
                wild.push_back(filter);
                continue;
            }
            uint32_t number = find_topic(filter, hash_of(filter.at, filter.size));
            if (number == NONE) continue;
            known_[number] = WANTED;
            is_any = true;
        }
        if (wild.empty() && !is_any) return;
        for (size_t place = place_above(after); place < records_.size(); ++place) {
            Byte& known = known_[records_[place].topic];
            if (known == UNKNOWN) known = is_wanted(records_[place].topic, wild);
            if (known == UNWANTED) continue;
            if (found.size() >= most) return;
            found.push_back(place);
        }
    }

private:
    Known is_wanted(uint32_t number, const std::vector<Text>& filters) const {
        Text topic{data() + topics_[number].start, topics_[number].size};
        for (Text filter : filters)
            if (is_match(filter, topic)) return WANTED;
        return UNWANTED;
    }

    Problem take(uint64_t offset, const Byte* body, const Packet& one, int32_t publisher) {
        Text topic{body + one.topic, one.topic_end - one.topic};
        size_t start = packets_.size();
        if (last_ == NONE || !is_topic(last_, topic)) {
            uint64_t hash = hash_of(topic.at, topic.size);
            last_ = find_topic(topic, hash);
            if (last_ == NONE) {
                if (!is_topic_name(topic.at, topic.size)) return TOPIC;
                size_t length = std::count_if(topic.at, topic.at + topic.size,
                                              [](Byte one) { return (one & 0xC0) != 0x80; });
                last_ = uint32_t(topics_.size());
                topics_.push_back({start + (one.topic - one.start), topic.size, length});
                numbers_.insert(hash, last_);
            }
        }
        packets_.append(reinterpret_cast<const char*>(body) + one.start, one.end - one.start);
        records_.push_back({int64_t(offset), start, last_, publisher});
        return FINE;
    }
};

}  // namespace txbroker
