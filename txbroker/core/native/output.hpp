// The output that waits for a socket: bytes that were written for it, and bytes of runs, which are
// not copied.

#pragma once

#include <Python.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <unordered_map>

#include "bytes.hpp"

namespace txbroker {

// How often outputs share each bytes object; in `outgoing` it counts once.
class Shared {
    std::unordered_map<PyObject*, size_t> uses_;
    PyObject* last_ = nullptr;  // a crowd shares the same one
    size_t* last_uses_ = nullptr;

public:
    void add(PyObject* owner) {
        if (owner != last_) {
            last_uses_ = &uses_[owner];
            last_ = owner;
        }
        if (!(*last_uses_)++) outgoing += PyBytes_GET_SIZE(owner);
    }

    void drop(PyObject* owner) {
        auto found = uses_.find(owner);
        if (--found->second) return;
        outgoing -= PyBytes_GET_SIZE(owner);
        uses_.erase(found);
        if (owner == last_) last_ = nullptr;
    }
};

inline Shared shared;

// The bytes that may wait for one socket, where this limit is set to all outgoing bytes. Beyond
// half of the limit they get ever fewer, so that the client with most waiting pays first.
constexpr size_t LEAST_ROOM = 16 * 1024;

inline size_t room_of(size_t most, size_t limit) {
    size_t half = limit / 2;
    if (outgoing <= half) return most;
    double left = outgoing < limit ? static_cast<double>(limit - outgoing) / half : 0;
    return std::max(std::min(most, LEAST_ROOM), static_cast<size_t>(most * left));
}

class Output {
    // Bytes of a run; `before` are those of `own_` that come first.
    struct Piece {
        PyObject* owner;
        const char* at;
        size_t size, before;
    };

    Buffer own_;
    std::vector<Piece> pieces_;
    size_t next_ = 0;     // in `pieces_`: those before it have gone
    size_t before_ = 0;   // of all pieces together
    size_t shared_ = 0;   // bytes of all pieces together

    void drop_piece() {
        shared.drop(pieces_[next_].owner);
        Py_DECREF(pieces_[next_].owner);
        if (++next_ == pieces_.size()) {
            pieces_ = {};
            next_ = 0;
        } else if (next_ >= 64 && next_ * 2 >= pieces_.size()) {
            pieces_.erase(pieces_.begin(), pieces_.begin() + static_cast<ptrdiff_t>(next_));
            next_ = 0;
        }
    }

public:
    static constexpr int MOST_VECTORS = 64;
    static constexpr size_t LEAST_SHARED = 2048;

    Output() = default;
    Output(const Output&) = delete;
    Output& operator=(const Output&) = delete;
    ~Output() { clear(); }

    size_t size() const { return own_.size() + shared_; }
    size_t held() const { return own_.held() + pieces_.capacity() * sizeof(Piece); }

    // Room for so many bytes at the end, which the caller fills.
    char* extend(size_t size) { return own_.extend(size); }
    void append(const void* bytes, size_t size) { own_.append(bytes, size); }

    // Bytes at the end that belong to a bytes object. A slow client must not keep much more than
    // counts for it. So small objects are copied, and small parts of large ones.
    void share(PyObject* owner, const char* at, size_t size) {
        if (size < LEAST_SHARED || size < static_cast<size_t>(PyBytes_GET_SIZE(owner)) / 8)
            return append(at, size);
        size_t before = own_.size() - before_;
        pieces_.push_back({owner, at, size, before});
        shared.add(owner);
        Py_INCREF(owner);
        before_ += before;
        shared_ += size;
    }

    // The first output, as far as it fits into so many vectors; how many it takes.
    int gather(iovec* vectors) {
        int count = 0;
        char* own = own_.begin();
        for (size_t index = next_; index < pieces_.size() && count + 2 < MOST_VECTORS; ++index) {
            const Piece& piece = pieces_[index];
            if (piece.before) vectors[count++] = {own, piece.before};
            own += piece.before;
            vectors[count++] = {const_cast<char*>(piece.at), piece.size};
        }
        // Behind the last piece; where some are left, none of it may go yet.
        size_t rest = own_.size() - before_;
        if (rest && count + 2 < MOST_VECTORS) vectors[count++] = {own, rest};
        return count;
    }

    // Take so many bytes, at most all, out at the beginning.
    void consume(size_t size) {
        while (size && next_ < pieces_.size()) {
            Piece& piece = pieces_[next_];
            size_t own = std::min(size, piece.before);
            if (own) own_.consume(own);
            piece.before -= own;
            before_ -= own;
            size -= own;
            size_t shared = std::min(size, piece.size);
            piece.at += shared;
            piece.size -= shared;
            shared_ -= shared;
            size -= shared;
            if (!piece.size) drop_piece();
        }
        if (size) own_.consume(size);
    }

    void clear() { consume(size()); }

    // The bytes object at whose end all that there is to send lies, if there is one.
    PyObject* sole() const {
        if (pieces_.size() != 1 || own_.size()) return nullptr;
        const Piece& piece = pieces_[0];
        bool is_end = piece.at + piece.size ==
                      PyBytes_AS_STRING(piece.owner) + PyBytes_GET_SIZE(piece.owner);
        return is_end ? piece.owner : nullptr;
    }
};

// Written as `send` does, from several places; without a header for one place the kernel is faster.
inline ssize_t send_vectors(int descriptor, iovec* vectors, size_t count, int flags) {
    if (count == 1) return send(descriptor, vectors->iov_base, vectors->iov_len, flags);
    msghdr message{};
    message.msg_iov = vectors;
    message.msg_iovlen = count;
    return sendmsg(descriptor, &message, flags);
}

}  // namespace txbroker
