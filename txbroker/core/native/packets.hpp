// Packets: how bytes are cut into them, what a plain PUBLISH is, what is gathered of them.

#pragma once

#include <string>

#include "bailiwick.hpp"
#include "property_list.hpp"

namespace txbroker {

constexpr Byte PUBLISH = 0x30, DUP = 0x08, RETAIN = 0x01;

// -- lengths

// How many bytes a remaining length takes (section 2.2.3).
inline size_t length_size(size_t remaining) {
    return 1 + (remaining > 127) + (remaining > 16'383) + (remaining > 2'097'151);
}

// A remaining length as it stands on the wire (section 2.2.3); where it ends.
inline char* put_length(char* at, size_t remaining) {
    for (; remaining > 127; remaining >>= 7) *at++ = static_cast<char>(remaining | 128);
    *at++ = static_cast<char>(remaining);
    return at;
}

inline void put_two(char* at, size_t number) {
    at[0] = static_cast<char>(number >> 8);
    at[1] = static_cast<char>(number);
}

// How many publishes a batch has, as its header ends (`reference.link.COUNT`).
constexpr size_t COUNT = 4;

inline void put_count(char* at, uint64_t count) {
    for (size_t index = 0; index < COUNT; ++index) at[index] = static_cast<char>(count >> 8 * index);
}

inline uint32_t count_at(const char* at) {
    uint32_t count = 0;
    for (size_t index = 0; index < COUNT; ++index)
        count |= uint32_t(static_cast<Byte>(at[index])) << 8 * index;
    return count;
}

// -- frames

enum class Cut { WHOLE, PART, TOO_LARGE, MALFORMED };

// The places where the body of a packet begins and where the packet ends. `is_padded`: its length
// takes more bytes than it has to.
struct Frame {
    size_t body = 0, stop = 0;
    bool is_padded = false;
};

// Cut one packet off bytes that begin with it. PART: `stop` is how many bytes are needed to tell
// more. TOO_LARGE as soon as its length is known (`mqtt.framing.Framer`).
inline Cut cut(const Byte* at, size_t size, size_t max_packet, Frame& frame) {
    frame.stop = 2;
    if (size < 2) return Cut::PART;
    size_t length = at[1] & 0x7F;
    frame.body = 2;
    for (Byte last = at[1]; last > 127; ++frame.body) {
        if (frame.body == 5) return Cut::MALFORMED;
        frame.stop = size + 1;
        if (frame.body == size) return Cut::PART;
        last = at[frame.body];
        length |= size_t(last & 0x7F) << 7 * (frame.body - 1);
    }
    frame.is_padded = frame.body > 2 && !at[frame.body - 1];
    frame.stop = frame.body + length;
    if (frame.stop > max_packet) return Cut::TOO_LARGE;
    return frame.stop > size ? Cut::PART : Cut::WHOLE;
}

// -- publishes

// A PUBLISH by itself, in places from its own beginning: where the body begins, where the topic
// ends, where properties and payload begin, and where the payload ends.
struct Publish {
    size_t body, topic_end, properties, payload, end;
    uint16_t packet_id;
    uint8_t qos;
};

// A PUBLISH in the bytes of a run: where it begins and ends, where its topic does, where its
// payload begins. `plan` is the number of its topic in an exchange, for as long as the run says.
struct Entry {
    uint32_t start, topic, topic_end, payload, end, plan;
    uint16_t packet_id;
    uint8_t qos;

    // As in `reference.packets.Entry`.
    size_t list_start() const { return topic_end + (qos ? 2 : 0); }
    bool has_list() const { return payload > list_start(); }
    size_t properties() const { return payload - properties_size(payload - list_start()); }
};

// How many of the entries of a run have a property list, and how many bytes of properties.
struct Listed {
    size_t count = 0, properties = 0;

    void add(const Entry& one) {
        count += one.has_list();
        properties += one.payload - one.properties();
    }
};

// `limits.levels`, of the process.
inline size_t most_levels = 200;

inline bool has_few_levels(const Byte* at, size_t size) {
    return size < most_levels || size_t(std::count(at, at + size, Byte('/'))) < most_levels;
}

// The publishes of a run to be. They are left where they are, in bytes that somebody else keeps. If
// one of them has to be written in another way, all are in `copied`.
class Gathered {
    // Entries of those that were before, so that a read costs no growing.
    static inline std::vector<std::vector<Entry>> spare_;
    static constexpr size_t MOST_SPARE = 16 * 1024;

    const Byte* last_ = nullptr;  // the topic of the last one, where it was found
    size_t last_size_ = 0;
    const Byte* last_list_ = nullptr;  // likewise, the properties of the last one that has any
    size_t last_list_size_ = 0;

public:
    std::vector<Entry> entries;
    std::string copied;
    bool is_copied = false;
    bool is_marked = false;  // some lie there in the stored form
    Listed listed;
    const Bailiwick* bailiwick = nullptr;  // without, any topic will do
    bool leaves_text = false;  // what says that it is UTF-8 is checked by others
    bool leaves_expiring = false;  // what expires goes by itself

    Gathered() {
        if (spare_.empty()) return;
        entries.swap(spare_.back());
        spare_.pop_back();
    }
    Gathered(const Gathered&) = delete;
    Gathered& operator=(const Gathered&) = delete;
    ~Gathered() {
        entries.clear();
        if (spare_.capacity() < 2) spare_.reserve(2);
        if (spare_.size() < 2 && entries.capacity() <= MOST_SPARE)
            spare_.push_back(std::move(entries));
    }

    // Whether that is a topic that the core takes here, as that of the last one is.
    [[gnu::always_inline]] bool is_topic(const Byte* topic, size_t size) {
        return (size == last_size_ && are_same(topic, last_, size)) || is_new_topic(topic, size);
    }

    [[gnu::noinline]] bool is_new_topic(const Byte* topic, size_t size) {
        if (*topic == '$' || !is_topic_name(topic, size)) return false;
        if (!has_few_levels(topic, size)) return false;
        if (bailiwick && !bailiwick->has(topic, size)) return false;
        last_ = topic;
        last_size_ = size;
        return true;
    }

    // Whether these are plain properties, as those of the last one are.
    bool is_list(const Byte* properties, size_t size) {
        if (!size || (size == last_list_size_ && are_same(properties, last_list_, size))) return true;
        Traits traits;
        if (!are_plain(properties, size, traits, MOST_PROPERTIES) || traits.is_over) return false;
        if (leaves_expiring && traits.expires) return false;
        if (leaves_text && traits.is_text) return false;
        last_list_ = properties;
        last_list_size_ = size;
        return true;
    }

    // Add a publish that lies at `at` of these bytes; its first byte is to be this one.
    void add(const Publish& one, Byte first, const Byte* data, size_t at) {
        size_t remaining = one.end - one.body, start = at, by = at;
        bool is_kept = first == unlisted(data[at]) && one.body == 1 + length_size(remaining);
        if (!is_copied && is_kept) is_marked |= first != data[at];
        if (is_copied || !is_kept) {
            if (!is_copied) copy_all(data);
            char head[5];
            head[0] = static_cast<char>(first);
            start = copied.size();
            copied.append(head, put_length(head + 1, remaining) - head);
            by = copied.size() - one.body;
            copied.append(reinterpret_cast<const char*>(data) + at + one.body, remaining);
        }
        push(start, by + one.body + 2, by + one.topic_end, by + one.payload, by + one.end,
             one.packet_id, one.qos);
        listed.count += entries.back().has_list();
        listed.properties += one.payload - one.properties;
    }

    // Add a publish that lies there, and is as it is to be.
    void push(size_t start, size_t topic, size_t topic_end, size_t payload, size_t end,
              uint16_t packet_id = 0, uint8_t qos = 0) {
        // In its place: copied there from the stack, it would wait for what was just written.
        Entry& one = entries.emplace_back();
        one.start = uint32_t(start);
        one.topic = uint32_t(topic);
        one.topic_end = uint32_t(topic_end);
        one.payload = uint32_t(payload);
        one.end = uint32_t(end);
        one.plan = NONE;
        one.packet_id = packet_id;
        one.qos = qos;
    }

    // Copy all, which follow one another in this data, in the wire form. The publishes lie there
    // from then on.
    void unmark(const char* data, char* copy) {
        const uint32_t begin = entries.front().start;
        std::memcpy(copy, data + begin, entries.back().end - begin);
        for (Entry& one : entries) {
            for (uint32_t* at : {&one.start, &one.topic, &one.topic_end, &one.payload, &one.end})
                *at -= begin;
            copy[one.start] = static_cast<char>(unlisted(copy[one.start]));
        }
    }

private:
    void copy_all(const Byte* data) {
        for (Entry& one : entries) {
            uint32_t start = one.start;
            uint32_t by = static_cast<uint32_t>(copied.size()) - start;
            copied.push_back(static_cast<char>(unlisted(data[start])));
            copied.append(reinterpret_cast<const char*>(data) + start + 1, one.end - start - 1);
            for (uint32_t* at : {&one.start, &one.topic, &one.topic_end, &one.payload, &one.end})
                *at += by;
        }
        is_copied = true;
    }
};

// Copy what was gathered, into no more room than it takes.
inline void keep(std::vector<Entry>& kept, const std::vector<Entry>& entries) {
    kept.assign(entries.begin(), entries.end());
}

// True if a PUBLISH of this form is one that the core takes, with its places
// (`reference.packets.plain_publish`). The PUBLISH would come next among those gathered.
inline bool plain_publish(Byte first, const Byte* packet, const Frame& frame, Publish& one,
                          Gathered& gathered, Form form) {
    const Byte* body = packet + frame.body;
    size_t size = frame.stop - frame.body;
    uint8_t qos = first >> 1 & 3;
    if (first & RETAIN || qos == 3 || (first & DUP && !qos) || size < 2) return false;
    size_t topic = body[0] << 8 | body[1], payload = 2 + topic + (qos ? 2 : 0);
    if (!topic || payload > size) return false;
    uint16_t packet_id = qos ? body[payload - 2] << 8 | body[payload - 1] : 0;
    if (qos && !packet_id) return false;
    size_t properties = payload;
    if (has_list(form, first)) {
        if (!cut_list(body, size, payload, properties)) return false;
        if (!gathered.is_list(body + properties, payload - properties)) return false;
    }
    if (!gathered.is_topic(body + 2, topic)) return false;
    one = {frame.body, frame.body + 2 + topic, frame.body + properties, frame.body + payload,
           frame.stop, packet_id, qos};
    return true;
}

template <Form FORM>
inline size_t take_plain(Gathered& gathered, const Byte* data, size_t at, size_t size,
                         size_t max_packet, size_t most) {
    while (gathered.entries.size() < most && size - at > 4) {
        const Byte first = FORM == Form::STORED ? unlisted(data[at]) : data[at];
        if (first != PUBLISH) break;
        size_t body = at + 2, remaining = data[at + 1];
        if (remaining > 127) {
            if (data[body] > 127 || !data[body]) break;
            remaining = (remaining & 127) | data[body++] << 7;
        }
        size_t topic = body + 2, end = body + remaining;
        if (end > size || end - at > max_packet || remaining < 2) break;
        size_t topic_size = data[body] << 8 | data[body + 1], payload = topic + topic_size;
        if (!topic_size || payload > end || !gathered.is_topic(data + topic, topic_size)) break;
        size_t topic_end = payload;
        if (has_list(FORM, data[at])) {
            size_t properties;
            if (!cut_list(data, end, payload, properties)) break;
            if (!gathered.is_list(data + properties, payload - properties)) break;
            if (FORM == Form::STORED) gathered.is_marked = true;
            ++gathered.listed.count;
            gathered.listed.properties += payload - properties;
        }
        gathered.push(at, topic, topic_end, payload, end);
        at = end;
    }
    return at;
}

// Take plain publishes of QoS 0, to so many in all, as long as one follows another in these bytes.
// Returns the place of the first packet that was not taken. Rare packets are left to others: those
// of 16 KiB or more, and lengths that take more bytes than they have to.
inline size_t take_plain(Gathered& gathered, const Byte* data, size_t at, size_t size,
                         size_t max_packet, size_t most, Form form) {
    switch (form) {
    case Form::LEVEL_4: return take_plain<Form::LEVEL_4>(gathered, data, at, size, max_packet, most);
    case Form::LEVEL_5: return take_plain<Form::LEVEL_5>(gathered, data, at, size, max_packet, most);
    default: return take_plain<Form::STORED>(gathered, data, at, size, max_packet, most);
    }
}

// -- the wire form of another level

// The beginnings of a run's packets in a wire form that is not the run's own, and the end of the
// last one.
class Reencoded {
    bool has_lists_ = false;

    size_t size_of(const Entry& one) const {
        if (one.has_list() == has_lists_) return one.end - one.start;
        size_t remaining = remaining_of(one);
        return 1 + length_size(remaining) + remaining;
    }

    size_t remaining_of(const Entry& one) const {
        return 2 + (one.list_start() - one.topic) + has_lists_ + (one.end - one.payload);
    }

public:
    std::vector<size_t> starts;

    // How many bytes all packets take, with an empty list where one has none, or without lists.
    size_t measure(const std::vector<Entry>& entries, bool has_lists) {
        has_lists_ = has_lists;
        starts.reserve(entries.size() + 1);
        starts.assign(1, 0);
        for (const Entry& one : entries) starts.push_back(starts.back() + size_of(one));
        return starts.back();
    }

    // Where the packets, their topics and payloads lie then.
    std::vector<Entry> moved(const std::vector<Entry>& entries) const {
        std::vector<Entry> made = entries;
        for (size_t index = 0; index < made.size(); ++index) {
            Entry& one = made[index];
            size_t start = starts[index];
            size_t head = one.topic - one.start, size = one.topic_end - one.topic;
            if (one.has_list() != has_lists_) head = 3 + length_size(remaining_of(one));
            size_t payload = starts[index + 1] - (one.end - one.payload);
            one.start = uint32_t(start);
            one.topic = uint32_t(start + head);
            one.topic_end = uint32_t(start + head + size);
            one.payload = uint32_t(payload);
            one.end = uint32_t(starts[index + 1]);
        }
        return made;
    }

    void put(char* at, const std::vector<Entry>& entries, const char* data) const {
        for (const Entry& one : entries) {
            if (one.has_list() == has_lists_) {
                std::memcpy(at, data + one.start, one.end - one.start);
                at += one.end - one.start;
                continue;
            }
            *at++ = data[one.start];
            at = put_length(at, remaining_of(one));
            put_two(at, one.topic_end - one.topic);
            size_t size = one.list_start() - one.topic;  // topic and packet id
            std::memcpy(at + 2, data + one.topic, size);
            at += 2 + size;
            if (has_lists_) *at++ = 0;
            std::memcpy(at, data + one.payload, one.end - one.payload);
            at += one.end - one.payload;
        }
    }
};

}  // namespace txbroker
