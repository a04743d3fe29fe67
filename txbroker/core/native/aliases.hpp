// Topic aliases of what goes to a client (`reference.aliases`).

#pragma once

#include <algorithm>
#include <string>
#include <unordered_map>

#include "packets.hpp"

namespace txbroker {

class Aliases {
    static constexpr size_t LEAST = 4, LONGEST = 1024, SPARE = 64, MOST_BYTES = 16 * 1024;

    std::unordered_map<std::string, uint16_t> known_;  // 0: the topic has come once
    uint16_t most_, last_ = 0;
    size_t bytes_ = 0;  // of known topics

    void forget_spare() {
        std::erase_if(known_, [this](const auto& one) {
            if (!one.second) bytes_ -= one.first.size();
            return !one.second;
        });
    }

    // The alias of a topic that comes now, 0 for none; whether the client has yet to be told.
    uint16_t find(std::string topic, bool& is_new) {
        auto found = known_.find(topic);
        if (found == known_.end()) {
            if (last_ == most_) return 0;
            const bool is_large = bytes_ + topic.size() > MOST_BYTES;
            if (is_large || known_.size() >= size_t(most_) + SPARE) forget_spare();
            if (bytes_ + topic.size() > MOST_BYTES) return 0;
            bytes_ += topic.size();
            known_.emplace(std::move(topic), 0);
            return 0;
        }
        is_new = !found->second;
        if (is_new && last_ < most_) found->second = ++last_;
        return found->second;
    }

public:
    static constexpr size_t GROWTH = 5;  // bytes of a packet that tells an alias, at most

    explicit Aliases(uint16_t most) : most_(most) {}

    // Write a PUBLISH of level 5 and QoS 0 with an alias; false: it goes as it is.
    bool put(const Byte* packet, size_t size, std::string& made) {
        size_t at = 1;
        while (packet[at++] > 127) {}
        const size_t topic_size = packet[at] << 8 | packet[at + 1], topic = at + 2;
        if (topic_size < LEAST || topic_size > LONGEST) return false;
        bool is_new = false;
        const char* text = reinterpret_cast<const char*>(packet);
        const uint16_t alias = find(std::string(text + topic, topic_size), is_new);
        if (!alias) return false;
        size_t list = topic + topic_size, properties;
        if (!cut_list(packet, size, list, properties)) return false;
        const size_t told = is_new ? topic_size : 0, listed = list - properties + 3;
        const size_t rest = 2 + told + length_size(listed) + listed + size - list;
        char head[8];
        made.assign(text, 1);
        made.append(head, put_length(head, rest) - head);
        put_two(head, told);
        made.append(head, 2).append(text + topic, told);
        made.append(head, put_length(head, listed) - head);
        head[0] = 0x23;
        put_two(head + 1, alias);
        made.append(head, 3).append(text + properties, size - properties);
        return true;
    }
};

}  // namespace txbroker
