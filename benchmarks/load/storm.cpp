#include "storm.hpp"

#include <algorithm>
#include <cstdio>

#include "cpu.hpp"

namespace {

constexpr int SOURCES = 20;  // addresses to come from, as one has only 28,000 ports
constexpr int TICK_MS = 100;

double microseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000; }

}  // namespace

Storm::Storm(const Options& options)
    : options_(options),
      pattern_(options.size),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      stays_(options.mode != "cycle") {}

void Storm::run() {
    make_guests();
    int64_t broker_cpu = cpu_of(options_.pids), own_cpu = clock_now(CLOCK_PROCESS_CPUTIME_ID);
    int64_t begin = last_progress_ = clock_now();
    for (int count = 0; count < options_.parallel; ++count) begin_next();
    while (done_ < options_.connections) wait();
    int64_t took = clock_now() - begin;
    own_cpu = clock_now(CLOCK_PROCESS_CPUTIME_ID) - own_cpu;
    report(took, cpu_of(options_.pids) - broker_cpu, own_cpu);
    std::fflush(stdout);
    if (options_.mode == "idle")
        for (char byte; ::read(0, &byte, 1) > 0;) continue;
    for (auto& guest : guests_)
        if (guest.link.fd >= 0) guest.link.reset();
}

// Before the clock runs: making a socket takes a sixth of what a connection takes at this end.
void Storm::make_guests() {
    for (int index = 0; index < options_.connections; ++index) {
        guests_.emplace_back(index).link.make(1 + index % SOURCES);
        guests_.back().link.append(connect_packet("guest-" + std::to_string(index), !options_.durable));
    }
}

void Storm::begin_next() {
    if (begun_ == guests_.size()) return;
    Guest& guest = guests_[begun_];
    const auto& ports = options_.publish_ports;
    guest.began = clock_now();
    guest.link.open(ports[begun_++ % ports.size()]);
    guest.link.watch(epoll_);
    guest.link.flush();
}

void Storm::wait() {
    epoll_event events[256];
    int count = epoll_wait(epoll_, events, 256, TICK_MS);
    for (int place = 0; place < count; ++place) {
        auto& link = *static_cast<Connection*>(events[place].data.ptr);
        Guest& guest = guests_[static_cast<size_t>(link.index)];
        if (events[place].events & EPOLLOUT) link.flush();
        if (!(events[place].events & ~static_cast<uint32_t>(EPOLLOUT))) continue;
        auto handle = [&](uint8_t first, const uint8_t* body, size_t length) {
            on_packet(guest, first, body, length);
        };
        if (!link.read(scratch_, handle)) on_closed(guest);
        if (link.fd >= 0) link.flush();
    }
    if (count > 0) last_progress_ = clock_now();
    if (clock_now() > last_progress_ + static_cast<int64_t>(options_.patience * 1e9))
        fail("%d of %d connections do not get on", options_.connections - done_, options_.connections);
}

std::string Storm::topic_of(const Guest& guest) const {
    return options_.prefixes[0] + "/guest/" + std::to_string(guest.link.index);
}

void Storm::on_packet(Guest& guest, uint8_t first, const uint8_t* body, size_t length) {
    Kind kind = static_cast<Kind>(first >> 4);
    if (guest.step == Step::connecting && kind == CONNACK && length == 2 && body[1] == 0) return on_connected(guest);
    if (guest.step == Step::subscribing && kind == SUBACK && length == 3 && body[2] < 3) {
        if (stays_) return finish(guest);
        return publish(guest);
    }
    if (guest.step == Step::publishing && kind == PUBLISH) return on_publish(guest, first, body, length);
    if (kind == PUBACK && guest.step >= Step::publishing) return;
    fail("connection %d: an unexpected packet: %02x", guest.link.index, first);
}

void Storm::on_connected(Guest& guest) {
    if (options_.mode == "connect") return finish(guest);
    guest.step = Step::subscribing;
    guest.link.append(subscribe_packet(1, {topic_of(guest)}, options_.qos));
}

void Storm::publish(Guest& guest) {
    guest.step = Step::publishing;
    Bytes head = publish_head(topic_of(guest), options_.qos, options_.size);
    guest.link.append(head);
    const uint8_t id[] = {0, 1};
    if (options_.qos) guest.link.append(id, sizeof id);
    Bytes payload(options_.size);
    pattern_.write(payload.data(), {static_cast<uint32_t>(guest.link.index), 0, guest.began});
    guest.link.append(payload);
}

void Storm::on_publish(Guest& guest, uint8_t first, const uint8_t* body, size_t length) {
    int qos = first >> 1 & 3;
    std::string topic = topic_of(guest);
    Stamp stamp{static_cast<uint32_t>(guest.link.index), 0, guest.began};
    const uint8_t* payload = body + 2 + topic.size() + (qos ? 2 : 0);
    bool is_right = qos == options_.qos && length == static_cast<size_t>(payload - body) + options_.size &&
                    std::memcmp(body + 2, topic.data(), topic.size()) == 0 &&
                    std::memcmp(payload, &stamp, sizeof stamp) == 0 && pattern_.is_right(payload, stamp);
    if (!is_right) fail("connection %d: not the message that it published", guest.link.index);
    if (qos == 1) {
        const uint8_t answer[] = {PUBACK << 4, 2, payload[-2], payload[-1]};
        guest.link.append(answer, sizeof answer);
    }
    guest.step = Step::leaving;
    guest.link.append(DISCONNECT_PACKET, sizeof DISCONNECT_PACKET);
}

void Storm::on_closed(Guest& guest) {
    if (guest.step != Step::leaving) fail("connection %d: the broker has closed", guest.link.index);
    guest.link.close();
    finish(guest);
}

void Storm::finish(Guest& guest) {
    guest.step = Step::done;
    delays_.push_back(clock_now() - guest.began);
    ++done_;
    begin_next();
}

void Storm::report(int64_t took, int64_t broker_cpu, int64_t own_cpu) const {
    std::sort(delays_.begin(), delays_.end());
    double seconds = static_cast<double>(took) / 1e9;
    std::printf("{\"connections\": %d, \"seconds\": %.4f, \"rate\": %.1f, \"cpu_us\": %.3f, "
                "\"load_cpu_us\": %.3f, \"load_share\": %.3f, "
                "\"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f}\n",
                done_, seconds, done_ / seconds, microseconds(broker_cpu) / done_,
                microseconds(own_cpu) / done_, microseconds(own_cpu) / 1e6 / seconds,
                microseconds(delays_[delays_.size() / 2]), microseconds(delays_[delays_.size() * 99 / 100]),
                microseconds(delays_.back()));
}
