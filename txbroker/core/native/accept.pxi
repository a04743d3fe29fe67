# Connections that come.


def accept(listening):
    """As in the reference; one system call."""
    cdef unsigned char address[128]
    cdef socklen_t size = sizeof(address)
    memset(address, 0, sizeof(address))
    cdef int descriptor = accept4(
        listening.fileno(), <sockaddr*> address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC
    )
    if descriptor < 0:
        if errno == EAGAIN:
            return -1, b""
        PyErr_SetFromErrno(OSError)
    if (<uint16_t*> address)[0] == AF_INET6:
        return descriptor, address[8:24]
    return descriptor, address[4:8]
