// The property list of a PUBLISH (`mqtt.wire.property_list`): found and checked, never decoded.

#pragma once

#include "bytes.hpp"

namespace txbroker {

// `mqtt.wire.property_list.MOST_PROPERTIES`.
constexpr size_t MOST_PROPERTIES = 1'000;

constexpr Byte LISTED = 0xC0, LISTED_LEVEL = 5, USER_PROPERTY = 0x26;

inline Byte unlisted(Byte first) { return (first & LISTED) == LISTED ? first & Byte(~LISTED) : first; }

inline bool is_stored_publish(Byte first) { return first >> 4 == 3 || first >> 4 == 15; }

// `reference.packets.Form`.
enum class Form : Byte { LEVEL_4, LEVEL_5, STORED };

constexpr bool has_list(Form form, Byte first) {
    return form == Form::LEVEL_5 || (form == Form::STORED && (first & LISTED) == LISTED);
}

// How many bytes of a list of this size are properties, and not its length.
inline size_t properties_size(size_t list) {
    if (!list) return 0;
    return list - 1 - (list > 1 + 127) - (list > 2 + 16'383) - (list > 3 + 2'097'151);
}

// Pass a field that follows its length of two bytes; false: it ends beyond `end`.
inline bool pass_binary(const Byte*& at, const Byte* end) {
    if (end - at < 2) return false;
    size_t size = at[0] << 8 | at[1];
    if (size_t(end - at) - 2 < size) return false;
    at += 2 + size;
    return true;
}

inline bool pass_text(const Byte*& at, const Byte* end) {
    const Byte* text = at + 2;
    return pass_binary(at, end) && is_text(text, at - text);
}

// The properties of a list that its owner may have to act upon.
struct Traits {
    bool expires = false;  // there is a message expiry interval,
    bool is_over = false;  // and it is 0
    bool is_text = false;  // the payload is UTF-8, as the payload format indicator says
    size_t count = 0;      // of properties
};

// Whether properties are those that travel with a message, and legal; at most so many. A walk over
// the millions that a packet has room for would keep all clients waiting for 9 ms.
inline bool are_plain(const Byte* at, size_t size, Traits& traits, size_t most = SIZE_MAX) {
    traits = Traits();
    const Byte* const end = at + size;
    uint64_t known = 0;
    while (at < end) {
        const Byte identifier = *at++;
        if (++traits.count > most) return false;
        if (identifier > USER_PROPERTY || known >> identifier & 1) return false;
        if (identifier != USER_PROPERTY) known |= uint64_t(1) << identifier;
        const Byte* text = at + 2;
        switch (identifier) {
        case 0x01:  // payload format indicator
            if (at == end || *at > 1) return false;
            traits.is_text = *at++;
            break;
        case 0x02:  // message expiry interval
            if (end - at < 4) return false;
            traits.expires = true;
            traits.is_over = !(at[0] | at[1] | at[2] | at[3]);
            at += 4;
            break;
        case 0x03:  // content type
            if (!pass_text(at, end)) return false;
            break;
        case 0x08:  // response topic
            if (!pass_binary(at, end) || !is_topic_name(text, at - text)) return false;
            break;
        case 0x09:  // correlation data
            if (!pass_binary(at, end)) return false;
            break;
        case USER_PROPERTY:
            if (!pass_text(at, end) || !pass_text(at, end)) return false;
            break;
        default: return false;
        }
    }
    return true;
}

// Whether legal properties have a message expiry interval.
inline bool has_expiry(const Byte* at, size_t size) {
    const Byte* const end = at + size;
    while (at < end) {
        switch (*at++) {
        case 0x01: ++at; break;
        case 0x02: return true;
        case USER_PROPERTY:
            if (!pass_binary(at, end)) return false;
            [[fallthrough]];
        default:
            if (!pass_binary(at, end)) return false;
        }
    }
    return false;
}

// The list that begins at `at`, which is where the list ends afterwards; where its properties begin.
// False: no list ends at `size` or before.
inline bool cut_list(const Byte* body, size_t size, size_t& at, size_t& properties) {
    if (at < size && !body[at]) {  // most have no properties
        properties = ++at;
        return true;
    }
    size_t length = 0;
    Byte last;
    int shift = 0;
    do {
        if (at >= size || shift > 21) return false;
        last = body[at++];
        length |= size_t(last & 127) << shift;
        shift += 7;
    } while (last > 127);
    if ((!last && shift > 7) || length > size - at) return false;  // [MQTT-1.5.5-1]
    properties = at;
    at += length;
    return true;
}

}  // namespace txbroker
