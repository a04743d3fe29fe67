#include "relay.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

Relay::Relay(const Options& options)
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    int on = 1;
    setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(options.publish_ports[0]));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) || listen(listener_, 1000))
        fail("the port is taken: %s", std::strerror(errno));
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, listener_, &event);
}

void Relay::run() {
    for (;;) {
        epoll_event events[256];
        int count = epoll_wait(epoll_, events, 256, -1);
        for (int place = 0; place < count; ++place) {
            auto* link = static_cast<Connection*>(events[place].data.ptr);
            if (link == nullptr)
                accept_one();
            else
                on_ready(*peers_[static_cast<size_t>(link->index)], events[place].events);
        }
    }
}

void Relay::accept_one() {
    int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    auto& peer = peers_.emplace_back(std::make_unique<Peer>(static_cast<int>(peers_.size())));
    peer->link.fd = fd;
    peer->link.watch(epoll_);
}

void Relay::on_ready(Peer& peer, uint32_t events) {
    if (events & EPOLLOUT) peer.link.flush();
    if (!(events & ~static_cast<uint32_t>(EPOLLOUT))) return;
    bool is_open;
    if (peer.publishes) {
        is_open = forward(peer);
    } else {
        auto handle = [&](uint8_t first, const uint8_t* body, size_t length) { on_packet(peer, first, body, length); };
        is_open = peer.link.read(scratch_, handle);
        if (is_open) peer.link.flush();
    }
    if (!is_open) leave(peer);
}

void Relay::leave(Peer& peer) {
    peer.link.close();
    peer.prefixes.clear();
    for (auto& other : peers_)
        other->targets.erase(std::remove(other->targets.begin(), other->targets.end(), &peer), other->targets.end());
}

bool Relay::forward(Peer& peer) {
    ssize_t count = ::read(peer.link.fd, scratch_.data(), READ_SIZE);
    if (count < 0 && errno == EAGAIN) return true;
    if (count <= 0) return false;
    for (Peer* target : peer.targets) {
        target->link.append(scratch_.data(), static_cast<size_t>(count));
        target->link.flush();
    }
    return true;
}

void Relay::on_packet(Peer& peer, uint8_t first, const uint8_t* body, size_t length) {
    static const Bytes accepted{CONNACK << 4, 2, 0, 0};
    switch (first >> 4) {
        case CONNECT: return peer.link.append(accepted);
        case SUBSCRIBE: return on_subscribe(peer, body, length);
        case PUBLISH: return on_first_publish(peer, body, length);
        default: return;
    }
}

void Relay::on_subscribe(Peer& peer, const uint8_t* body, size_t length) {
    Bytes codes{body[0], body[1]};
    for (size_t at = 2; at + 2 < length; at += 3 + get16(body + at)) {
        std::string filter(reinterpret_cast<const char*>(body + at + 2), get16(body + at));
        peer.prefixes.push_back(filter.substr(0, filter.size() - 1));
        codes.push_back(0);
    }
    peer.link.append(packet(SUBACK << 4, codes));
}

// It is a probe, which comes alone, so what follows begins with a packet.
void Relay::on_first_publish(Peer& peer, const uint8_t* body, size_t length) {
    std::string topic(reinterpret_cast<const char*>(body + 2), get16(body));
    for (auto& other : peers_)
        for (const auto& prefix : other->prefixes)
            if (topic.compare(0, prefix.size(), prefix) == 0) peer.targets.push_back(other.get());
    peer.publishes = true;
    Bytes whole = packet(PUBLISH << 4, Bytes(body, body + length));
    for (Peer* target : peer.targets) {
        target->link.append(whole);
        target->link.flush();
    }
}
