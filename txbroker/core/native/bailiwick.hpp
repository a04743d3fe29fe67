// The topics that the owner at the other end of a link answers for (`reference.bailiwick`).

#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "bytes.hpp"

namespace txbroker {

class Bailiwick {
    std::string apex_;
    std::vector<std::string> cuts_;  // with slashes at their ends
    mutable std::string key_;  // so that no topic costs memory

public:
    void set(const std::string& apex) {
        apex_ = apex;
        cuts_.clear();
    }

    void put(std::string key) {
        key += '/';
        auto begin = std::upper_bound(cuts_.begin(), cuts_.end(), key), end = begin;
        if (begin != cuts_.begin() && key.starts_with(*std::prev(begin))) return;
        while (end != cuts_.end() && end->starts_with(key)) ++end;
        cuts_.insert(cuts_.erase(begin, end), key);
    }

    void drop(std::string key) {
        key += '/';
        auto at = std::lower_bound(cuts_.begin(), cuts_.end(), key);
        if (at != cuts_.end() && *at == key) cuts_.erase(at);
    }

    bool has(const Byte* topic, size_t size) const {
        size_t most = apex_.size();
        if (most && !is_below(topic, size, most)) return false;
        if (cuts_.empty()) return true;
        key_.assign(reinterpret_cast<const char*>(topic), size);
        key_ += '/';
        auto at = std::upper_bound(cuts_.begin(), cuts_.end(), key_);
        return at == cuts_.begin() || !key_.starts_with(*std::prev(at));
    }

private:
    bool is_below(const Byte* topic, size_t size, size_t most) const {
        if (size < most || (size > most && topic[most] != '/')) return false;
        return are_same(topic, reinterpret_cast<const Byte*>(apex_.data()), most);
    }
};

}  // namespace txbroker
