// Which topics there are, who publishes to them and who has to get what: decided before the run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options.hpp"
#include "packets.hpp"

constexpr size_t DIGITS = 8;  // the number at the end of a topic that is used once

// The messages of a publisher to one topic, which have to arrive in order; or, if `fresh`, those to
// topics that differ in the digits at their end: each of these topics is used once.
struct Stream {
    Bytes head;            // of its PUBLISH packets; with the topic at its end
    std::string topic;
    bool fresh = false;
    int qos = 0;
    int publisher = 0;
    uint32_t sent = 0;
    int64_t receivers = 0;  // how many subscribers have to get each of its messages
};

class Plan {
  public:
    explicit Plan(const Options& options);

    std::vector<Stream> streams;
    Bytes properties;  // of each message, with their length; nothing at level 4
    std::vector<std::vector<std::string>> filters;  // of each subscriber

    uint32_t stream_of(int publisher, int topic, bool fresh) const {
        return static_cast<uint32_t>((publisher * options_.topics + topic) * 2 + fresh);
    }

    // Whether the filters of a subscriber match the topics of a stream; with the mapping shared another
    // subscriber may get the message.
    bool wants(int subscriber, uint32_t stream) const;

  private:
    void make_streams();
    void make_filters();
    const std::string& prefix_of(int publisher) const {
        return options_.prefixes[static_cast<size_t>(publisher) % options_.prefixes.size()];
    }

    const Options& options_;
};

inline uint8_t hex_digit(uint32_t value) {
    value &= 15;
    return static_cast<uint8_t>(value < 10 ? '0' + value : 'a' + value - 10);
}

inline void put_digits(uint8_t* at, uint32_t value) {
    for (size_t place = 0; place < DIGITS; ++place) at[place] = hex_digit(value >> (28 - 4 * place));
}
