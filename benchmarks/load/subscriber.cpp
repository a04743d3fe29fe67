#include "subscriber.hpp"

#include <algorithm>
#include <cstdio>

Subscriber::Subscriber(const Options& options, const Plan& plan, const Pattern& pattern, Group* group, int index)
    : link(Role::subscriber, index, options.level),
      options_(options),
      plan_(plan),
      pattern_(pattern),
      group_(group),
      index_(index),
      properties_(property_list(options.level, options.properties, options.expiry)),
      next_(plan.streams.size(), 0),
      probed_(static_cast<size_t>(options.publishers), false) {
    for (uint32_t stream = 0; stream < next_.size(); ++stream)
        if (!plan.wants(index, stream)) next_[stream] = UNWANTED;
    if (options.qos >= 2 && options.subscribe_qos == 2) unreleased_.resize(65536, false);
}

void Subscriber::answer(Kind kind, const uint8_t* id) {
    const uint8_t packet[] = {static_cast<uint8_t>(kind << 4 | (kind == PUBREL ? 2 : 0)), 2, id[0], id[1]};
    link.append(packet, sizeof packet);
}

// Returns where the payload begins.
const uint8_t* Subscriber::acknowledge(uint8_t first, const uint8_t* at) {
    int qos = first >> 1 & 3;
    if (qos == 0) return at;
    if (qos == 1) {
        answer(PUBACK, at);
    } else {
        uint16_t id = get16(at);
        if (unreleased_.empty() || unreleased_[id]) fail("subscriber %d: packet id %d came twice", index_, id);
        unreleased_[id] = true;
        answer(PUBREC, at);
    }
    return at + 2;
}

void Subscriber::on_other(uint8_t first, const uint8_t* body, size_t length) {
    bool is_odd = link.level == 5 ? length < 2 : length != 2;
    if (first != (PUBREL << 4 | 2) || is_odd || unreleased_.empty())
        fail("subscriber %d: an unexpected packet: %02x", index_, first);
    unreleased_[get16(body)] = false;
    answer(PUBCOMP, body);
}

void Subscriber::check_topic(const Stream& stream, uint32_t number, const uint8_t* topic, size_t length) const {
    size_t fixed = stream.topic.size() - (stream.fresh ? DIGITS : 0);
    bool is_right = length == stream.topic.size() && std::memcmp(topic, stream.topic.data(), fixed) == 0;
    if (is_right && stream.fresh) {
        uint8_t digits[DIGITS];
        put_digits(digits, number);
        is_right = std::memcmp(topic + fixed, digits, DIGITS) == 0;
    }
    if (!is_right)
        fail("subscriber %d: message %u of %s came with the topic %.*s", index_, number, stream.topic.c_str(),
             static_cast<int>(length), reinterpret_cast<const char*>(topic));
}

void Subscriber::check_properties(const uint8_t* properties) const {
    size_t at = 0, size = properties_.size();
    bool is_right = true;
    if (options_.expiry && size) {  // what a broker held a message for is taken off its interval
        uint32_t left = 0;
        for (size_t place = 0; place < 4; ++place) left = left << 8 | properties[INTERVAL_AT + place];
        at = INTERVAL_AT + 4;
        is_right = left && left <= static_cast<uint32_t>(options_.expiry) &&
                   std::memcmp(properties, properties_.data(), INTERVAL_AT) == 0;
    }
    if (!is_right || std::memcmp(properties + at, properties_.data() + at, size - at) != 0)
        fail("subscriber %d: a message came with other properties", index_);
}

const Stream* Subscriber::on_publish(
    uint8_t first, const uint8_t* body, size_t length, int64_t now, int64_t* delay) {
    size_t topic = length < 2 ? length : get16(body);
    int qos = first >> 1 & 3;
    if (length != 2 + topic + (qos ? 2 : 0) + properties_.size() + options_.size)
        fail("subscriber %d: a PUBLISH of the wrong length: %zu", index_, length);
    const uint8_t* properties = acknowledge(first, body + 2 + topic);
    check_properties(properties);
    const uint8_t* payload = properties + properties_.size();
    Stamp stamp;
    std::memcpy(&stamp, payload, sizeof stamp);
    if (!pattern_.is_right(payload, stamp)) fail("subscriber %d: a payload is damaged", index_);
    if (stamp.stream == PROBE && stamp.number < probed_.size()) {
        probed_[stamp.number] = true;
        return nullptr;
    }
    if (stamp.stream >= next_.size()) fail("subscriber %d: a payload is of no message", index_);
    const Stream& stream = plan_.streams[stamp.stream];
    check_topic(stream, stamp.number, body + 2, topic);
    if (qos != std::min(stream.qos, options_.subscribe_qos) || first & 1)
        fail("subscriber %d: a message came with QoS %d, retain %d", index_, qos, first & 1);
    if (group_ != nullptr)
        count_shared(stamp.stream, stamp.number);
    else if (next_[stamp.stream] == stamp.number)
        ++next_[stamp.stream];
    else
        count_out_of_turn(stamp.stream, stamp.number);
    if (!early_.empty()) catch_up(stamp.stream);
    *delay = now - stamp.nanoseconds;
    return &stream;
}

// A member misses what others get; what it gets of a topic comes in order.
void Subscriber::count_shared(uint32_t stream, uint32_t number) {
    const Stream& sent = plan_.streams[stream];
    if (number >= sent.sent) fail("subscriber %d: message %u of %s was not sent", index_, number, sent.topic.c_str());
    if (!group_->take(stream, number))
        fail("subscriber %d: message %u of %s came twice to the group", index_, number, sent.topic.c_str());
    if (sent.fresh) return;
    if (number < next_[stream])
        fail("subscriber %d: message %u of %s came after %u", index_, number, sent.topic.c_str(), next_[stream] - 1);
    next_[stream] = number + 1;
}

// What came early is no longer that when those before it have come.
void Subscriber::catch_up(uint32_t stream) {
    while (early_.erase(static_cast<uint64_t>(stream) << 32 | next_[stream])) ++next_[stream];
}

// Order is promised within a topic, so those that are used once may come in any.
void Subscriber::count_out_of_turn(uint32_t stream, uint32_t number) {
    const char* topic = plan_.streams[stream].topic.c_str();
    uint32_t due = next_[stream];
    if (due == UNWANTED) fail("subscriber %d: %s came and was not asked for", index_, topic);
    if (number < due) fail("subscriber %d: message %u of %s came twice", index_, number, topic);
    if (!plan_.streams[stream].fresh)
        fail("subscriber %d: message %u of %s came in the place of %u", index_, number, topic, due);
    if (!early_.insert(static_cast<uint64_t>(stream) << 32 | number).second)
        fail("subscriber %d: message %u of %s came twice", index_, number, topic);
}

int64_t Subscriber::tell_missing() const {
    constexpr int LINES = 5;
    int64_t missing = 0;
    int lines = 0;
    for (uint32_t stream = 0; stream < next_.size(); ++stream) {
        const Stream& sent = plan_.streams[stream];
        if (next_[stream] == UNWANTED || next_[stream] >= sent.sent) continue;
        missing += sent.sent - next_[stream];
        if (++lines <= LINES)
            std::fprintf(stderr, "load: subscriber %d: of %s, messages %u to %u are missing\n", index_,
                         sent.topic.c_str(), next_[stream], sent.sent - 1);
    }
    return missing - static_cast<int64_t>(early_.size());
}
