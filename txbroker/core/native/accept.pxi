# Connections that come.

cdef const char* MAPPED = b"\0\0\0\0\0\0\0\0\0\0\xff\xff"
# The first bytes of an IPv4 address that is written as an IPv6 one.


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
    if (<uint16_t*> address)[0] != AF_INET6:
        return descriptor, address[4:8]
    if memcmp(address + 8, MAPPED, 12) == 0:
        return descriptor, address[20:24]
    return descriptor, address[8:16]
