// A socket with what waits to be sent, and the cutting of what arrives into packets.
#pragma once

#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "options.hpp"
#include "packets.hpp"

constexpr size_t READ_SIZE = 256 * 1024;
constexpr size_t HEADROOM = 8;  // for the beginning of a packet whose length is not known yet

// One for all connections: what is read is used up before the next read.
struct Scratch {
    Bytes bytes = Bytes(HEADROOM + READ_SIZE);
    uint8_t* data() { return bytes.data() + HEADROOM; }
};

enum class Role { publisher, subscriber, churner, guest };

class Connection {
  public:
    explicit Connection(Role role = Role::guest, int index = 0, int level = 4)
        : role(role), index(index), level(level) {}
    Connection(const Connection&) = delete;
    ~Connection() { close(); }

    int fd = -1;
    Role role;
    int index;  // among those of its role
    int level;  // of the protocol: 4 is MQTT 3.1.1, 5 is MQTT 5.0
    const char* name() const;

    // Makes the socket; non-blocking. `source` is added to 127.0.0.1, 0 leaves it to the system: more
    // connections than there are ports need several.
    void make(int source = 0);
    // Begins to connect, with the socket that was made or, where there is none, with one like `make()`.
    void open(int port);
    // Connected, and until the session is there blocking; fails when the broker refuses.
    void open_session(int port, const std::string& client_id, bool clean);
    // Subscribes and waits until that is granted; blocking.
    void subscribe(const std::vector<std::string>& filters, int qos);
    void set_blocking(bool blocking);
    void watch(int epoll);
    void close();
    // Closes without the state that TCP keeps for a while.
    void reset();

    bool is_idle() const { return out_at_ == out_end_; }
    // Room at the end of what waits to be sent; `commit` says how much of it was used.
    uint8_t* reserve(size_t count);
    void commit(size_t count) { out_end_ += count; }
    void append(const uint8_t* bytes, size_t count) {
        std::memcpy(reserve(count), bytes, count);
        commit(count);
    }
    void append(const Bytes& bytes) { append(bytes.data(), bytes.size()); }
    // Sends what the socket takes; what is left goes when epoll says so.
    void flush();

    // One read; calls `on_packet(first byte, body, length)` for each packet that is whole then.
    // False: the other side has closed.
    template <class OnPacket>
    bool read(Scratch& scratch, OnPacket&& on_packet, size_t most = READ_SIZE);

  private:
    Bytes receive_packet();
    void want_writable(bool wanted);
    template <class OnPacket>
    void cut(const uint8_t* at, const uint8_t* end, OnPacket& on_packet);

    int epoll_ = -1;
    bool wants_writable_ = false;
    Bytes out_;  // storage; from out_at_ to out_end_ is what waits
    size_t out_at_ = 0;
    size_t out_end_ = 0;
    Bytes rest_;            // a packet that is not whole; of its full size when that is known
    size_t rest_have_ = 0;  // how much of it has come
    bool rest_sized_ = false;
};

// The length of a packet with its fixed header; 0: that has not come yet.
inline size_t whole_length(const uint8_t* at, size_t have, size_t* header) {
    size_t length = 0;
    for (size_t place = 1; place < 5 && place < have; ++place) {
        length |= static_cast<size_t>(at[place] & 127) << (7 * (place - 1));
        if (at[place] < 128) {
            *header = place + 1;
            return place + 1 + length;
        }
    }
    return 0;
}

template <class OnPacket>
void Connection::cut(const uint8_t* at, const uint8_t* end, OnPacket& on_packet) {
    while (at < end) {
        auto have = static_cast<size_t>(end - at);
        size_t header = 2;
        size_t length = have >= 2 && at[1] < 128 ? 2 + at[1] : whole_length(at, have, &header);
        if (length == 0 || length > have) {
            rest_sized_ = length != 0;
            rest_.resize(rest_sized_ ? length : have);
            std::memcpy(rest_.data(), at, have);
            rest_have_ = have;
            return;
        }
        on_packet(at[0], at + header, length - header);
        at += length;
    }
}

template <class OnPacket>
bool Connection::read(Scratch& scratch, OnPacket&& on_packet, size_t most) {
    size_t missing = rest_sized_ ? rest_.size() - rest_have_ : 0;
    iovec parts[2] = {{rest_.data() + rest_have_, missing}, {scratch.data(), most}};
    ssize_t count = readv(fd, missing ? parts : parts + 1, missing ? 2 : 1);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (count <= 0) return false;
    auto got = static_cast<size_t>(count);
    uint8_t* begin = scratch.data();
    if (missing) {
        size_t filled = got < missing ? got : missing;
        rest_have_ += filled;
        if (filled < missing) return true;
        got -= filled;
        size_t header = 0;
        whole_length(rest_.data(), rest_.size(), &header);
        on_packet(rest_[0], rest_.data() + header, rest_.size() - header);
    } else if (rest_have_) {
        begin -= rest_have_;
        std::memcpy(begin, rest_.data(), rest_have_);
        got += rest_have_;
    }
    rest_have_ = 0;
    rest_sized_ = false;
    cut(begin, begin + got, on_packet);
    return true;
}
