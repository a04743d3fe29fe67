// Batches as a journal has them (`reference.stored`), and columns made of them.

#pragma once

#include <string>
#include <unordered_map>

#include "growing.hpp"
#include "output.hpp"
#include "packets.hpp"
#include "property_columns.hpp"

namespace txbroker {

// As in `reference.stored.PROBLEMS`.
enum Problem { FINE, SHORT, NOBODY, INDEX, NAME, PACKET, TOPIC, REST, PLACES, NUMBER, ORDER, FULL };

constexpr size_t MOST_STORED = 65'535;

inline size_t little_at(const Byte* at) { return at[0] | at[1] << 8; }

// The places at which the parts of a body begin: names, client ids, the index of an edge for each
// of these (0: there is one edge), the index of a publisher for each message (likewise), packets.
struct Opened {
    size_t names = 0, clients = 0, edge_of = 0, places = 0, packets = 0, edges = 0, publishers = 0;
};

inline bool pass_texts(const Byte* body, size_t size, size_t& at, size_t count) {
    while (count--) {
        if (at + 2 > size) return false;
        at += 2 + little_at(body + at);
        if (at > size) return false;
    }
    return true;
}

// Indexes below `limit`; FINE or what is wrong.
inline Problem pass_indexes(const Byte* body, size_t size, size_t& at, size_t count, size_t limit) {
    size_t end = at + 2 * count, highest = 0;
    if (end > size) return SHORT;
    for (; at < end; at += 2) highest = std::max(highest, little_at(body + at));
    return highest < limit ? FINE : INDEX;
}

inline Problem open_body(const Byte* body, size_t size, size_t count, Opened& opened) {
    if (!count || count > MOST_STORED) return NUMBER;
    if (size < 7) return SHORT;
    size_t at = 7;
    opened.edges = little_at(body + 3);
    opened.publishers = little_at(body + 5);
    if (!opened.edges || !opened.publishers) return NOBODY;
    for (size_t marks = little_at(body + 1); marks--; at += 24)
        if (!pass_texts(body, size, at, 2)) return SHORT;
    opened.names = at;
    if (!pass_texts(body, size, at, opened.edges)) return SHORT;
    opened.clients = at;
    if (!pass_texts(body, size, at, opened.publishers)) return SHORT;
    if (opened.edges > 1) {
        opened.edge_of = at;
        if (Problem found = pass_indexes(body, size, at, opened.publishers, opened.edges))
            return found;
    }
    if (opened.publishers > 1) {
        opened.places = at;
        if (Problem found = pass_indexes(body, size, at, count, opened.publishers)) return found;
    }
    opened.packets = at;
    return FINE;
}

struct Packet {
    size_t start, topic, topic_end, properties, payload, end;
    Byte first;
};

// The PUBLISH that begins at `at`.
inline Problem packet_at(const Byte* body, size_t size, size_t at, Packet& one) {
    one.start = at;
    if (at + 1 >= size) return SHORT;
    one.first = body[at++];
    size_t length = 0;
    for (int shift = 0;; shift += 7) {
        if (shift > 21) return PACKET;
        if (at >= size) return SHORT;
        length |= size_t(body[at] & 127) << shift;
        if (body[at++] < 128) break;
    }
    Byte qos = one.first >> 1 & 3;
    if (!is_stored_publish(one.first) || qos == 3 || length < 2) return PACKET;
    one.end = at + length;
    if (one.end > size) return SHORT;
    one.topic = at + 2;
    one.topic_end = one.topic + (size_t(body[at]) << 8 | body[at + 1]);
    one.properties = one.payload = one.topic_end + (qos ? 2 : 0);
    if (one.payload > one.end) return PACKET;
    if (has_list(Form::STORED, one.first)) {
        if (!cut_list(body, one.end, one.payload, one.properties)) return PACKET;
        Traits traits;
        if (!are_plain(body + one.properties, one.payload - one.properties, traits)) return PACKET;
    }
    return FINE;
}

// The beginning of a body, and all its packets.
inline Problem read_packets(const Byte* body, size_t size, size_t count, Opened& opened,
                            std::vector<Packet>& packets) {
    if (Problem found = open_body(body, size, count, opened)) return found;
    packets.reserve(count);
    const Byte* last = nullptr;
    size_t at = opened.packets, last_size = 0;
    for (; count; --count) {
        Packet one;
        if (Problem found = packet_at(body, size, at, one)) return found;
        size_t topic_size = one.topic_end - one.topic;
        const Byte* topic = body + one.topic;
        if (!topic_size || topic_size != last_size || !are_same(topic, last, topic_size)) {
            if (!is_topic_name(topic, topic_size)) return TOPIC;
            last = topic;
            last_size = topic_size;
        }
        packets.push_back(one);
        at = one.end;
    }
    return at == size ? FINE : REST;
}

// Places of so many records, in ascending order.
inline Problem check_places(const Byte* places, size_t size, size_t count) {
    if (!size) return FINE;
    if (size != 2 * count) return PLACES;
    for (size_t index = 1; index < count; ++index)
        if (little_at(places + 2 * index - 2) >= little_at(places + 2 * index)) return PLACES;
    return FINE;
}

struct Publisher {
    std::string client, node;
};

// The numbers of publishers.
class Publishers {
    struct Hash {
        size_t operator()(const std::string& key) const {
            return hash_of(reinterpret_cast<const Byte*>(key.data()), key.size());
        }
    };
    std::unordered_map<std::string, int32_t, Hash> numbers_;
    std::string last_;  // the names of the batch before, whose numbers are in `own`
    size_t last_edges_ = 0, last_publishers_ = 0;

public:
    std::vector<Publisher> pairs;
    std::vector<int32_t> own;

