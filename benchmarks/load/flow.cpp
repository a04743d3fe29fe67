#include "flow.hpp"

#include <algorithm>
#include <cstdio>

#include "cpu.hpp"

namespace {

constexpr int64_t SECOND = 1'000'000'000;
constexpr int64_t PROBE_EVERY = SECOND / 4;
constexpr int64_t SETTLE = 20 * SECOND;     // until messages have to get through to everyone
constexpr int64_t LINGER = SECOND / 10;     // after the last delivery: nothing more may come
constexpr int64_t TICK = SECOND / 100;

int port_of(const std::vector<int>& ports, int index) { return ports[static_cast<size_t>(index) % ports.size()]; }

double microseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000; }

}  // namespace

Flow::Flow(const Options& options)
    : options_(options), plan_(options), pattern_(options.size), epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

void Flow::run() {
    open();
    settle();
    broker_cpu_ = cpu_of(options_.pids);
    own_cpu_ = clock_now(CLOCK_PROCESS_CPUTIME_ID);
    started_ = last_delivery_ = clock_now();
    if (options_.rate > 0)
        publish_at_rate();
    else
        publish();
    drain();
    broker_cpu_ = cpu_of(options_.pids) - broker_cpu_;
    own_cpu_ = clock_now(CLOCK_PROCESS_CPUTIME_ID) - own_cpu_;
    linger(LINGER);
    if (delivered_ != expected()) fail("%ld messages came too much", static_cast<long>(delivered_ - expected()));
    report();
}

void Flow::open() {
    Group* group = options_.mapping == Mapping::shared ? &group_ : nullptr;
    for (int index = 0; index < options_.subscribers; ++index) {
        auto& added = subscribers_.emplace_back(std::make_unique<Subscriber>(options_, plan_, pattern_, group, index));
        const auto& filters = plan_.filters[static_cast<size_t>(index)];
        int port = port_of(options_.subscribe_ports, index);
        added->link.open_session(port, "subscriber-" + std::to_string(index), !options_.durable);
        if (!filters.empty()) added->link.subscribe(filters, options_.subscribe_qos);
    }
    for (int index = 0; index < options_.slow; ++index)
        slow_.push_back(std::make_unique<SlowReader>(options_, plan_, pattern_, index));
    for (int index = 0; index < options_.publishers; ++index) {
        auto& added = publishers_.emplace_back(std::make_unique<Publisher>(options_, plan_, pattern_, index));
        int port = port_of(options_.publish_ports, index);
        added->link.open_session(port, "publisher-" + std::to_string(index), true);
    }
    for (int index = 0; index < options_.churn; ++index) {
        auto& added = churners_.emplace_back(std::make_unique<Churner>(options_, plan_, index));
        added->link.watch(epoll_);
    }
    for (auto& one : subscribers_) {
        one->link.set_blocking(false);
        one->link.watch(epoll_);
    }
    for (auto& one : publishers_) {
        one->link.set_blocking(false);
        one->link.watch(epoll_);
    }
}

bool Flow::is_probed() const {
    if (options_.mapping == Mapping::shared) return is_group_probed();
    for (const auto& publisher : publishers_) {
        int index = publisher->link.index;
        for (const auto& subscriber : subscribers_)
            if (plan_.wants(subscriber->link.index, plan_.stream_of(index, 0, false)) && !subscriber->has_probe(index))
                return false;
    }
    return true;
}

// Each probe goes to one member only.
bool Flow::is_group_probed() const {
    std::vector<bool> heard(publishers_.size(), false);
    for (const auto& subscriber : subscribers_) {
        bool has_any = false;
        for (size_t index = 0; index < heard.size(); ++index)
            if (subscriber->has_probe(static_cast<int>(index))) has_any = heard[index] = true;
        if (!has_any) return false;
    }
    return std::find(heard.begin(), heard.end(), false) == heard.end();
}

// Where several nodes are in between, a granted subscription may not have reached all of them yet.
void Flow::settle() {
    int64_t begin = clock_now();
    while (!is_probed()) {
        if (clock_now() > begin + SETTLE) fail("nothing gets through");
        for (auto& publisher : publishers_) publisher->publish_probe();
        for (int64_t end = clock_now() + PROBE_EVERY; !is_probed() && clock_now() < end;) wait(TICK);
    }
    while (!is_acknowledged()) {
        if (clock_now() > begin + SETTLE) fail("a publish is not acknowledged");
        wait(TICK);
    }
    linger(LINGER);
    for (auto& churner : churners_) churner->subscribe();
}

void Flow::publish() {
    int64_t now = clock_now();
    int64_t end = now + static_cast<int64_t>(options_.seconds * 1e9);
    for (; now < end; now = clock_now()) {
        bool may_more = false;
        for (auto& publisher : publishers_)
            may_more |= options_.batch ? publisher->publish_batch(now) : publisher->publish_one(now);
        wait(may_more ? 0 : TICK);
        give_up();
    }
}

void Flow::publish_at_rate() {
    auto all = static_cast<int64_t>(options_.rate * options_.seconds);
    while (paced_ < all) {
        int64_t now = clock_now();
        int64_t due = started_ + static_cast<int64_t>(static_cast<double>(paced_) * 1e9 / options_.rate);
        auto& publisher = publishers_[static_cast<size_t>(paced_) % publishers_.size()];
        if (due <= now && publisher->publish_one(now)) {
            latest_ = std::max(latest_, now - due);
            ++paced_;
            continue;
        }
        wait(due > now ? std::min(due - now, TICK) : TICK);
        give_up();
    }
}

