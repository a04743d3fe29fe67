// Bytes: what a topic may consist of, hashes of bytes from the network, buffers of output.

#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace txbroker {

using Byte = unsigned char;

constexpr uint32_t NONE = 0xFFFFFFFF;  // no number of anything

inline uint64_t word_at(const Byte* at) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    return word;
}

inline uint64_t half_word_at(const Byte* at) {
    uint32_t word;
    std::memcpy(&word, at, 4);
    return word;
}

// Whether so many bytes here are those there; for short ones, of which most are the same.
inline bool are_same(const Byte* at, const Byte* other, size_t size) {
    uint64_t differ = 0;
    if (size < 4) {
        while (size--) differ |= at[size] ^ other[size];
        return !differ;
    }
    if (size < 8) {
        differ = half_word_at(at) ^ half_word_at(other);
        return !(differ | (half_word_at(at + size - 4) ^ half_word_at(other + size - 4)));
    }
    for (size_t done = 0; done + 8 < size; done += 8) differ |= word_at(at + done) ^ word_at(other + done);
    return !(differ | (word_at(at + size - 8) ^ word_at(other + size - 8)));
}

// -- hashes

// Secrets of this process: topics come from the network, and nobody out there may find topics whose
// hashes meet. Set once, at import.
inline uint64_t seeds[3] = {0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB};

inline void set_seeds(const Byte* random) {
    for (int index = 0; index < 3; ++index) seeds[index] = word_at(random + 8 * index) | 1;
}

inline uint64_t mix(uint64_t one, uint64_t other) {
    auto product = static_cast<unsigned __int128>(one) * other;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// 16 bytes at a time, each time through one long multiplication, in the manner of wyhash.
inline uint64_t hash_of(const Byte* at, size_t size) {
    uint64_t hash = seeds[0], low, high;
    size_t left = size;
    for (; left > 16; left -= 16, at += 16)
        hash = mix(word_at(at) ^ seeds[1], word_at(at + 8) ^ hash);
    if (size > 16) {  // the last 16 bytes, of which some were there already
        low = word_at(at + left - 16);
        high = word_at(at + left - 8);
    } else if (left >= 8) {
        low = word_at(at);
        high = word_at(at + left - 8);
    } else if (left >= 4) {
        low = half_word_at(at);
        high = half_word_at(at + left - 4);
    } else {
        low = left ? uint64_t(at[0]) << 16 | uint64_t(at[left >> 1]) << 8 | at[left - 1] : 0;
        high = 0;
    }
    return mix(seeds[2] ^ size, mix(low ^ seeds[1], high ^ hash));
}

// Of something that stands below something with a number.
inline uint64_t hash_below(uint32_t parent, uint64_t hash) {
    return mix(hash ^ seeds[0], parent + seeds[1]);
}

// -- topics

constexpr uint64_t ONES = 0x0101010101010101, HIGHS = 0x8080808080808080;

// A word with some bit set where a byte of this one is zero.
inline uint64_t zeros_in(uint64_t word) { return (word - ONES) & ~word & HIGHS; }

// Whether bytes are UTF-8 as Python decodes it: no surrogates, nothing longer than it has to be,
// nothing above U+10FFFF.
[[gnu::noinline]] inline bool is_utf8(const Byte* at, size_t size) {
    const Byte* const end = at + size;
    while (at < end) {
        Byte first = *at++;
        if (first < 0x80) continue;
        int more;
        Byte lowest = 0x80, highest = 0xBF;  // of the second byte
        if (first >= 0xC2 && first <= 0xDF) {
            more = 1;
        } else if (first >= 0xE0 && first <= 0xEF) {
            more = 2;
            if (first == 0xE0) lowest = 0xA0;
            if (first == 0xED) highest = 0x9F;
        } else if (first >= 0xF0 && first <= 0xF4) {
            more = 3;
            if (first == 0xF0) lowest = 0x90;
            if (first == 0xF4) highest = 0x8F;
        } else {
            return false;
        }
        if (end - at < more || *at < lowest || *at > highest) return false;
        for (++at; --more; ++at)
            if ((*at & 0xC0) != 0x80) return false;
    }
    return true;
}

// Something else than 0 if a word has a byte that no topic name has.
inline uint64_t wrong_in(uint64_t word) {
    return zeros_in(word) | zeros_in(word ^ ONES * '+') | zeros_in(word ^ ONES * '#');
}

// Whether bytes are UTF-8 without those that `WRONG` finds in a word.
template <uint64_t WRONG(uint64_t)> inline bool is_utf8_without(const Byte* at, size_t size) {
    uint64_t high, wrong;
    if (size < 8) {
        Byte few[8] = {1, 1, 1, 1, 1, 1, 1, 1};
        std::memcpy(few, at, size);
        high = word_at(few);
        wrong = WRONG(high);
    } else {
        high = word_at(at + size - 8);
        wrong = WRONG(high);
        for (size_t done = 0; done + 8 < size; done += 8) {
            high |= word_at(at + done);
            wrong |= WRONG(word_at(at + done));
        }
    }
    return !wrong && (!(high & HIGHS) || is_utf8(at, size));
}

// Whether bytes are a valid topic name (`topics.validate_topic_name`): UTF-8 without NUL, + and #.
inline bool is_topic_name(const Byte* at, size_t size) {
    return size && is_utf8_without<wrong_in>(at, size);
}

// Whether bytes are a text of a packet: UTF-8 without NUL [MQTT-1.5.4-2].
inline bool is_text(const Byte* at, size_t size) { return is_utf8_without<zeros_in>(at, size); }

// Where the level that begins here ends: at the next slash, or at the end.
inline const Byte* level_end(const Byte* at, const Byte* end) {
    for (; std::endian::native == std::endian::little && end - at >= 8; at += 8)
        if (uint64_t found = zeros_in(word_at(at) ^ ONES * '/')) return at + std::countr_zero(found) / 8;
    while (at < end && *at != '/') ++at;
    return at;
}

// -- memory

// Blocks of some 100 KiB come and go with each read. Without these settings glibc gives them back to
// the system each time, and has them cleared, page by page, for the next use. A packet of 16 MB that
// is not whole yet grows. It must not be copied each time: the system moves its pages.
inline void keep_memory() {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 2 * 1024 * 1024);
    mallopt(M_TRIM_THRESHOLD, 4 * 1024 * 1024);
#endif
}

