// The packets that clients send, at level 4 (MQTT 3.1.1) or 5 (MQTT 5.0), as bytes.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

using Bytes = std::vector<uint8_t>;

enum Kind : uint8_t {
    CONNECT = 1, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK,
};

// Long enough that nothing has to be sent only to keep a connection, and yet the broker has to watch it.
constexpr uint16_t KEEP_ALIVE = 600;

inline void put16(uint8_t* at, uint16_t value) {
    at[0] = static_cast<uint8_t>(value >> 8);
    at[1] = static_cast<uint8_t>(value);
}

// The property that a session never expires.
constexpr uint8_t FOREVER[] = {0x11, 0xff, 0xff, 0xff, 0xff};

inline uint16_t get16(const uint8_t* at) { return static_cast<uint16_t>(at[0] << 8 | at[1]); }

inline void put_length(Bytes& out, size_t length) {
    do {
        uint8_t digit = length % 128;
        length /= 128;
        out.push_back(length ? digit | 128 : digit);
    } while (length);
}

inline void put_text(Bytes& out, const std::string& text) {
    out.push_back(static_cast<uint8_t>(text.size() >> 8));
    out.push_back(static_cast<uint8_t>(text.size()));
    out.insert(out.end(), text.begin(), text.end());
}

inline Bytes packet(uint8_t first, const Bytes& body) {
    Bytes out{first};
    put_length(out, body.size());
    out.insert(out.end(), body.begin(), body.end());
    return out;
}

// At level 5 a session that is not clean has to be asked to outlive its connection.
inline Bytes connect_packet(const std::string& client_id, bool clean, int level = 4) {
    auto version = static_cast<uint8_t>(level);
    Bytes body{0, 4, 'M', 'Q', 'T', 'T', version, static_cast<uint8_t>(clean ? 2 : 0), KEEP_ALIVE >> 8, KEEP_ALIVE & 255};
    if (level == 5) body.push_back(clean ? 0 : sizeof FOREVER);
    if (level == 5 && !clean) body.insert(body.end(), std::begin(FOREVER), std::end(FOREVER));
    put_text(body, client_id);
    return packet(CONNECT << 4, body);
}

inline Bytes subscribe_packet(uint16_t id, const std::vector<std::string>& filters, int qos, int level = 4) {
    Bytes body{static_cast<uint8_t>(id >> 8), static_cast<uint8_t>(id)};
    if (level == 5) body.push_back(0);
    for (const auto& filter : filters) {
        put_text(body, filter);
        body.push_back(static_cast<uint8_t>(qos));
    }
    return packet(SUBSCRIBE << 4 | 2, body);
}

inline Bytes unsubscribe_packet(uint16_t id, const std::string& filter) {
    Bytes body{static_cast<uint8_t>(id >> 8), static_cast<uint8_t>(id)};
    put_text(body, filter);
    return packet(UNSUBSCRIBE << 4 | 2, body);
}

constexpr size_t INTERVAL_AT = 2;  // the message expiry interval in a property list of less than 128 bytes

// The properties of a PUBLISH with their length, as that level has them; `expiry` 0: it does not expire.
inline Bytes property_list(int level, int user_properties, uint32_t expiry) {
    if (level < 5) return {};
    Bytes body;
    if (expiry) {
        body.push_back(0x02);
        for (int shift = 24; shift >= 0; shift -= 8) body.push_back(static_cast<uint8_t>(expiry >> shift));
    }
    for (int number = 0; number < user_properties; ++number) {
        body.push_back(0x26);
        put_text(body, "name-" + std::to_string(number));
        put_text(body, "value-" + std::to_string(number));
    }
    Bytes out;
    put_length(out, body.size());
    out.insert(out.end(), body.begin(), body.end());
    return out;
}

// All of a PUBLISH that stands before the packet id, the properties or the payload; `rest` is the size
// of the last two.
inline Bytes publish_head(const std::string& topic, int qos, size_t rest) {
    Bytes out{static_cast<uint8_t>(PUBLISH << 4 | qos << 1)};
    put_length(out, 2 + topic.size() + (qos ? 2 : 0) + rest);
    put_text(out, topic);
    return out;
}

constexpr uint8_t DISCONNECT_PACKET[] = {0xe0, 0};
