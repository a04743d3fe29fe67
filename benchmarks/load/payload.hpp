// What a payload says, so that the receiver can check all of it without having seen it before: which
// stream it belongs to, its number there, when it was made; the rest is a stretch of one fixed random
// text, and where it begins depends on stream and number.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

struct Stamp {
    uint32_t stream;
    uint32_t number;
    int64_t nanoseconds;
};
static_assert(sizeof(Stamp) == 16);

constexpr uint32_t PROBE = UINT32_MAX;  // as a stream: only shows that messages get through

class Pattern {
  public:
    explicit Pattern(size_t payload) : size_(payload - sizeof(Stamp)), text_(size_ + PLACES * 8) {
        uint64_t state = 88172645463325252u;
        for (auto& byte : text_) {  // xorshift
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            byte = static_cast<uint8_t>(state >> 24);
        }
    }

    uint8_t* write(uint8_t* at, const Stamp& stamp) const {
        std::memcpy(at, &stamp, sizeof stamp);
        std::memcpy(at + sizeof stamp, place(stamp), size_);
        return at + sizeof stamp + size_;
    }

    bool is_right(const uint8_t* payload, const Stamp& stamp) const {
        return std::memcmp(payload + sizeof stamp, place(stamp), size_) == 0;
    }

  private:
    static constexpr size_t PLACES = 512;  // few enough to stay in the first cache

    const uint8_t* place(const Stamp& stamp) const {
        uint32_t mixed = (stamp.number + stamp.stream * 40503u) * 2654435761u;
        return text_.data() + (mixed >> 23) * 8;
    }

    size_t size_;
    std::vector<uint8_t> text_;
};
