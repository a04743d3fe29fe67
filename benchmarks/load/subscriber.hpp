// A connection that subscribes and checks what comes: everything once, in order, byte by byte.
// A member of a group gets its share, in order.
#pragma once

#include <unordered_set>

#include "connection.hpp"
#include "group.hpp"
#include "payload.hpp"
#include "plan.hpp"

class Subscriber {
  public:
    Subscriber(const Options& options, const Plan& plan, const Pattern& pattern, Group* group, int index);

    Connection link;

    // A delivery of this stream, already checked; null: it was a probe, or is not counted.
    // `delay` is set to the nanoseconds since it was made.
    const Stream* on_publish(uint8_t first, const uint8_t* body, size_t length, int64_t now, int64_t* delay);
    // PUBREL; everything else is an error.
    void on_other(uint8_t first, const uint8_t* body, size_t length);
    bool has_probe(int publisher) const { return probed_[static_cast<size_t>(publisher)]; }
    // What is missing, one line for each stream; returns the number of messages.
    int64_t tell_missing() const;

  private:
    static constexpr uint32_t UNWANTED = UINT32_MAX;

    const uint8_t* acknowledge(uint8_t first, const uint8_t* at);
    void answer(Kind kind, const uint8_t* id);
    void check_properties(const uint8_t* properties) const;
    void check_topic(const Stream& stream, uint32_t number, const uint8_t* topic, size_t length) const;
    void count_shared(uint32_t stream, uint32_t number);
    void catch_up(uint32_t stream);
    void count_out_of_turn(uint32_t stream, uint32_t number);

    const Options& options_;
    const Plan& plan_;
    const Pattern& pattern_;
    Group* group_;  // that it is a member of, or null
    int index_;
    Bytes properties_;                   // that each message has to come with
    std::vector<uint32_t> next_;         // of each stream: the number that has to come
    std::unordered_set<uint64_t> early_;  // of topics used once: what came before its turn
    std::vector<bool> probed_;           // of each publisher
    std::vector<bool> unreleased_;       // packet ids of QoS 2 between PUBREC and PUBREL
};
