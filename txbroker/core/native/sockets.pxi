# The input from the sockets of clients, and of links.

cdef enum:
    READ_SIZE = 256 * 1024

    READ_LEAST = 1024

    # Of whom nobody knows what it brings.
    FIRST_READ = 32 * 1024

    BATCH = 1024

# The last bytes of clients that have left are read in turn: a crowd may leave at once.
cdef int ENDED = EPOLLERR | EPOLLHUP

cdef char read_buffer[READ_SIZE]


# A node that never rests, and finds one small message at each socket, goes round more often than is
# good. A moment later each has several, which share the system calls.
cdef enum:
    ROUNDS = 64  # between two looks at that
    CALM = 200  # looks after one that showed that this is no good
cdef timespec MOMENT = timespec(0, 20_000)


# Ready sockets are read for so long, in seconds; the others are ready still, and come first.
cdef double READ_FOR = 0.002

# Likewise, while somebody waits for many turns.
cdef double HURRIED_FOR = 0.0003

# A read counts for so much at least, in seconds. Otherwise a socket of a crowd, read little at a
# time, would wait for several rounds when its read took a little longer.
cdef double LIGHT = 0.0001

# All ready sockets are read once in so long. A client that asks for little waits for a read of each
# of the others: where they are many, these have used no more than it has.
cdef double ROUND_FOR = 0.01

# A read is so much smaller meanwhile.
cdef enum:
    HURRIED_PART = 4


# Runs for the journal wait for others to be kept with, in bytes and seconds.
cdef enum:
    KEPT_SIZE = 1024 * 1024
cdef double KEPT_FOR = 0.01


cdef double monotonic() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + now.tv_nsec * 1e-9


cdef double worked() noexcept nogil:
    """Seconds for which this thread has worked: that others of the machine did is nobody's fault."""
    cdef timespec now
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now)
    return now.tv_sec + now.tv_nsec * 1e-9


# As in the reference, of links.
cdef double SILENT = 2.0


cdef bint is_silent(Input packet_reader, double now) noexcept:
    return packet_reader.heard_at > 0 and now - packet_reader.heard_at > SILENT


def _nobody(*_):
    return None


@cython.final
cdef class Sender:
    """As in the reference; made by `Router.make_sender`."""

    cdef PacketWriter packet_writer
    cdef object make_header
    cdef dict headers
    cdef public int64_t room
    cdef readonly uint64_t sent
    cdef public bint has_properties

    def __init__(self, PacketWriter packet_writer not None, make_header):
        self.packet_writer = packet_writer
        self.make_header = make_header
        self.headers = {}

    def forget(self):
        """As in the reference."""
        self.headers.clear()

    cdef bint can_send(self):
        return self.room > 0 and self.packet_writer.descriptor >= 0

    def send(self, Run run not None):
        """As in the reference."""
        is_sent = self.can_send()
        if is_sent:
            self.put(run)
            self.packet_writer.router.notify_output()
        return is_sent

    cdef int put(self, Run run) except -1:
        cdef size_t first, last
        cdef bytes stored
        cdef bytes header = self.headers.get(run.clients[0])
        if not self.has_properties:
            run = run.without_properties()
        first, last = run.entries_.front().start, run.entries_.back().end
        if header is None:
            header = self.make_header(run.clients[0])[:-<Py_ssize_t>COUNT]
            if len(self.headers) >= MOST_KNOWN:
                self.headers.clear()
            self.headers[run.clients[0]] = header
        self.packet_writer.note()
        self.packet_writer.output.append(PyBytes_AS_STRING(header), PyBytes_GET_SIZE(header))
        put_count(self.packet_writer.output.extend(COUNT), run.entries_.size())
        if run.listed:
            stored = run.raw
            self.packet_writer.output.share(
                <PyObject*>stored, PyBytes_AS_STRING(stored), PyBytes_GET_SIZE(stored)
            )
        else:
            self.packet_writer.output.share(<PyObject*>run.data, run.bytes_at(first), last - first)
        self.room -= run.size
        self.sent += run.size
        return 0


