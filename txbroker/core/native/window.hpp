// The window of a clean session: what is in flight to its client, and what waits behind it.

#pragma once

#include <algorithm>

#include "output.hpp"
#include "packets.hpp"
#include "tables.hpp"

namespace txbroker {

constexpr size_t HIGH_MARK = 256 * 1024, QUEUE_BYTES = 1024 * 1024;
constexpr uint32_t QUEUE_HIGH_MARK = 1'000;
constexpr uint32_t QUEUE_MESSAGES = 8'192;

// A lent message is a group's. Its packet id is told when the client has answered. Where many were
// lent at once, the place it was lent as is told (`LentAs`).
enum FlightState : uint8_t { SENT = 1, RELEASED = 2, LENT = 5, LENT_AS = 9 };

struct LentAs {
    uint32_t lender;
    int64_t offset;

    bool operator<(const LentAs& other) const {
        return lender != other.lender ? lender < other.lender : offset < other.offset;
    }
};

// A message that is to be sent at this QoS; `size` is what it counts for, `owner` the bytes object in
// which the payload lies. Its properties go where the client's form `has_list`.
struct Content {
    const char* topic;
    size_t topic_size;
    const char* payload;
    size_t payload_size;
    const char* properties;
    size_t properties_size;
    uint8_t qos;
    bool is_retained;
    bool has_list;
    bool is_again;  // DUP
    uint32_t size;
    PyObject* owner;

    size_t list_size() const {
        return has_list ? length_size(properties_size) + properties_size : 0;
    }
    size_t remaining() const {
        return 2 + topic_size + (qos ? 2 : 0) + list_size() + payload_size;
    }
    // What expires must not wait here, where it does not age.
    bool expires() const {
        return has_expiry(reinterpret_cast<const Byte*>(properties), properties_size);
    }
    size_t packet_size() const { return 1 + length_size(remaining()) + remaining(); }
    size_t head_size() const { return packet_size() - payload_size; }

    // Write the PUBLISH up to its payload, with no packet id yet; where that belongs.
    size_t put_head(char* start) const {
        char* at = start;
        int flags = qos << 1 | (is_retained ? RETAIN : 0) | (is_again ? DUP : 0);
        *at++ = static_cast<char>(PUBLISH | flags);
        at = put_length(at, remaining());
        put_two(at, topic_size);
        at += 2;
        std::memcpy(at, topic, topic_size);
        at += topic_size;
        size_t id_at = at - start;
        if (qos) {
            put_two(at, 0);
            at += 2;
        }
        if (has_list) {
            at = put_length(at, properties_size);
            if (properties_size) std::memcpy(at, properties, properties_size);
        }
        return id_at;
    }

    // Write all of it; likewise.
    size_t put(char* start) const {
        size_t id_at = put_head(start);
        if (payload_size) std::memcpy(start + head_size(), payload, payload_size);
        return id_at;
    }
};

// The head before each packet that waits: where its packet id belongs, and its place in which part
// of a journal (by number of the part; NONE: it cannot be read again).
struct Waiting {
    int64_t offset;
    size_t packet_size, id_at;
    uint32_t size, part;
    uint8_t qos;
};

// Packets that wait, with what stands before each.
class Line {
    Buffer bytes_;
    uint32_t count_ = 0;
    uint64_t size_ = 0;

public:
    uint32_t count() const { return count_; }
    uint64_t size() const { return size_; }

    Waiting at(size_t place) {
        Waiting waiting;
        std::memcpy(&waiting, bytes_.begin() + place, sizeof waiting);
        return waiting;
    }

    const char* front_packet() { return bytes_.begin() + sizeof(Waiting); }

    void push(const Content& content, uint32_t part, int64_t offset) {
        Waiting waiting{offset, content.packet_size(), 0, content.size, part, content.qos};
        char* start = bytes_.extend(sizeof waiting + waiting.packet_size);
        waiting.id_at = content.put(start + sizeof waiting);
        std::memcpy(start, &waiting, sizeof waiting);
        ++count_;
        size_ += content.size;
    }

    void pop() {
        Waiting waiting = at(0);
        --count_;
        size_ -= waiting.size;
        bytes_.consume(sizeof waiting + waiting.packet_size);
    }

    size_t held() const { return bytes_.held(); }
};

// In flight, and behind that `first`: what cannot be read again, before `queue`: what can. The
// packets go to the output that is given each time; `part_uses` counts what is in queues, by part.
class Window {
    PacketIds flights_;
    uint64_t flight_size_ = 0;
    uint16_t last_id_ = 0;
    std::unordered_map<uint16_t, LentAs> lent_;  // by packet id

    // Room in the output for the packet of a message that is in flight from here on, as `last_id_`.
    char* launch(Output& output, size_t packet_size, uint8_t qos, uint32_t size,
                 FlightState state = SENT) {
        uint32_t id = last_id_ % 65'535 + 1;
        while (flights_.find(static_cast<uint16_t>(id))) id = id % 65'535 + 1;  // [MQTT-2.3.1-4]
        last_id_ = static_cast<uint16_t>(id);
        flights_.insert(last_id_, qos, state, size);
        flight_size_ += size;
        if (flights_.count() == inflight || flight_size_ >= memory) ++fills;
        return output.extend(packet_size);
    }

