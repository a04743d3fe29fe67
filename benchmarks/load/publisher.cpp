#include "publisher.hpp"

#include <algorithm>

namespace {

// Neighbours differ in their topic as those of many devices do; a prime, so that all have their turn.
constexpr uint64_t TOPIC_STEP = 7919;

}  // namespace

Publisher::Publisher(const Options& options, Plan& plan, const Pattern& pattern, int index)
    : link(Role::publisher, index, options.publisher_level),
      options_(options),
      plan_(plan),
      pattern_(pattern),
      index_(index),
      limit_(std::max<int64_t>(options.outstanding / options.publishers, 1)) {
    // Many more ids than the window, so that one whose handshake takes longer is not waited for.
    if (options.qos) ids_.resize(static_cast<size_t>(options.window) * 4 + 1, FREE);
}

Stream& Publisher::choose() {
    if (!has_chosen_) {
        has_chosen_ = true;
        fresh_due_ += options_.fresh;
        bool fresh = fresh_due_ >= 1;
        if (fresh) fresh_due_ -= 1;
        int topic = static_cast<int>(turn_++ * TOPIC_STEP % static_cast<uint64_t>(options_.topics));
        chosen_ = plan_.stream_of(index_, topic, fresh);
    }
    return plan_.streams[chosen_];
}

// One message may always go, even if it becomes more deliveries than the limit.
bool Publisher::may_publish(const Stream& stream) const {
    if (outstanding && outstanding + stream.receivers > limit_) return false;
    return stream.qos == 0 || (unacknowledged < options_.window && ids_[next_id_] == FREE);
}

uint8_t* Publisher::put_packet_id(uint8_t* at, int qos) {
    put16(at, next_id_);
    ids_[next_id_] = qos == 1 ? WAITS_PUBACK : WAITS_PUBREC;
    ++unacknowledged;
    next_id_ = static_cast<uint16_t>(next_id_ + 1u == ids_.size() ? 1 : next_id_ + 1);
    return at + 2;
}

uint8_t* Publisher::encode(uint8_t* at, Stream& stream, uint32_t stream_index, int64_t now) {
    std::memcpy(at, stream.head.data(), stream.head.size());
    at += stream.head.size();
    if (stream.fresh) put_digits(at - DIGITS, stream.sent);
    if (stream.qos) at = put_packet_id(at, stream.qos);
    at = std::copy(plan_.properties.begin(), plan_.properties.end(), at);
    at = pattern_.write(at, {stream_index, stream.sent++, now});
    ++published;
    expected += stream.receivers;
    outstanding += stream.receivers;
    has_chosen_ = false;
    return at;
}

bool Publisher::publish_batch(int64_t now) {
    if (!link.is_idle()) return false;
    // Not before there is something to batch, as long as nothing but the limit is waited for.
    if (outstanding > limit_ - limit_ / 4) return false;
    size_t size = std::max(options_.batch, size_t{1});
    uint8_t* begin = link.reserve(size + options_.size + plan_.properties.size() + 256);
    uint8_t* at = begin;
    while (static_cast<size_t>(at - begin) < size) {
        Stream& stream = choose();
        if (!may_publish(stream)) break;
        at = encode(at, stream, chosen_, now);
    }
    if (at == begin) return false;
    link.commit(static_cast<size_t>(at - begin));
    link.flush();
    return true;
}

bool Publisher::publish_one(int64_t now) {
    if (!link.is_idle() || !may_publish(choose())) return false;
    uint8_t* begin = link.reserve(options_.size + plan_.properties.size() + 256);
    link.commit(static_cast<size_t>(encode(begin, choose(), chosen_, now) - begin));
    link.flush();
    return true;
}

void Publisher::publish_probe() {
    const Stream& stream = plan_.streams[plan_.stream_of(index_, 0, false)];
    if (stream.qos && (unacknowledged == options_.window || ids_[next_id_] != FREE)) return;
    uint8_t* begin = link.reserve(options_.size + plan_.properties.size() + 256);
    uint8_t* at = std::copy(stream.head.begin(), stream.head.end(), begin);
    if (stream.qos) at = put_packet_id(at, stream.qos);
    at = std::copy(plan_.properties.begin(), plan_.properties.end(), at);
    at = pattern_.write(at, {PROBE, static_cast<uint32_t>(index_), 0});
    link.commit(static_cast<size_t>(at - begin));
    link.flush();
}

void Publisher::acknowledged(uint16_t id, State before, State after) {
    if (id >= ids_.size() || ids_[id] != before)
        fail("publisher %d: packet id %d is acknowledged out of turn", index_, id);
    ids_[id] = after;
    if (after == FREE) --unacknowledged;
}

void Publisher::on_packet(uint8_t first, const uint8_t* body, size_t length) {
    // At level 5 a reason may follow: below 128 all is well.
    bool is_right = link.level == 5 ? length == 2 || (length > 2 && body[2] < 128) : length == 2;
    if (!is_right) fail("publisher %d: an unexpected packet: %02x", index_, first);
    uint16_t id = get16(body);
    switch (first >> 4) {
        case PUBACK:
            return acknowledged(id, WAITS_PUBACK, FREE);
        case PUBREC: {
            acknowledged(id, WAITS_PUBREC, WAITS_PUBCOMP);
            const uint8_t release[] = {PUBREL << 4 | 2, 2, body[0], body[1]};
            return link.append(release, sizeof release);
        }
        case PUBCOMP:
            return acknowledged(id, WAITS_PUBCOMP, FREE);
        default:
            fail("publisher %d: an unexpected packet: %02x", index_, first);
    }
}
