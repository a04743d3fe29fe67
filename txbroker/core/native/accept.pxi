# Connections that come.


def accept(listening):
    """As in the reference; one system call."""
    cdef int descriptor = accept4(listening.fileno(), NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
    if descriptor < 0:
        if errno == EAGAIN:
            return -1
        PyErr_SetFromErrno(OSError)
    return descriptor