    // Fill `own` for a batch.
    Problem find(const Byte* body, const Opened& opened) {
        size_t size = (opened.places ? opened.places : opened.packets) - opened.names;
        const char* names = reinterpret_cast<const char*>(body) + opened.names;
        bool is_same = last_edges_ == opened.edges && last_publishers_ == opened.publishers;
        if (is_same && last_.size() == size && !std::memcmp(last_.data(), names, size)) return FINE;
        std::vector<std::string> edges;
        size_t at = opened.names;
        for (size_t index = 0; index < opened.edges; ++index) edges.push_back(text(body, at));
        last_edges_ = 0;
        own.clear();
        std::vector<Publisher> found;
        for (size_t index = 0; index < opened.publishers; ++index) {
            size_t edge = opened.edge_of ? little_at(body + opened.edge_of + 2 * index) : 0;
            found.push_back({text(body, at), edges[edge]});
            if (!is_text(found.back().client) || !is_text(edges[edge])) return NAME;
        }
        for (Publisher& pair : found) {
            size_t client = pair.client.size();
            std::string key{char(client), char(client >> 8)};
            key += pair.client;
            key += pair.node;
            auto [place, is_new] = numbers_.try_emplace(key, int32_t(pairs.size()));
            if (is_new) pairs.push_back(std::move(pair));
            own.push_back(place->second);
        }
        last_.assign(names, size);
        last_edges_ = opened.edges;
        last_publishers_ = opened.publishers;
        return FINE;
    }

    void clear() {
        numbers_.clear();
        pairs.clear();
        own.clear();
        last_edges_ = 0;
    }

private:
    static std::string text(const Byte* body, size_t& at) {
        size_t size = little_at(body + at);
        const char* begin = reinterpret_cast<const char*>(body) + at + 2;
        at += 2 + size;
        return {begin, size};
    }

    static bool is_text(const std::string& one) {
        return is_utf8(reinterpret_cast<const Byte*>(one.data()), one.size());
    }
};

// `reference.columns.Columns`.
class ColumnData {
    uint64_t next_ = 0, end_ = 0;
    bool has_payload_ = true;
    size_t last_topic_ = 0, last_size_ = 0;  // the topic that came last
    size_t lists_size_ = 0;                  // of all property lists

    // The properties of a batch's record.
    struct Listed {
        size_t index, start, size;
    };
    std::vector<Listed> listed_;

public:
    static constexpr size_t LARGEST = 0x7FFFFFFF;
    size_t count = 0;
    Growing topic_ends, topics, payload_ends, payloads, qos, retain, offset, created, publisher;
    Publishers publishers;
    PropertyData properties;

    void set(uint64_t start, uint64_t end, bool has_payload) {
        next_ = start;
        end_ = end;
        has_payload_ = has_payload;
        clear();
    }

    // After everything was taken.
    void clear() {
        count = last_size_ = lists_size_ = 0;
        for (Growing* ends : {&topic_ends, &payload_ends}) {
            *ends->reserve_numbers<int32_t>(1) = 0;
            ends->used = sizeof(int32_t);
        }
        publishers.clear();
        properties.clear();
    }

    Problem add(uint64_t first, int64_t time, const Byte* body, size_t size, size_t records,
                const Byte* places, size_t places_size) {
        try {
            return add_some(first, time, body, size, records, places, places_size);
        } catch (...) {  // no memory; what was there may be gone
            for (Growing* column : {&topics, &payloads, &qos, &retain, &offset, &created, &publisher})
                column->used = 0;
            clear();
            throw;
        }
    }

private:
    Problem add_some(uint64_t first, int64_t time, const Byte* body, size_t size, size_t records,
                     const Byte* places, size_t places_size) {
        Opened opened;
        if (Problem found = open_body(body, size, records, opened)) return found;
        if (Problem found = check_places(places, places_size, records)) return found;
        uint64_t lowest = places_size ? little_at(places) : 0;
        uint64_t highest = places_size ? little_at(places + 2 * records - 2) : records - 1;
        if (first > INT64_MAX || first + lowest < next_ || first + highest >= end_) return ORDER;
        size_t topics_before = topics.used, payloads_before = payloads.used;
        size_t retain_before = retain.used;
        Problem found = add_packets(body, size, opened.packets, records);
        if (found == FINE) found = publishers.find(body, opened);
        if (found != FINE) {
            topics.used = topics_before;
            payloads.used = payloads_before;
            last_size_ = 0;
            retain.used = retain_before;
            clear_bits();
            return found;
        }
        for (const Listed& one : listed_) {
            properties.add(count + one.index, body + one.start, one.size);
            lists_size_ += one.size;
        }
        add_rest(first, time, body, records, opened, places_size ? places : nullptr);
        next_ = first + highest + 1;
        return FINE;
    }