void Flow::drain() {
    while (delivered_ < expected() || !is_acknowledged()) {
        wait(TICK);
        give_up();
    }
}

void Flow::give_up() const {
    if (delivered_ >= expected() && is_acknowledged()) return;
    if (clock_now() < last_delivery_ + static_cast<int64_t>(options_.patience * 1e9)) return;
    if (options_.mapping == Mapping::shared)
        group_.tell_missing(plan_);
    else
        for (const auto& subscriber : subscribers_) subscriber->tell_missing();
    auto missing = static_cast<long>(expected() - delivered_);
    fail("%ld of %ld deliveries did not come", missing, static_cast<long>(expected()));
}

void Flow::linger(int64_t nanoseconds) {
    int64_t end = clock_now() + nanoseconds;
    for (int64_t now = clock_now(); now < end; now = clock_now()) wait(std::min(end - now, TICK));
}

void Flow::wait(int64_t nanoseconds) {
    epoll_event events[256];
    timespec limit{nanoseconds / SECOND, nanoseconds % SECOND};
    int count = epoll_pwait2(epoll_, events, 256, &limit, nullptr);
    for (int place = 0; place < count; ++place)
        on_ready(*static_cast<Connection*>(events[place].data.ptr), events[place].events);
    if (slow_.empty()) return;
    int64_t now = clock_now();
    for (auto& reader : slow_) reader->tick(scratch_, now);
}

void Flow::on_ready(Connection& link, uint32_t events) {
    if (events & EPOLLOUT) link.flush();
    if (!(events & ~static_cast<uint32_t>(EPOLLOUT))) return;
    auto place = static_cast<size_t>(link.index);
    if (link.role == Role::subscriber) return on_subscriber(*subscribers_[place]);
    if (link.role == Role::publisher) return on_publisher(*publishers_[place]);
    Churner& churner = *churners_[place];
    auto on_packet = [&](uint8_t first, const uint8_t*, size_t) { churner.on_packet(first); };
    if (!link.read(scratch_, on_packet)) fail("churner %d: the broker has closed", link.index);
}

void Flow::on_publisher(Publisher& publisher) {
    auto on_packet = [&](uint8_t first, const uint8_t* body, size_t length) {
        publisher.on_packet(first, body, length);
    };
    if (!publisher.link.read(scratch_, on_packet)) fail("publisher %d: the broker has closed", publisher.link.index);
    publisher.link.flush();
}

void Flow::on_subscriber(Subscriber& subscriber) {
    int64_t now = 0;
    auto on_packet = [&](uint8_t first, const uint8_t* body, size_t length) {
        if (now == 0) now = clock_now();
        if (first >> 4 != PUBLISH) return subscriber.on_other(first, body, length);
        int64_t delay = 0;
        const Stream* stream = subscriber.on_publish(first, body, length, now, &delay);
        if (stream == nullptr) return;
        --publishers_[static_cast<size_t>(stream->publisher)]->outstanding;
        ++delivered_;
        if (options_.rate > 0) delays_.push_back(delay);
    };
    if (!subscriber.link.read(scratch_, on_packet)) fail("subscriber %d: the broker has closed", subscriber.link.index);
    subscriber.link.flush();
    if (now) last_delivery_ = now;
}

bool Flow::is_acknowledged() const {
    for (const auto& publisher : publishers_)
        if (publisher->unacknowledged) return false;
    return true;
}

int64_t Flow::expected() const {
    int64_t sum = 0;
    for (const auto& publisher : publishers_) sum += publisher->expected;
    return sum;
}

void Flow::report() {
    int64_t published = 0, changes = 0, slow = 0;
    for (const auto& publisher : publishers_) published += publisher->published;
    for (const auto& churner : churners_) changes += churner->changes;
    for (const auto& reader : slow_) slow += reader->delivered;
    auto delivered = static_cast<double>(delivered_);
    double seconds = static_cast<double>(last_delivery_ - started_) / 1e9;
    std::printf("{\"published\": %ld, \"delivered\": %ld, \"seconds\": %.4f, \"rate\": %.1f, \"cpu_us\": %.4f, "
                "\"load_cpu_us\": %.4f, \"load_share\": %.3f",
                static_cast<long>(published), static_cast<long>(delivered_), seconds, delivered / seconds,
                microseconds(broker_cpu_) / delivered, microseconds(own_cpu_) / delivered,
                static_cast<double>(own_cpu_) / 1e9 / seconds);
    if (!delays_.empty()) {
        std::sort(delays_.begin(), delays_.end());
        std::printf(", \"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f, \"late_us\": %.1f",
                    microseconds(delays_[delays_.size() / 2]), microseconds(delays_[delays_.size() * 99 / 100]),
                    microseconds(delays_.back()), microseconds(latest_));
    }
    if (!churners_.empty()) std::printf(", \"changes\": %ld", static_cast<long>(changes));
    if (!slow_.empty()) std::printf(", \"slow_delivered\": %ld", static_cast<long>(slow));
    std::printf("}\n");
}
