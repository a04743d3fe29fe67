// Connections that come, and stay or go: the modes `connect`, `cycle` and `idle`.
#pragma once

#include <deque>

#include "connection.hpp"
#include "payload.hpp"

class Storm {
  public:
    explicit Storm(const Options& options);
    // Prints one JSON object. `idle` goes on to keep the connections until stdin ends.
    void run();

  private:
    enum class Step { connecting, subscribing, publishing, leaving, done };
    struct Guest {
        explicit Guest(int index) : link(Role::guest, index) {}
        Connection link;
        Step step = Step::connecting;
        int64_t began = 0;
    };

    void make_guests();
    void begin_next();
    void on_packet(Guest& guest, uint8_t first, const uint8_t* body, size_t length);
    void on_connected(Guest& guest);
    void publish(Guest& guest);
    void on_publish(Guest& guest, uint8_t first, const uint8_t* body, size_t length);
    void on_closed(Guest& guest);
    void finish(Guest& guest);
    void wait();
    std::string topic_of(const Guest& guest) const;
    void report(int64_t took, int64_t broker_cpu, int64_t own_cpu) const;

    const Options& options_;
    Pattern pattern_;
    Scratch scratch_;
    int epoll_;
    bool stays_;
    std::deque<Guest> guests_;
    size_t begun_ = 0;
    int done_ = 0;
    int64_t last_progress_ = 0;
    mutable std::vector<int64_t> delays_;  // nanoseconds from the start of each to its end
};
