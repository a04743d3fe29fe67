// Where topics go: what the tree of levels says of them, kept.

#pragma once

#include "packets.hpp"
#include "trees.hpp"

namespace txbroker {

// Sets of numbers, by number: what filters match is the same for most topics.
class Sets {
    struct Range {
        size_t start, size;
    };
    std::vector<uint32_t> members_;
    std::vector<Range> sets_;
    Table table_;

public:
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

// The plans that beginnings of topics lead to, by number. All plans go at once, and numbers begin
// again, when anything changes in the tree. The same happens when they are too many.
//
// A plan stands for the nodes of the tree that a topic has reached after some of its levels. The
// text of a level counts only where some node has a level below it that is no wildcard. All texts
// without such a level lead to the same plan. So there are hardly more plans than filters have
// levels, however many topics there are. A topic is looked at no further than it has to be.
class Plans {
    struct Plan {
        uint32_t parent, level;  // `level` is the node that has the text; NONE: any other text
        uint32_t start, count;   // of its nodes, in `reached_`
        uint32_t other = NONE;   // the plan behind any other text
        uint32_t route, verdict;
        uint32_t sets[KINDS - INTEREST] = {NONE, NONE, NONE};
        bool has_literals = false;
        bool is_closed = true;  // all that is longer comes to `other`
    };

    // The part of a topic that was looked at. All topics that begin like this have the same plan,
    // or only this one where it `is_whole`.
    struct Walked {
        uint32_t plan;
        size_t size;
        bool is_whole;
    };

    static constexpr uint32_t ROOTS = 2;  // of most topics, and of those that begin with `$`
    static constexpr size_t MOST_BYTES = 64 * 1024 * 1024;

    const Levels& levels_;
    std::vector<Plan> plans_;
    std::vector<uint32_t> reached_;
    Table below_;                        // by parent and text
    Sets sets_[KINDS - INTEREST];        // of filters' numbers, of each kind
    std::vector<uint32_t> made_, found_;  // while something is made

    void note(uint32_t node, Kind kind) {
        if (node != NONE && levels_.at(node).numbers[kind] != NONE)
            found_.push_back(levels_.at(node).numbers[kind]);
    }

    size_t bytes_of_sets() const {
        size_t size = 0;
        for (const Sets& sets : sets_) size += sets.bytes();
        return size;
    }

    // Put in a plan for the nodes in `made_`; the rest is that of the one above.
    uint32_t put(Plan plan) {
        auto number = static_cast<uint32_t>(plans_.size());
        plan.start = static_cast<uint32_t>(reached_.size());
        plan.count = static_cast<uint32_t>(made_.size());
        for (uint32_t node : made_) {
            const auto& one = levels_.at(node);
            if (one.numbers[ROUTE] != NONE) plan.route = one.numbers[ROUTE];
            if (one.numbers[VERDICT] != NONE) plan.verdict = one.numbers[VERDICT];
            if (levels_.has_literals(node)) plan.has_literals = true;
            if (plan.has_literals || one.plus != NONE) plan.is_closed = false;
            reached_.push_back(node);
        }
        if (made_.empty()) plan.other = number;
        plans_.push_back(plan);
        return number;
    }

    // The plan behind a level that comes next, which is made where it is new.
    uint32_t next(uint32_t number, const Byte* text, size_t size) {
        const Plan& plan = plans_[number];
        uint64_t hash = 0;
        uint32_t level = NONE;
        if (plan.has_literals) {
            hash = hash_of(text, size);
            uint32_t known = below_.find(hash_below(number, hash), [&](uint32_t one) {
                return plans_[one].parent == number && levels_.is_text(plans_[one].level, text, size);
            });
            if (known != NONE) return known;
        } else if (plan.other != NONE) {
            return plan.other;
        }
        made_.clear();
        for (uint32_t index = 0; index < plan.count; ++index) {
            uint32_t node = reached_[plan.start + index];
            uint32_t child = plan.has_literals ? levels_.child(node, text, size, hash) : NONE;
            if (child != NONE) made_.push_back(level = child);
            if (number != 1 && levels_.at(node).plus != NONE)  // [MQTT-4.7.2-1]
                made_.push_back(levels_.at(node).plus);
        }
        if (level == NONE && plan.other != NONE) return plan.other;
        uint32_t made = put({number, level, 0, 0, NONE, plan.route, plan.verdict});
        if (level == NONE)
            plans_[number].other = made;
        else
            below_.insert(hash_below(number, hash), made);
        return made;
    }

