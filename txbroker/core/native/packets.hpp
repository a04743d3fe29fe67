// Packets: how bytes are cut into them, what a plain PUBLISH is, what is gathered of them.

#pragma once

#include <string>

#include "bytes.hpp"

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

// -- frames

enum class Cut { WHOLE, PART, TOO_LARGE, MALFORMED };

// Where the body of a packet begins, and where the packet ends.
struct Frame {
    size_t body = 0, stop = 0;
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
    frame.stop = frame.body + length;
    if (frame.stop > max_packet) return Cut::TOO_LARGE;
    return frame.stop > size ? Cut::PART : Cut::WHOLE;
}

// -- publishes

// One PUBLISH in the bytes of a run: where it begins and ends, where its topic does, where its
// payload begins. `plan` is the number of its topic in an exchange, for as long as the run says.
struct Entry {
    uint32_t start, topic, topic_end, payload, end, plan;
    uint16_t packet_id;
    uint8_t qos;
};

// The publishes of a run to be. They are left where they are, in bytes that somebody else keeps,
// unless one of them has to be written in another way: then all are in `copied`.
class Gathered {
    // Entries of those that were before, so that a read costs no growing.
    static inline std::vector<std::vector<Entry>> spare_;
    static constexpr size_t MOST_SPARE = 16 * 1024;

    const Byte* last_ = nullptr;  // the topic of the last one, where it was found
    size_t last_size_ = 0;

public:
    std::vector<Entry> entries;
    std::string copied;
    bool is_copied = false;

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

    // Whether that is the topic of the last one, which is known to be valid.
    bool is_last_topic(const Byte* topic, size_t size) const {
        return size == last_size_ && !std::memcmp(topic, last_, size);
    }

    // One more, which lies at `at` of these bytes; its first byte is to be this one.
    void add(Entry one, Byte first, const Byte* data, size_t at) {
        const Byte* packet = data + at;
        last_ = packet + one.topic;
        last_size_ = one.topic_end - one.topic;
        uint32_t body = one.topic - 2, remaining = one.end - body;
        bool is_as_it_was = first == *packet && body == 1 + length_size(remaining);
        if (!is_copied && is_as_it_was) {
            move(one, static_cast<uint32_t>(at));
            entries.push_back(one);
            return;
        }
        if (!is_copied) copy_all(data);
        uint32_t start = static_cast<uint32_t>(copied.size());
        char head[5];
        head[0] = static_cast<char>(first);
        copied.append(head, put_length(head + 1, remaining) - head);
        uint32_t shift = static_cast<uint32_t>(copied.size()) - body;
        copied.append(reinterpret_cast<const char*>(packet) + body, remaining);
        move(one, shift);
        one.start = start;
        entries.push_back(one);
    }

private:
    static void move(Entry& one, uint32_t by) {
        one.start += by;
        one.topic += by;
        one.topic_end += by;
        one.payload += by;
        one.end += by;
    }

    void copy_all(const Byte* data) {
        for (Entry& one : entries) {
            uint32_t start = one.start;
            uint32_t by = static_cast<uint32_t>(copied.size()) - start;
            copied.append(reinterpret_cast<const char*>(data) + start, one.end - start);
            move(one, by);
        }
        is_copied = true;
    }
};

// Copy what was gathered, into no more room than it takes.
inline void keep(std::vector<Entry>& kept, const std::vector<Entry>& entries) {
    kept.assign(entries.begin(), entries.end());
}

// Whether a PUBLISH is one that the core takes, and where what is in it lies, from its own beginning
// (`reference.packets.plain_publish`). The topic of the last one is known to be valid.
inline bool plain_publish(Byte first, const Byte* packet, const Frame& frame, Entry& one,
                          const Gathered& before) {
    const Byte* body = packet + frame.body;
    size_t size = frame.stop - frame.body;
    uint8_t qos = first >> 1 & 3;
    if (first & RETAIN || qos == 3 || (first & DUP && !qos) || size < 2) return false;
    size_t topic = body[0] << 8 | body[1], payload = 2 + topic + (qos ? 2 : 0);
    if (!topic || payload > size || body[2] == '$') return false;
    uint16_t packet_id = qos ? body[payload - 2] << 8 | body[payload - 1] : 0;
    if (qos && !packet_id) return false;
    if (!before.is_last_topic(body + 2, topic) && !is_topic_name(body + 2, topic)) return false;
    auto at = static_cast<uint32_t>(frame.body);
    one.start = 0;
    one.topic = at + 2;
    one.topic_end = static_cast<uint32_t>(at + 2 + topic);
    one.payload = static_cast<uint32_t>(at + payload);
    one.end = static_cast<uint32_t>(frame.stop);
    one.plan = NONE;
    one.packet_id = packet_id;
    one.qos = qos;
    return true;
}

}  // namespace txbroker
