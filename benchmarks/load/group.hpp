// Which messages have come to some member of the group of the mapping shared.
#pragma once

#include <algorithm>
#include <cstdio>
#include <vector>

#include "plan.hpp"

class Group {
  public:
    // Notes that a message has come; false: it has come before.
    bool take(uint32_t stream, uint32_t number) {
        if (stream >= taken_.size()) taken_.resize(stream + 1);
        auto& numbers = taken_[stream];
        if (number >= numbers.size()) numbers.resize(std::max<size_t>(number + 1, numbers.size() * 2), false);
        if (numbers[number]) return false;
        return numbers[number] = true;
    }

    // One line for each of the first streams of which messages are missing.
    void tell_missing(const Plan& plan) const {
        constexpr int LINES = 5;
        int lines = 0;
        for (uint32_t stream = 0; stream < plan.streams.size() && lines < LINES; ++stream) {
            const Stream& sent = plan.streams[stream];
            uint32_t number = 0;
            while (number < sent.sent && has(stream, number)) ++number;
            if (number == sent.sent) continue;
            std::fprintf(stderr, "load: message %u of %s has come to no member\n", number, sent.topic.c_str());
            ++lines;
        }
    }

  private:
    bool has(uint32_t stream, uint32_t number) const {
        return stream < taken_.size() && number < taken_[stream].size() && taken_[stream][number];
    }

    std::vector<std::vector<bool>> taken_;
};
