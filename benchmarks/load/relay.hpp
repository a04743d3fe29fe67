// No broker, only what the generator itself can do: the mode `relay` hands the bytes of a publisher on
// to the subscribers of its first topic, without looking at them. For QoS 0 and one publisher for
// each subscriber, since packets of two publishers would be mixed.
#pragma once

#include <memory>

#include "connection.hpp"

class Relay {
  public:
    explicit Relay(const Options& options);
    void run();  // until it is killed

  private:
    struct Peer {
        explicit Peer(int index) : link(Role::guest, index) {}
        Connection link;
        std::vector<std::string> prefixes;  // its filters without the `#`
        std::vector<Peer*> targets;
        bool publishes = false;
    };

    void accept_one();
    void on_ready(Peer& peer, uint32_t events);
    void leave(Peer& peer);
    bool forward(Peer& peer);
    void on_packet(Peer& peer, uint8_t first, const uint8_t* body, size_t length);
    void on_subscribe(Peer& peer, const uint8_t* body, size_t length);
    void on_first_publish(Peer& peer, const uint8_t* body, size_t length);

    Scratch scratch_;
    int epoll_;
    int listener_;
    std::vector<std::unique_ptr<Peer>> peers_;
};
