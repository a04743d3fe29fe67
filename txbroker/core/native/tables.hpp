// Tables: numbers found by hash, packet ids.

#pragma once

#include "bytes.hpp"

namespace txbroker {

// Numbers found by hash, in one block. The caller says which number is the right one among those
// with the same hash. Open addressing, linear probing; erasing moves back what follows.
class Table {
    struct Slot {
        uint32_t hash, number;  // `number` is NONE where the slot is free
    };
    std::vector<Slot> slots_;
    size_t count_ = 0;

    void put(Slot slot) {
        size_t mask = slots_.size() - 1, at = slot.hash & mask;
        while (slots_[at].number != NONE) at = (at + 1) & mask;
        slots_[at] = slot;
    }

    void grow() {
        std::vector<Slot> old(std::max<size_t>(16, slots_.size() * 2), Slot{0, NONE});
        old.swap(slots_);
        for (Slot slot : old)
            if (slot.number != NONE) put(slot);
    }

public:
    size_t count() const { return count_; }
    size_t bytes() const { return slots_.size() * sizeof(Slot); }

    // The number with this hash that is the right one; NONE where there is none.
    template <class IsRight>
    uint32_t find(uint64_t hash, IsRight is_right) const {
        if (!count_) return NONE;
        auto low = static_cast<uint32_t>(hash);
        for (size_t mask = slots_.size() - 1, at = low & mask;; at = (at + 1) & mask) {
            const Slot& slot = slots_[at];
            if (slot.number == NONE) return NONE;
            if (slot.hash == low && is_right(slot.number)) return slot.number;
        }
    }

    // Put in a number that is not there.
    void insert(uint64_t hash, uint32_t number) {
        if (count_ >= slots_.size() / 2) grow();
        put({static_cast<uint32_t>(hash), number});
        ++count_;
    }

    // Take out a number that is there.
    void erase(uint64_t hash, uint32_t number) {
        size_t mask = slots_.size() - 1, hole = static_cast<uint32_t>(hash) & mask;
        while (slots_[hole].number != number) hole = (hole + 1) & mask;
        for (size_t at = (hole + 1) & mask; slots_[at].number != NONE; at = (at + 1) & mask) {
            if (((at - slots_[at].hash) & mask) >= ((at - hole) & mask)) {
                slots_[hole] = slots_[at];
                hole = at;
            }
        }
        slots_[hole].number = NONE;
        if (!--count_) clear();
    }

    void clear() {
        slots_ = {};
        count_ = 0;
    }
};

// The state of packet ids. Nearly always few are in use, and they follow one another. So the table
// is one small block, not pages: 128 bytes hold a dozen of them, wherever they lie among the
// 65,535.
class PacketIds {
public:
    struct Slot {
        uint16_t id;  // 0 where the slot is free
        uint8_t qos, state;
        uint32_t value;
    };

private:
    Slot* slots_ = nullptr;
    uint32_t room_ = 0, count_ = 0;

    // Neighbours lie near each other; a secret factor keeps others from choosing who meets whom.
    uint32_t home(uint16_t id) const {
        return static_cast<uint32_t>(id * seeds[1] >> 40) & (room_ - 1);
    }

    Slot* free_for(uint16_t id) {
        uint32_t at = home(id);
        while (slots_[at].id) at = (at + 1) & (room_ - 1);
        slots_[at].id = id;
        return slots_ + at;
    }

    void grow() {
        uint32_t old_room = room_, room = room_ ? room_ * 2 : 16;
        auto slots = static_cast<Slot*>(std::calloc(room, sizeof(Slot)));
        if (!slots) throw std::bad_alloc();
        Slot* old = std::exchange(slots_, slots);
        room_ = room;
        for (uint32_t at = 0; at < old_room; ++at)
            if (old[at].id) *free_for(old[at].id) = old[at];
        std::free(old);
    }

public:
    PacketIds() = default;
    PacketIds(const PacketIds&) = delete;
    PacketIds& operator=(const PacketIds&) = delete;
    ~PacketIds() { std::free(slots_); }

    uint32_t count() const { return count_; }
    uint32_t room() const { return room_; }
    const Slot& at(uint32_t index) const { return slots_[index]; }

    // The slot of an id; null where it is not in use. Good until the next change.
    Slot* find(uint16_t id) {
        if (!count_ || !id) return nullptr;
        for (uint32_t at = home(id); slots_[at].id; at = (at + 1) & (room_ - 1))
            if (slots_[at].id == id) return slots_ + at;
        return nullptr;
    }

    // Put in an id that is not there, and not 0.
    void insert(uint16_t id, uint8_t qos, uint8_t state, uint32_t value) {
        if (count_ * 4 >= room_ * 3) grow();
        *free_for(id) = {id, qos, state, value};
        ++count_;
    }

    void erase(Slot* slot) {
        auto hole = static_cast<uint32_t>(slot - slots_);
        uint32_t mask = room_ - 1;
        for (uint32_t at = (hole + 1) & mask; slots_[at].id; at = (at + 1) & mask) {
            if (((at - home(slots_[at].id)) & mask) >= ((at - hole) & mask)) {
                slots_[hole] = slots_[at];
                hole = at;
            }
        }
        slots_[hole].id = 0;
        if (!--count_ && room_ > 64) {
            std::free(slots_);
            slots_ = nullptr;
            room_ = 0;
        }
    }
};

}  // namespace txbroker
