// Trees of topics: which filters match one, and which of some apexes encloses it.

#pragma once

#include <string>

#include "tables.hpp"

namespace txbroker {

// The levels of filters. At each filter's last level stands its number, which is the caller's.
// Nothing recurses: a topic may have 65,535 levels.
class Filters {
    static constexpr size_t NEAR = 16;

    struct Node {
        uint32_t parent, plus = NONE, hash = NONE, children = 0, number = NONE, size = 0;
        union {
            Byte near[NEAR];  // the text of a level as long as this, which most are
            Byte* far;
        };

        const Byte* text() const { return size <= NEAR ? near : far; }
    };

    std::vector<Node> nodes_;  // the root is the first
    uint32_t unused_ = NONE;  // nodes that may be used again, each the `parent` of the one before
    size_t count_ = 0;
    Table children_;  // by parent and text; wildcards stand at the parent itself
    std::vector<uint32_t> reached_, below_;  // while `match` runs

    static uint64_t hash_below(uint32_t parent, uint64_t hash) {
        return mix(hash ^ seeds[0], parent + seeds[1]);
    }

    uint32_t child(uint32_t parent, const Byte* text, size_t size, uint64_t hash) const {
        return children_.find(hash_below(parent, hash), [&](uint32_t one) {
            const Node& node = nodes_[one];
            return node.parent == parent && node.size == size &&
                   !std::memcmp(node.text(), text, size);
        });
    }

    uint32_t make(uint32_t parent, const Byte* text, size_t size) {
        uint32_t made = unused_;
        if (made == NONE) {
            made = static_cast<uint32_t>(nodes_.size());
            nodes_.emplace_back();
        } else {
            unused_ = nodes_[made].parent;
            nodes_[made] = Node();
        }
        ++count_;
        Node& node = nodes_[made];
        node.parent = parent;
        if (size > NEAR) node.far = new Byte[size];
        node.size = static_cast<uint32_t>(size);
        std::memcpy(const_cast<Byte*>(node.text()), text, size);
        return made;
    }

    uint32_t* wildcard(uint32_t parent, const Byte* text, size_t size) {
        if (size != 1) return nullptr;
        if (*text == '+') return &nodes_[parent].plus;
        return *text == '#' ? &nodes_[parent].hash : nullptr;
    }

    void note(uint32_t node, std::vector<uint32_t>& found) const {
        if (node != NONE && nodes_[node].number != NONE) found.push_back(nodes_[node].number);
    }

public:
    Filters() {
        nodes_.emplace_back();
        nodes_[0].parent = NONE;
    }
    Filters(const Filters&) = delete;
    Filters& operator=(const Filters&) = delete;
    ~Filters() {
        for (Node& node : nodes_)
            if (node.size > NEAR) delete[] node.far;
    }

    // How many levels there are, the root not counted.
    size_t count() const { return count_; }

    // The last node of a filter, made with all above where they are missing.
    uint32_t reach(const Byte* at, size_t size) {
        uint32_t node = 0;
        for (const Byte* end = at + size;; ++at) {
            const Byte* stop = level_end(at, end);
            size_t length = stop - at;
            uint32_t next;
            if (wildcard(node, at, length)) {
                next = *wildcard(node, at, length);
                if (next == NONE) {
                    next = make(node, at, length);
                    *wildcard(node, at, length) = next;
                    ++nodes_[node].children;
                }
            } else {
                uint64_t hash = hash_of(at, length);
                next = child(node, at, length, hash);
                if (next == NONE) {
                    next = make(node, at, length);
                    children_.insert(hash_below(node, hash), next);
                    ++nodes_[node].children;
                }
            }
            node = next;
            at = stop;
            if (at == end) return node;
        }
    }

    void set_number(uint32_t node, uint32_t number) { nodes_[node].number = number; }

    // Take the number off a node, and each branch away that is empty then.
    void prune(uint32_t at) {
        nodes_[at].number = NONE;
        while (at && nodes_[at].number == NONE && !nodes_[at].children) {
            Node& node = nodes_[at];
            uint32_t parent = node.parent;
            if (uint32_t* place = wildcard(parent, node.text(), node.size))
                *place = NONE;
            else
                children_.erase(hash_below(parent, hash_of(node.text(), node.size)), at);
            if (node.size > NEAR) delete[] node.far;
            node.size = 0;
            node.parent = unused_;
            unused_ = at;
            --count_;
            --nodes_[parent].children;
            at = parent;
        }
    }

