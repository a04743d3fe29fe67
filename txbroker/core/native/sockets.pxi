# What comes from the sockets of clients.

cdef enum:
    READ_SIZE = 256 * 1024

cdef char read_buffer[READ_SIZE]


def _nobody():
    return None


@cython.final
cdef class Sockets:
    """As in the reference; made by `Exchange.make_sockets`."""

    cdef Exchange exchange
    cdef list inlets  # by descriptor
    cdef object ask
    cdef object leave
    cdef tuple way  # what was answered to `ask`, good until Python has run
    cdef cbool is_asked

    def __cinit__(self, Exchange exchange not None):
        self.exchange = exchange
        self.inlets = []
        self.ask = _nobody

    def wire(self, ask, leave):
        """As in the reference."""
        self.ask = ask
        self.leave = leave

    def add(self, size_t descriptor, Inlet inlet not None):
        """What comes there is for this inlet."""
        while len(self.inlets) <= <Py_ssize_t>descriptor:
            self.inlets.append(None)
        self.inlets[descriptor] = inlet

    def remove(self, size_t descriptor):
        """It is read no more."""
        if <Py_ssize_t>descriptor < len(self.inlets):
            self.inlets[descriptor] = None

    def serve(self, list ready not None, bytearray interest not None, double now):
        """As in the reference."""
        cdef list left = []
        cdef tuple pair
        cdef Inlet inlet
        cdef bytes data
        cdef int events, descriptor
        cdef ssize_t size
        cdef bint is_amid
        self.is_asked = False
        for pair in ready:
            descriptor, events = pair
            inlet = None
            if descriptor < len(self.inlets):
                inlet = <Inlet>self.inlets[descriptor]
            if inlet is None or events != EPOLLIN or not interest[descriptor] & EPOLLIN:
                left.append(pair)
                continue
            is_amid = inlet.is_amid()
            if is_amid:
                size = inlet.read_on(descriptor)
            else:
                size = recv(descriptor, read_buffer, READ_SIZE, MSG_DONTWAIT)
            if size <= 0:
                if not size or (errno != EAGAIN and errno != EINTR):
                    left.append(pair)
            elif is_amid:
                if inlet.tail_size == inlet.wanted:
                    left.append((descriptor, FED))
            else:
                data = PyBytes_FromStringAndSize(read_buffer, size)
                if not self.take(inlet, data, now):
                    inlet.feed(data)
                    left.append((descriptor, FED))
        self.way = None
        return left

    cdef bint take(self, Inlet inlet, bytes data, double now) except -1:
        """Take what was read, if it can go on at once."""
        cdef Run run
        if PyBytes_GET_SIZE(data) > SHORT:
            return False
        if not self.is_asked:
            self.way = self.ask()
            self.is_asked = True
        if self.way is None:
            return False
        run = inlet.peek(data)
        if run is None:
            return False
        left = self.exchange.pass_on(run, *self.way)
        if left is None:
            return False
        inlet.heard_at = now
        self.exchange.received += run.entries_.size()
        if left or self.exchange.full:
            self.is_asked = False
            self.leave(run, left)
        return True