// -- buffers

// Bytes of memory that hold what is on its way to clients.
inline size_t outgoing = 0;

// Large blocks that buffers gave back. A node may write to a hundred clients in each turn. Without
// the pool the kernel hands out, clears and takes back the same memory again and again.
class Pool {
    static constexpr size_t SMALLEST = 16 * 1024, KINDS = 7, MOST = 16 * 1024 * 1024;
    std::vector<char*> free_[KINDS];  // 16 KiB, 32 KiB ... 1 MiB
    size_t held_ = 0;

    static size_t kind_of(size_t size) {
        size_t kind = 0;
        while (kind < KINDS && SMALLEST << kind != size) ++kind;
        return kind;
    }

public:
    static constexpr size_t LARGEST = SMALLEST << (KINDS - 1);

    char* take(size_t size) {
        size_t kind = kind_of(size);
        if (kind < KINDS && !free_[kind].empty()) {
            char* block = free_[kind].back();
            free_[kind].pop_back();
            held_ -= size;
            outgoing += size;
            return block;
        }
        auto block = static_cast<char*>(std::malloc(size));
        if (!block) throw std::bad_alloc();
        outgoing += size;
        return block;
    }

    void give(char* block, size_t size) {
        outgoing -= size;
        size_t kind = kind_of(size);
        if (kind < KINDS && held_ + size <= MOST) {
            try {
                free_[kind].push_back(block);
                held_ += size;
                return;
            } catch (const std::bad_alloc&) {
            }
        }
        std::free(block);
    }
};

inline Pool pool;

// Bytes that are put in at the end and taken out at the beginning. Holds no memory while empty.
class Buffer {
    char* block_ = nullptr;
    size_t start_ = 0, end_ = 0, room_ = 0;

    void make_room(size_t more) {
        size_t size = end_ - start_, wanted = size + more;
        if (wanted < size) throw std::bad_alloc();
        if (wanted <= room_ && start_ >= room_ / 2) {  // so that bytes move at most once each
            std::memmove(block_, block_ + start_, size);
        } else {
            size_t room = 128;
            if (wanted > Pool::LARGEST) room = wanted + wanted / 2;
            while (room < wanted) room *= 2;
            char* block = pool.take(room);
            if (block_) {
                std::memcpy(block, block_ + start_, size);
                pool.give(block_, room_);
            }
            block_ = block;
            room_ = room;
        }
        start_ = 0;
        end_ = size;
    }

public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { clear(); }

    size_t size() const { return end_ - start_; }
    size_t held() const { return room_; }
    char* begin() { return block_ + start_; }

    // Room for so many bytes at the end, which the caller fills.
    char* extend(size_t more) {
        if (room_ - end_ < more) make_room(more);
        char* at = block_ + end_;
        end_ += more;
        return at;
    }

    void append(const void* bytes, size_t size) {
        if (size) std::memcpy(extend(size), bytes, size);
    }

    // Take so many bytes, at most all, out at the beginning.
    void consume(size_t size) {
        start_ += size;
        if (start_ == end_) clear();
    }

    void clear() {
        if (block_) pool.give(block_, room_);
        block_ = nullptr;
        start_ = end_ = room_ = 0;
    }
};

}  // namespace txbroker