    // Tell a lent message that is answered for the first time.
    void answer(PacketIds::Slot* flight) {
        if (flight->state == LENT) landed.push_back(flight->id);
        if (flight->state != LENT_AS) return;
        auto found = lent_.find(flight->id);
        answered.push_back(found->second);
        lent_.erase(found);
    }

    void land(PacketIds::Slot* flight) {
        answer(flight);
        flight_size_ -= flight->value;
        flights_.erase(flight);
    }

public:
    uint32_t inflight = 0;
    uint64_t memory = 0;
    uint64_t fills = 0;
    Line first, queue;
    std::vector<uint16_t> landed;  // packet ids of lent messages that the client has answered
    std::vector<LentAs> answered;  // likewise, as what they were lent

    uint32_t in_flight() const { return flights_.count(); }
    uint32_t waiting() const { return first.count() + queue.count(); }
    size_t held() const {
        return first.held() + queue.held() + flights_.room() * 8 + lent_.size() * 40;
    }

    // `mark`: less than this has to wait in the output.
    bool can_launch(const Output& output, size_t mark) const {
        return flights_.count() < inflight && flight_size_ < memory && output.size() < mark;
    }

    // `most`: so many bytes may wait there.
    bool queue_has_room(size_t most) const {
        return queue.count() < QUEUE_MESSAGES && queue.size() < most;
    }

    // Whether so much waits that its publishers should.
    bool is_full() const {
        return queue.count() >= QUEUE_HIGH_MARK || queue.size() >= QUEUE_BYTES / 4;
    }

    // Send a message now; only if `can_launch`.
    void launch_new(Output& output, const Content& content, FlightState state = SENT) {
        bool is_small = content.payload_size < Output::LEAST_SHARED;
        size_t size = is_small ? content.packet_size() : content.head_size();
        char* start = launch(output, size, content.qos, content.size, state);
        size_t id_at = is_small ? content.put(start) : content.put_head(start);
        put_two(start + id_at, last_id_);
        if (!is_small) output.share(content.owner, content.payload, content.payload_size);
    }

    // Send a message of QoS 1 that is lent as this; only if `can_launch`.
    void lend_as(Output& output, const Content& content, const LentAs& as) {
        launch_new(output, content, LENT_AS);
        lent_[last_id_] = as;
    }

    // The messages that were lent so and are not answered, in order.
    std::vector<LentAs> unanswered() const {
        std::vector<LentAs> found;
        for (const auto& [_, as] : lent_) found.push_back(as);
        std::sort(found.begin(), found.end());
        return found;
    }

    // Send what waits, as far as there is room; how many messages that were.
    size_t pump(Output& output, size_t mark, std::vector<uint32_t>& part_uses) {
        size_t launched = 0;
        for (; waiting() && can_launch(output, mark); ++launched) {
            Line& line = first.count() ? first : queue;
            Waiting one = line.at(0);
            char* start = launch(output, one.packet_size, one.qos, one.size);
            std::memcpy(start, line.front_packet(), one.packet_size);
            put_two(start + one.id_at, last_id_);
            if (one.part != NONE) --part_uses[one.part];
            line.pop();
        }
        return launched;
    }

    uint16_t last_id() const { return last_id_; }

    // Whether a message is in flight under this packet id.
    bool has(uint16_t id) { return flights_.find(id) != nullptr; }

    // How many more may be in flight; none while others wait.
    uint32_t free() const {
        bool is_closed = waiting() || flights_.count() >= inflight || flight_size_ >= memory;
        return is_closed ? 0 : inflight - flights_.count();
    }

    // PUBACK came; false: what is in flight wants another answer.
    bool acknowledge(uint16_t id) {
        PacketIds::Slot* flight = flights_.find(id);
        if (!flight) return true;
        if (flight->qos != 1) return false;
        land(flight);
        return true;
    }

    // PUBREC came; as above.
    bool receive(uint16_t id) {
        PacketIds::Slot* flight = flights_.find(id);
        if (!flight) return true;
        if (flight->qos != 2) return false;
        answer(flight);
        flight->state = RELEASED;
        return true;
    }

    // PUBCOMP came; as above.
    bool complete(uint16_t id) {
        PacketIds::Slot* flight = flights_.find(id);
        if (!flight) return true;
        if (flight->qos != 2 || flight->state != RELEASED) return false;
        land(flight);
        return true;
    }

    // PUBREC with an error; false: that is not what the message waits for.
    bool refuse(uint16_t id) {
        PacketIds::Slot* flight = flights_.find(id);
        if (!flight) return true;
        if (flight->qos != 2 || flight->state == RELEASED) return false;
        land(flight);
        return true;
    }
};

}  // namespace txbroker
