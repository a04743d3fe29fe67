// Publishers and subscribers with everything checked: the mode `flow`.
#pragma once

#include <memory>

#include "background.hpp"
#include "group.hpp"
#include "publisher.hpp"
#include "subscriber.hpp"

class Flow {
  public:
    explicit Flow(const Options& options);
    // Prints one JSON object; ends the process when anything is lost, doubled, out of order or damaged.
    void run();

  private:
    void open();
    void settle();
    void publish();
    void publish_at_rate();
    void drain();
    void linger(int64_t nanoseconds);
    void wait(int64_t nanoseconds);
    void on_ready(Connection& link, uint32_t events);
    void on_publisher(Publisher& publisher);
    void on_subscriber(Subscriber& subscriber);
    void report();
    bool is_acknowledged() const;
    bool is_probed() const;
    bool is_group_probed() const;
    int64_t expected() const;
    void give_up() const;

    const Options& options_;
    Plan plan_;
    Pattern pattern_;
    Group group_;  // of the subscribers, with the mapping shared
    Scratch scratch_;
    int epoll_;
    std::vector<std::unique_ptr<Publisher>> publishers_;
    std::vector<std::unique_ptr<Subscriber>> subscribers_;
    std::vector<std::unique_ptr<SlowReader>> slow_;
    std::vector<std::unique_ptr<Churner>> churners_;

    int64_t delivered_ = 0;
    int64_t started_ = 0;
    int64_t last_delivery_ = 0;
    int64_t paced_ = 0;         // messages that were due at the rate and have been published
    int64_t latest_ = 0;        // how much later than due one of them was, at most
    int64_t broker_cpu_ = 0;
    int64_t own_cpu_ = 0;
    std::vector<int64_t> delays_;  // with a rate: nanoseconds of each delivery
};