    // Topics, payloads and flags; of what has a fixed size only what is behind `count`.
    Problem add_packets(const Byte* body, size_t size, size_t at, size_t records) {
        char* topic_at = topics.reserve(size);
        char* payload_at = payloads.reserve(has_payload_ ? size : 0);
        int32_t* topic_end = topic_ends.reserve_numbers<int32_t>(records);
        int32_t* payload_end = payload_ends.reserve_numbers<int32_t>(records);
        char* level = qos.reserve(records);
        size_t bits = (count + records + 7) / 8;
        std::memset(retain.reserve(bits - retain.used), 0, bits - retain.used);
        retain.used = bits;
        char* const flags = retain.begin();
        listed_.clear();
        // Only when all is looked at it is known to fit: pointers are enough for that.
        const size_t most = std::max({topics.used, payloads.used, lists_size_});
        const bool is_tight = most + size > LARGEST;
        if (is_tight) {
            if (Problem found = measure(body, size, at, records)) return found;
        }
        Packet one;
        for (size_t index = 0; index < records; ++index) {
            if (Problem found = packet_at(body, size, at, one)) return found;
            size_t topic_size = one.topic_end - one.topic;
            const Byte* topic = body + one.topic;
            if (topic_size != last_size_ || !topic_size ||
                !are_same(topic, reinterpret_cast<Byte*>(topics.begin()) + last_topic_, topic_size))
                if (!is_topic_name(topic, topic_size)) return TOPIC;
            std::memcpy(topic_at, topic, topic_size);
            last_topic_ = topics.used;
            last_size_ = topic_size;
            topic_at += topic_size;
            topics.used += topic_size;
            *topic_end++ = int32_t(topics.used);
            if (has_payload_) {
                size_t payload_size = one.end - one.payload;
                std::memcpy(payload_at, body + one.payload, payload_size);
                payload_at += payload_size;
                payloads.used += payload_size;
            }
            if (one.properties < one.payload)
                listed_.push_back({index, one.properties, one.payload - one.properties});
            *payload_end++ = int32_t(payloads.used);
            *level++ = one.first >> 1 & 3;
            if (one.first & 1) flags[(count + index) / 8] |= char(1 << (count + index) % 8);
            at = one.end;
        }
        return at == size ? FINE : REST;
    }

    // Whether there is room; problems of the packets come first.
    Problem measure(const Byte* body, size_t size, size_t at, size_t records) {
        size_t of_topics = topics.used, of_payloads = payloads.used, of_lists = lists_size_;
        Packet one;
        while (records--) {
            if (Problem found = packet_at(body, size, at, one)) return found;
            if (!is_topic_name(body + one.topic, one.topic_end - one.topic)) return TOPIC;
            of_topics += one.topic_end - one.topic;
            if (has_payload_) of_payloads += one.end - one.payload;
            of_lists += one.payload - one.properties;
            at = one.end;
        }
        if (at != size) return REST;
        return std::max({of_topics, of_payloads, of_lists}) > LARGEST ? FULL : FINE;
    }

    void add_rest(uint64_t first, int64_t time, const Byte* body, size_t records,
                  const Opened& opened, const Byte* places) {
        int64_t* offsets = offset.reserve_numbers<int64_t>(records);
        int64_t* times = created.reserve_numbers<int64_t>(records);
        int32_t* numbers = publisher.reserve_numbers<int32_t>(records);
        const std::vector<int32_t>& own = publishers.own;
        for (size_t index = 0; index < records; ++index) {
            offsets[index] = int64_t(first + (places ? little_at(places + 2 * index) : index));
            times[index] = time;
            numbers[index] = own[opened.places ? little_at(body + opened.places + 2 * index) : 0];
        }
        topic_ends.used += records * sizeof(int32_t);
        payload_ends.used += records * sizeof(int32_t);
        qos.used += records;
        offset.used += records * sizeof(int64_t);
        created.used += records * sizeof(int64_t);
        publisher.used += records * sizeof(int32_t);
        count += records;
    }

    // The bits behind the last record in its byte.
    void clear_bits() {
        if (count % 8) retain.begin()[count / 8] &= char((1 << count % 8) - 1);
    }
};

}  // namespace txbroker