    // The numbers of all filters that match a topic, each once.
    void match(const Byte* at, size_t size, std::vector<uint32_t>& found) {
        found.clear();
        const Byte* end = at + size;
        bool is_shared = !size || *at != '$';  // [MQTT-4.7.2-1] wildcards do not match $ topics
        reached_.assign(1, 0);
        for (;; ++at) {
            const Byte* stop = level_end(at, end);
            uint64_t hash = hash_of(at, stop - at);
            below_.clear();
            for (uint32_t one : reached_) {
                if (is_shared) note(nodes_[one].hash, found);
                uint32_t next = child(one, at, stop - at, hash);
                if (next != NONE) below_.push_back(next);
                if (is_shared && nodes_[one].plus != NONE) below_.push_back(nodes_[one].plus);
            }
            reached_.swap(below_);
            is_shared = true;
            at = stop;
            if (at == end || reached_.empty()) break;
        }
        for (uint32_t one : reached_) {
            note(one, found);
            note(nodes_[one].hash, found);  // `a/#` stands for `a` too (section 4.7.1.2)
        }
    }
};

// Sets of numbers, by number: what filters match is the same for most topics.
class Sets {
    struct Range {
        size_t start, size;
    };
    std::vector<uint32_t> members_;
    std::vector<Range> sets_;
    Table table_;

public:
    size_t count() const { return sets_.size(); }
    size_t bytes() const {
        return members_.size() * 4 + sets_.size() * sizeof(Range) + table_.bytes();
    }
    const uint32_t* members(uint32_t set) const { return members_.data() + sets_[set].start; }
    size_t size(uint32_t set) const { return sets_[set].size; }

    // The number of a set, which is kept where it is new.
    uint32_t number_of(const std::vector<uint32_t>& wanted) {
        size_t size = wanted.size(), bytes = size * 4;
        uint64_t hash = hash_of(reinterpret_cast<const Byte*>(wanted.data()), bytes);
        uint32_t number = table_.find(hash, [&](uint32_t one) {
            return sets_[one].size == size &&
                   (!size || !std::memcmp(members(one), wanted.data(), bytes));
        });
        if (number != NONE) return number;
        number = static_cast<uint32_t>(sets_.size());
        sets_.push_back({members_.size(), size});
        members_.insert(members_.end(), wanted.begin(), wanted.end());
        table_.insert(hash, number);
        return number;
    }

    void clear() {
        members_ = {};
        sets_ = {};
        table_.clear();
    }
};

// Apexes by number. An apex's hash goes on from that of its upper levels, so all prefixes of a topic
// are looked up in one walk over it.
class Prefixes {
    std::vector<std::string> texts_;
    Table table_;
    size_t longest_ = 0;
    uint32_t root_ = NONE;

    static uint64_t hash_from(const Byte* at, size_t size) {
        uint64_t hash = 0;
        for (const Byte* end = at + size;; ++at) {
            const Byte* stop = level_end(at, end);
            hash = hash_of(at, stop - at, hash);
            at = stop;
            if (at == end) return hash;
        }
    }

public:
    // Put in one that is not there, by a number that is free.
    void insert(const Byte* text, size_t size, uint32_t number) {
        if (texts_.size() <= number) texts_.resize(number + 1);
        texts_[number].assign(reinterpret_cast<const char*>(text), size);
        if (size)
            table_.insert(hash_from(text, size), number);
        else
            root_ = number;
        longest_ = std::max(longest_, size);
    }

    void erase(uint32_t number) {
        std::string text;
        text.swap(texts_[number]);
        if (text.empty())
            root_ = NONE;
        else
            table_.erase(hash_from(reinterpret_cast<const Byte*>(text.data()), text.size()), number);
        if (!table_.count()) longest_ = 0;
    }

    // The deepest one that encloses a topic, or NONE.
    uint32_t find(const Byte* topic, size_t size) const {
        uint32_t deepest = root_;
        if (!table_.count()) return deepest;
        uint64_t hash = 0;
        for (const Byte *at = topic, *end = topic + size;; ++at) {
            const Byte* stop = level_end(at, end);
            size_t length = stop - topic;
            if (length > longest_) return deepest;
            hash = hash_of(at, stop - at, hash);
            uint32_t number = table_.find(hash, [&](uint32_t one) {
                return texts_[one].size() == length &&
                       !std::memcmp(texts_[one].data(), topic, length);
            });
            if (number != NONE) deepest = number;
            at = stop;
            if (at == end) return deepest;
        }
    }
};

}  // namespace txbroker
