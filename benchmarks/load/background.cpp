#include "background.hpp"

#include <sys/socket.h>

#include <algorithm>

SlowReader::SlowReader(const Options& options, const Plan& plan, const Pattern& pattern, int index)
    : options_(options), pattern_(pattern), link_(Role::guest, index), next_(plan.streams.size(), 0) {
    auto ports = options.subscribe_ports;
    link_.open_session(ports[static_cast<size_t>(index) % ports.size()], "slow-" + std::to_string(index), true);
    std::vector<std::string> filters;
    for (const auto& prefix : options.prefixes) filters.push_back(prefix + "/#");
    link_.subscribe(filters, 0);
    link_.set_blocking(false);
    // What the kernel takes for it is soon full.
    int bytes = 16 * 1024;
    setsockopt(link_.fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

void SlowReader::tick(Scratch& scratch, int64_t now) {
    if (started_ == 0) started_ = now;
    int64_t allowed = (now - started_) / 1000 * options_.slow_rate / 1'000'000 - read_;
    if (allowed < 512) return;
    auto most = std::min(static_cast<size_t>(allowed), READ_SIZE);
    read_ += static_cast<int64_t>(most);
    auto on_packet = [this](uint8_t first, const uint8_t* body, size_t length) { on_publish(first, body, length); };
    if (!link_.read(scratch, on_packet, most)) fail("slow reader %d: the broker has closed", link_.index);
}

void SlowReader::on_publish(uint8_t first, const uint8_t* body, size_t length) {
    size_t topic = length < 2 ? length : get16(body);
    if (first >> 4 != PUBLISH || length != 2 + topic + options_.size)
        fail("slow reader %d: an unexpected packet: %02x", link_.index, first);
    Stamp stamp;
    std::memcpy(&stamp, body + 2 + topic, sizeof stamp);
    if (!pattern_.is_right(body + 2 + topic, stamp)) fail("slow reader %d: a payload is damaged", link_.index);
    ++delivered;
    if (stamp.stream >= next_.size()) return;
    if (stamp.number < next_[stamp.stream])
        fail("slow reader %d: message %u came in the place of %u", link_.index, stamp.number, next_[stamp.stream]);
    next_[stamp.stream] = stamp.number + 1;
}

Churner::Churner(const Options& options, const Plan& plan, int index) : link(Role::churner, index), plan_(plan) {
    auto ports = options.subscribe_ports;
    link.open_session(ports[static_cast<size_t>(index) % ports.size()], "churn-" + std::to_string(index), true);
    link.set_blocking(false);
}

void Churner::subscribe() {
    ++turn_;
    const std::string& topic = plan_.streams[turn_ % plan_.streams.size()].topic;
    filter_ = turn_ % 2 ? "churn/+/" + std::to_string(turn_) : topic.substr(0, topic.rfind('/')) + "/+";
    link.append(subscribe_packet(1, {filter_}, 0));
    link.flush();
}

void Churner::on_packet(uint8_t first) {
    if (first >> 4 == PUBLISH) return;
    ++changes;
    if (first >> 4 == UNSUBACK) return subscribe();
    if (first >> 4 != SUBACK) fail("churner %d: an unexpected packet: %02x", link.index, first);
    link.append(unsubscribe_packet(2, filter_));
    link.flush();
}
