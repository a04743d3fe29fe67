// A connection that publishes: which message is next, how many may be on their way, acknowledgements.
#pragma once

#include "connection.hpp"
#include "payload.hpp"
#include "plan.hpp"

class Publisher {
  public:
    Publisher(const Options& options, Plan& plan, const Pattern& pattern, int index);

    Connection link;
    int64_t published = 0;    // messages
    int64_t expected = 0;     // deliveries that they have to become
    int64_t outstanding = 0;  // of them, those that have not come yet
    int64_t unacknowledged = 0;

    // Publishes what may go in one write; false: nothing may.
    bool publish_batch(int64_t now);
    // Publishes one message; false: it may not go now.
    bool publish_one(int64_t now);
    // To topic 0; counts as no message.
    void publish_probe();
    void on_packet(uint8_t first, const uint8_t* body, size_t length);

  private:
    enum State : uint8_t { FREE, WAITS_PUBACK, WAITS_PUBREC, WAITS_PUBCOMP };

    Stream& choose();
    bool may_publish(const Stream& stream) const;
    uint8_t* encode(uint8_t* at, Stream& stream, uint32_t stream_index, int64_t now);
    uint8_t* put_packet_id(uint8_t* at, int qos);
    void acknowledged(uint16_t id, State before, State after);

    const Options& options_;
    Plan& plan_;
    const Pattern& pattern_;
    int index_;
    int64_t limit_;            // of outstanding deliveries
    uint64_t turn_ = 0;        // which of its topics is next
    uint32_t chosen_ = 0;
    bool has_chosen_ = false;  // `chosen_` could not go yet
    double fresh_due_ = 0;
    uint16_t next_id_ = 1;
    std::vector<State> ids_;
};