@cython.final
cdef class Sockets:
    """As in the reference; made by `Router.make_sockets`."""

    cdef Router router
    cdef list packet_readers  # of type Input, by descriptor
    cdef object ask
    cdef object leave
    cdef object find_edge
    cdef object find_owner
    cdef list kept  # how, and what
    cdef size_t kept_size
    cdef double kept_until
    cdef dict answers  # of Python, since it last had a turn
    cdef cbool has_left
    cdef cbool is_rushed
    cdef int rounds
    cdef int calm  # so many looks at nothing more
    cdef double usual  # bytes of a read, before it was
    cdef uint64_t reads
    cdef uint64_t size  # of these
    cdef double rested
    cdef double since
    cdef size_t most  # bytes of a read
    cdef cbool is_crowded
    cdef cbool is_hurried
    cdef double floor  # what those have used who are read now
    cdef double top  # the most that anybody has used

    def __cinit__(self, Router router not None):
        self.router = router
        self.most = READ_SIZE
        self.packet_readers = []
        self.ask = self.leave = self.find_edge = self.find_owner = _nobody
        self.answers = {}
        self.kept = []

    def wire_zone(self, ask, leave, find_edge):
        """As in the reference."""
        self.ask = ask
        self.leave = leave
        self.find_edge = find_edge

    def wire_owners(self, find_owner):
        """As in the reference."""
        self.find_owner = find_owner

    def add(self, size_t descriptor, Input packet_reader not None):
        """Give the input of the descriptor to this packet reader."""
        while len(self.packet_readers) <= <Py_ssize_t>descriptor:
            self.packet_readers.append(None)
        self.packet_readers[descriptor] = packet_reader

    def remove(self, size_t descriptor):
        """Read the descriptor no more."""
        if <Py_ssize_t>descriptor < len(self.packet_readers):
            self.packet_readers[descriptor] = None

    def crowd(self, size_t waiting):
        """As in the reference."""
        self.most = max(<size_t>READ_SIZE // (waiting + 1), <size_t>READ_LEAST)

    def hurry(self, bint is_hurried):
        """As in the reference."""
        self.is_hurried = is_hurried

    def read(self, int descriptor):
        """As in the reference."""
        cdef Input packet_reader = None
        if 0 <= descriptor < len(self.packet_readers):
            packet_reader = <Input>self.packet_readers[descriptor]
        return packet_reader is not None and self.read_one(packet_reader, descriptor, 0) == FED

    @property
    def has_postponed(self):
        """As in the reference."""
        return self.router.is_due or bool(self.kept)

    def notify_output(self):
        """As in the reference."""
        self.router.notify_output()
        if self.kept:
            kept, self.kept, self.kept_size = self.kept, [], 0
            for keep, runs in kept:
                keep(runs)

    def wait(self, epoll, bytearray interest not None, timeout, clock):
        """As in the reference."""
        cdef epoll_event events[BATCH]
        cdef double until = INFINITY, end
        cdef int number = epoll.fileno(), count, most = -1
        cdef list left
        if timeout is not None:
            until = monotonic() + <double>timeout
        self.has_left = False
        self.answers.clear()
        while True:
            end = min(until, self.kept_until) if self.kept else until
            if end != INFINITY:
                most = <int>min(max(0.0, ceil(1000 * (end - monotonic()))), 1e9)
            self.rested -= monotonic()
            with nogil:
                if self.is_rushed and most:
                    nanosleep(&MOMENT, NULL)
                count = epoll_wait(number, events, BATCH, most)
            self.note_round(monotonic())
            self.router.begin_turn()
            if count < 0:
                if errno != EINTR:
                    PyErr_SetFromErrno(OSError)
                PyErr_CheckSignals()
                continue
            left = self.serve(events, count, interest, clock)
            if left or self.has_left or not self.router.send_all():
                return left
            if self.kept_size >= KEPT_SIZE or (end != INFINITY and monotonic() >= end):
                return left if self.kept else None

    cdef int note_round(self, double now) except -1:
        """Note that the poll was woken."""
        cdef double elapsed = now - self.since
        self.rested += now
        self.rounds += 1
        if self.rounds < ROUNDS:
            return 0
        if self.is_rushed:
            # Clients that wait for an answer bring no more than before, however long the pause is.
            is_better = self.size >= 1.5 * self.usual * self.reads
            self.is_rushed = is_better and self.rested < 0.75 * elapsed
            self.calm = 0 if is_better else CALM
        elif self.calm:
            self.calm -= 1
        elif self.reads >= 4 * ROUNDS and self.rested < 0.2 * elapsed:
            self.usual = self.size / <double>self.reads
            self.is_rushed = self.usual < 512
        self.rounds = self.reads = self.size = 0
        self.rested, self.since = 0, now
        return 0

    cdef list serve(self, epoll_event* events, int count, bytearray interest, clock):
        """Serve those; gives what is for others."""
        cdef list left = []
        cdef double now = clock(), before = monotonic(), after, used
        cdef double until = before + (HURRIED_FOR if self.is_hurried else READ_FOR)
        cdef bint is_crowd = self.is_crowded
        cdef double worked_before = worked() if is_crowd else before, worked_after
        cdef Input packet_reader
        cdef int index, descriptor
        cdef bint is_late = False
        if is_crowd:
            self.sort(events, count)
        self.router.is_quiet = True
        try:
            for index in range(count):
                descriptor = events[index].data.fd
                packet_reader = None
                if descriptor < len(self.packet_readers):
                    packet_reader = <Input>self.packet_readers[descriptor]
                if (
                    packet_reader is None
                    or events[index].events & ~<uint32_t>ENDED != EPOLLIN
                    or not interest[descriptor] & EPOLLIN
                ):
                    left.append((descriptor, events[index].events))
                elif not is_late:
                    told = self.read_one(packet_reader, descriptor, now)
                    after = monotonic()
                    worked_after = worked() if is_crowd else after
                    used = max(packet_reader.used, self.floor)
                    packet_reader.used = used + max(worked_after - worked_before, LIGHT)
                    self.top = max(self.top, packet_reader.used)
                    self.note_read(packet_reader, after - before, count)
                    before, worked_before = after, worked_after
                    if told:
                        left.append((descriptor, told))
                    # One slow read delays nobody where nobody waits: the next turn may be a crowd's.
                    if after >= until and (index + 1 < count or count == BATCH):
                        is_late = True
                        self.floor = used
        finally:
            self.router.is_quiet = False
        if not is_late:
            # Nobody waits: all are even. Otherwise a crowd of new clients, which have used nothing
            # yet, would go before a client of hours for seconds.
            self.floor = self.top
        self.is_crowded = is_late
        return left

    cdef int note_read(self, Input packet_reader, double took, int ready) noexcept:
        """Read less at once when a read took long: its bytes go to a crowd, or come from one."""
        cdef double most = min(READ_FOR, ROUND_FOR / ready)
        if took > most:
            packet_reader.portion = <size_t>(min(packet_reader.portion, self.most) * (most / took))
            packet_reader.portion = max(packet_reader.portion, <size_t>READ_LEAST)
        elif not self.is_hurried and took < most / 2 and packet_reader.portion < READ_SIZE:
            packet_reader.portion *= 2
        return 0

    cdef int sort(self, epoll_event* events, int count) except -1:
        """Whoever has used least comes first, however many others are ready."""
        cdef vector[pair[double, int]] order
        cdef vector[epoll_event] sorted_
        cdef int index, descriptor
        cdef double used
        for index in range(count):
            descriptor = events[index].data.fd
            used = 0
            if descriptor < len(self.packet_readers) and self.packet_readers[descriptor] is not None:
                used = max((<Input>self.packet_readers[descriptor]).used, self.floor)
            order.push_back(pair[double, int](used, index))
        stable_sort(order.begin(), order.end())
        for index in range(count):
            sorted_.push_back(events[order[index].second])
        for index in range(count):
            events[index] = sorted_[index]
        return 0

    cdef int read_one(self, Input packet_reader, int descriptor, double now) except -1:
        """The part of the socket's input that is for others: `FED`, that it is at its end, or 0."""
        cdef ssize_t size
        cdef size_t most = min(self.most, packet_reader.portion)
        cdef bytes data
        cdef bint is_amid = packet_reader.is_amid()
        if self.is_hurried:
            most = max(most // HURRIED_PART, <size_t>READ_LEAST)
        if is_amid:
            size = packet_reader.read_on(descriptor)
        else:
            size = recv(descriptor, read_buffer, most, MSG_DONTWAIT)
        if size <= 0:
            return EPOLLIN if not size or (errno != EAGAIN and errno != EINTR) else 0
        self.reads += 1
        self.size += size
        if is_amid:
            return FED if packet_reader.tail_size == packet_reader.wanted else 0
        try:
            if packet_reader.take_pings(read_buffer, size, now):
                return 0
            if packet_reader.is_fed:
                packet_reader.add(read_buffer, size)
                return FED
            data = packet_reader.joined(read_buffer, size)
            if data is None:
                return 0 if packet_reader.is_new() else FED
            if packet_reader.buffer_rest(data, self.forward(packet_reader, data, now)):
                return 0
        except Exception as error:
            packet_reader.fault = error
        return FED

    cdef size_t forward(self, Input packet_reader, bytes data, double now) except? 0:
        """Have go on at once what can; where that ends."""
        cdef size_t at
        cdef Run run
        if isinstance(packet_reader, LinkReader) and is_silent(packet_reader, now):
            return 0
        at = packet_reader.answered(data, 0)
        run = packet_reader.peek(data, at)
        while run is not None and self.forward_run(packet_reader, run):
            at = packet_reader.answered(data, packet_reader.peeked)
            run = packet_reader.peek(data, at)
        if at:
            packet_reader.heard_at = now
        return at

    cdef bint forward_run(self, Input packet_reader, Run run) except -1:
        """Take a run, if it can go on at once."""
        leave = self.leave
        if isinstance(packet_reader, LinkReader) and (<LinkReader>packet_reader).may_take is not None:
            left = self.deliver(<LinkReader>packet_reader, run)
            leave = (<LinkReader>packet_reader).leave
        else:
            left = self.publish(run)
            if left is None and isinstance(packet_reader, PacketReader):
                left = self.send(run)
        if left is None:
            return False
        packet_reader.record_forwarded(run)
        if left or self.router.full:
            self.answers.clear()
            self.has_left = True
            leave(run, left)
        return True

    cdef object answer(self, key, question, tuple arguments):
        """Python's answer to this question since it last had a turn."""
        answer = self.answers.get(key, self)
        if answer is self:
            answer = self.answers[key] = question(*arguments)
        return answer

    cdef list deliver(self, LinkReader packet_reader, Run run):
        """To the clients that are here; None: it has to wait."""
        if not self.answer(packet_reader, packet_reader.may_take, ()):
            return None
        return self.router.fan_out(run, None)

    cdef list publish(self, Run run):
        """In the own zone; None: it is not of that, or somebody has to wait."""
        cdef list senders = []
        cdef tuple edges
        cdef bint is_here = False
        way = self.answer(None, self.ask, ())
        if way is None:
            return None
        route, verdict, here, keep = way
        edges = self.router.edges_for(run, route, verdict)
        if edges is None:
            return None
        for edge in edges:
            if edge is here:
                is_here = True
                continue
            sender = self.answer(edge, self.find_edge, (edge,))
            if sender is None or not (<Sender?>sender).can_send():
                return None
            senders.append(sender)
        for sender in senders:
            (<Sender>sender).put(run)
        if keep is not None:
            self.keep(keep, run)
        return self.router.fan_out(run, None) if is_here else []

    cdef int keep(self, how, Run run) except -1:
        """With others, soon: before anything else of Python has a turn."""
        if not self.kept:
            self.kept_until = monotonic() + KEPT_FOR
        if not self.kept or self.kept[-1][0] != how:
            self.kept.append((how, []))
        (<list>(<tuple>self.kept[-1])[1]).append(run)
        self.kept_size += run.size
        return 0

    cdef list send(self, Run run):
        """To an owner elsewhere; None: there is none, or it has to wait."""
        route = self.router.route_of(run)
        sender = None if route is None else self.answer(route, self.find_owner, (route,))
        if sender is None or not (<Sender?>sender).can_send():
            return None
        (<Sender>sender).put(run)
        return []
