// Clients that are there while others are measured: one reads slowly, one changes its subscriptions.
#pragma once

#include "connection.hpp"
#include "payload.hpp"
#include "plan.hpp"

// Takes everything at QoS 0 and reads less than comes: what it gets is in order, some may be missing.
class SlowReader {
  public:
    SlowReader(const Options& options, const Plan& plan, const Pattern& pattern, int index);
    // Reads what it may have read by now; to be called every few milliseconds.
    void tick(Scratch& scratch, int64_t now);

    int64_t delivered = 0;

  private:
    void on_publish(uint8_t first, const uint8_t* body, size_t length);

    const Options& options_;
    const Pattern& pattern_;
    Connection link_;
    int64_t started_ = 0;
    int64_t read_ = 0;
    std::vector<uint32_t> next_;  // of each stream: the least number that may come
};

// Subscribes, unsubscribes, subscribes to something else; every other filter matches messages of the run.
class Churner {
  public:
    Churner(const Options& options, const Plan& plan, int index);
    void subscribe();
    void on_packet(uint8_t first);

    Connection link;
    int64_t changes = 0;

  private:
    const Plan& plan_;
    std::string filter_;
    uint32_t turn_ = 0;
};
