// Buffers that Python takes over.

#pragma once

#include <Python.h>

#include "bytes.hpp"

namespace txbroker {

// Bytes that become a Python object without being copied.
class Growing {
    PyObject* bytes_ = nullptr;
    size_t room_ = 0;

public:
    size_t used = 0;

    Growing() = default;
    Growing(const Growing&) = delete;
    Growing& operator=(const Growing&) = delete;
    ~Growing() { Py_XDECREF(bytes_); }

    char* begin() { return PyBytes_AS_STRING(bytes_); }

    // Room for so many bytes more; where they are to be put.
    char* reserve(size_t more) {
        if (!bytes_ || room_ - used < more) {
            size_t room = std::max(used + more, bytes_ ? room_ + room_ / 2 : size_t(256));
            // The object is gone where it cannot grow.
            PyObject* grown = bytes_;
            bytes_ = nullptr;
            if (!grown) grown = PyBytes_FromStringAndSize(nullptr, Py_ssize_t(room));
            else if (_PyBytes_Resize(&grown, Py_ssize_t(room)) < 0) grown = nullptr;
            if (!grown) {
                PyErr_Clear();
                used = room_ = 0;
                throw std::bad_alloc();
            }
            bytes_ = grown;
            room_ = room;
        }
        return begin() + used;
    }

    template <typename Number> Number* reserve_numbers(size_t more) {
        return reinterpret_cast<Number*>(reserve(more * sizeof(Number)));
    }

    // The bytes that were put in, as an object; null with an exception set.
    PyObject* take() {
        PyObject* taken = bytes_;
        size_t size = used;
        bytes_ = nullptr;
        used = room_ = 0;
        if (!taken) return PyBytes_FromStringAndSize("", 0);
        if (_PyBytes_Resize(&taken, Py_ssize_t(size)) < 0) return nullptr;
        return taken;
    }
};

}  // namespace txbroker
