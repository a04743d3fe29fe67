// The tree of levels of filters and apexes.

#pragma once

#include "tables.hpp"

namespace txbroker {

// The kinds of numbers that a node of the tree has; the numbers are the caller's.
enum Kind { ROUTE, VERDICT, INTEREST, TARGET, SINGLE, KINDS };

// The levels of all filters and apexes; the numbers stand at the last level of each.
// Nothing recurses: a topic may have 65,535 levels.
class Levels {
    static constexpr size_t NEAR = 16;

    struct Node {
        uint32_t parent, plus = NONE, hash = NONE, children = 0, size = 0;
        uint32_t numbers[KINDS] = {NONE, NONE, NONE, NONE, NONE};
        union {
            Byte near[NEAR];  // the text of a level as long as this, which most are
            Byte* far;
        };

        const Byte* text() const { return size <= NEAR ? near : far; }
        bool has_numbers() const {
            return std::any_of(numbers, numbers + KINDS, [](uint32_t one) { return one != NONE; });
        }
    };

    std::vector<Node> nodes_;  // the root is the first
    uint32_t unused_ = NONE;  // nodes that may be used again, each the `parent` of the one before
    size_t count_ = 0;
    Table children_;  // by parent and text; wildcards stand at the parent itself

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
        ++nodes_[parent].children;
        Node& node = nodes_[made];
        node.parent = parent;
        if (size > NEAR) node.far = new Byte[size];
        node.size = static_cast<uint32_t>(size);
        std::memcpy(const_cast<Byte*>(node.text()), text, size);
        return made;
    }

    // Where a wildcard below a node stands; null: the level is none.
    uint32_t* wildcard(uint32_t parent, const Byte* text, size_t size) {
        if (size != 1) return nullptr;
        if (*text == '+') return &nodes_[parent].plus;
        return *text == '#' ? &nodes_[parent].hash : nullptr;
    }

public:
    uint64_t generation = 1;  // of all that stands here: whoever changes anything raises it

    Levels() {
        nodes_.emplace_back();
        nodes_[0].parent = NONE;
    }
    Levels(const Levels&) = delete;
    Levels& operator=(const Levels&) = delete;
    ~Levels() {
        for (Node& node : nodes_)
            if (node.size > NEAR) delete[] node.far;
    }

    // How many there are, the root not counted.
    size_t count() const { return count_; }
    const Node& at(uint32_t node) const { return nodes_[node]; }

    bool is_text(uint32_t node, const Byte* text, size_t size) const {
        return nodes_[node].size == size && are_same(nodes_[node].text(), text, size);
    }

    // Whether a level below a node is anything else than a wildcard.
    bool has_literals(uint32_t node) const {
        const Node& one = nodes_[node];
        return one.children > uint32_t(one.plus != NONE) + uint32_t(one.hash != NONE);
    }

    uint32_t child(uint32_t parent, const Byte* text, size_t size, uint64_t hash) const {
        return children_.find(hash_below(parent, hash), [&](uint32_t one) {
            return nodes_[one].parent == parent && is_text(one, text, size);
        });
    }

    // The last node of a filter, or of an apex, in which nothing is a wildcard. Missing nodes are
    // made, with all above. The apex of no level is the root.
    uint32_t reach(const Byte* at, size_t size, bool is_filter) {
        uint32_t node = 0;
        if (!is_filter && !size) return node;
        for (const Byte* end = at + size;; ++at) {
            const Byte* stop = level_end(at, end);
            size_t length = stop - at;
            uint64_t hash = hash_of(at, length);
            bool is_wildcard = is_filter && wildcard(node, at, length);
            uint32_t next = is_wildcard ? *wildcard(node, at, length) : child(node, at, length, hash);
            if (next == NONE) {
                next = make(node, at, length);
                if (is_wildcard)
                    *wildcard(node, at, length) = next;
                else
                    children_.insert(hash_below(node, hash), next);
            }
            node = next;
            at = stop;
            if (at == end) return node;
        }
    }

    void set_number(uint32_t node, Kind kind, uint32_t number) {
        nodes_[node].numbers[kind] = number;
    }

    // Take a number off a node, and each branch away that is empty then.
    void prune(uint32_t at, Kind kind) {
        nodes_[at].numbers[kind] = NONE;
        while (at && !nodes_[at].has_numbers() && !nodes_[at].children) {
            Node& node = nodes_[at];
            Node& parent = nodes_[node.parent];
            if (parent.plus == at)
                parent.plus = NONE;
            else if (parent.hash == at)
                parent.hash = NONE;
            else
                children_.erase(hash_below(node.parent, hash_of(node.text(), node.size)), at);
            if (node.size > NEAR) delete[] node.far;
            node.size = 0;
            --parent.children;
            --count_;
            uint32_t above = std::exchange(node.parent, unused_);
            unused_ = std::exchange(at, above);
        }
    }

    // The number of the deepest apex that encloses a topic, or NONE.
    uint32_t find(const Byte* at, size_t size, Kind kind) const {
        uint32_t node = 0, found = nodes_[0].numbers[kind];
        for (const Byte* end = at + size;; ++at) {
            const Byte* stop = level_end(at, end);
            node = child(node, at, stop - at, hash_of(at, stop - at));
            if (node == NONE) return found;
            if (nodes_[node].numbers[kind] != NONE) found = nodes_[node].numbers[kind];
            at = stop;
            if (at == end) return found;
        }
    }
};

}  // namespace txbroker