    Walked walk(const Byte* topic, size_t size) {
        uint32_t number = size && *topic == '$';
        for (const Byte *at = topic, *end = topic + size;; ++at) {
            const Byte* stop = level_end(at, end);
            if (plans_[number].is_closed) {
                // At least one byte, as there are two roots.
                size_t seen = std::max<size_t>(at - topic, std::min<size_t>(size, 1));
                return {next(number, at, stop - at), seen, false};
            }
            number = next(number, at, stop - at);
            at = stop;
            if (at == end) return {number, size, true};
        }
    }

public:
    explicit Plans(const Levels& levels) : levels_(levels) { clear(); }

    size_t count() const { return plans_.size() - ROOTS; }
    const Plan& at(uint32_t number) const { return plans_[number]; }
    const Sets& sets(Kind kind) const { return sets_[kind - INTEREST]; }

    // Whether all this and `more` bytes are too much.
    bool is_full(size_t more) const {
        return more + reached_.size() * 4 + plans_.size() * sizeof(Plan) + below_.bytes() +
                   bytes_of_sets() > MOST_BYTES;
    }

    uint32_t number_of(const Byte* topic, size_t size) { return walk(topic, size).plan; }

    // Give entries their plans, from this one on. Returns the place of the first entry without a
    // plan, as there is no room left. `more` as above.
    size_t look_up(std::vector<Entry>& entries, size_t index, const Byte* data, size_t more) {
        Walked last{NONE, 0, true};
        const Byte* before = nullptr;
        for (size_t start = index; index < entries.size(); ++index) {
            Entry& one = entries[index];
            const Byte* topic = data + one.topic;
            size_t size = one.topic_end - one.topic;
            bool is_alike = last.is_whole ? size == last.size : size >= last.size;
            if (!is_alike || !before || !are_same(topic, before, last.size)) {
                if (index > start && is_full(more)) break;
                last = walk(topic, size);
                before = topic;
            }
            one.plan = last.plan;
        }
        return index;
    }

    // The number of the set of filters of this kind that match what has this plan.
    uint32_t set_for(uint32_t number, Kind kind) {
        uint32_t& known = plans_[number].sets[kind - INTEREST];
        if (known != NONE) return known;
        found_.clear();
        made_.clear();
        for (uint32_t one = number; one >= ROOTS; one = plans_[one].parent)
            made_.push_back(plans_[one].parent);
        while (!made_.empty()) {
            const Plan& above = plans_[made_.back()];
            if (made_.back() != 1)
                for (uint32_t index = 0; index < above.count; ++index)
                    note(levels_.at(reached_[above.start + index]).hash, kind);
            made_.pop_back();
        }
        const Plan& plan = plans_[number];
        for (uint32_t index = 0; index < plan.count; ++index) {
            uint32_t node = reached_[plan.start + index];
            note(node, kind);
            note(levels_.at(node).hash, kind);  // `a/#` stands for `a` too (section 4.7.1.2)
        }
        return known = sets_[kind - INTEREST].number_of(found_);
    }

    void clear() {
        plans_ = {};
        reached_ = {};
        below_.clear();
        for (Sets& sets : sets_) sets.clear();
        for (uint32_t root = 0; root < ROOTS; ++root) {
            made_.assign(1, 0);
            put({NONE, NONE, 0, 0, NONE, NONE, NONE});
        }
    }
};

}  // namespace txbroker
