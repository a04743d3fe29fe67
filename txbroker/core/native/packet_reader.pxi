# The input of one client, or of a link: bytes in, runs and single packets out.

cdef size_t MOST_AHEAD = 0xFFFF_0000  # places in runs have 32 bits
cdef size_t MUCH = 64 * 1024
cdef size_t LONG = 256 * 1024  # bytes of a packet that is not copied
cdef Py_ssize_t MOST_KNOWN = _MOST_KNOWN
cdef Py_ssize_t LONGEST_KNOWN = _LONGEST_KNOWN


cdef class Input:
    """
    Bytes that were read and not worked off, cut into packets as `mqtt.framing.Framer` does.

    `data` is what was read, from `at` on: packets are looked at where they are. Only what is left
    of an incomplete one is copied, to `tail`, where it grows until there are `wanted` bytes.
    """

    cdef bytes data
    cdef size_t at
    cdef PyObject* tail  # a bytes object that nobody else knows, longer than `tail_size`
    cdef size_t tail_size
    cdef size_t wanted
    cdef public size_t max_packet
    cdef Form form  # of publishes that come
    cdef cbool is_fed  # something may be left to look at
    cdef size_t peeked  # where the run that was peeked at ends
    cdef public double heard_at
    cdef double used  # seconds of reading, as `Sockets` counts them
    cdef size_t portion  # bytes that are read at once, less where those take long
    cdef public object fault

    def __cinit__(self, *args, **kwargs):
        self.data = b""
        self.portion = FIRST_READ
        self.form = LEVEL_4

    def __dealloc__(self):
        Py_XDECREF(self.tail)

    @property
    def first_byte(self):
        """The first byte of the packet that is not complete yet."""
        if self.at < <size_t>PyBytes_GET_SIZE(self.data):
            return self.data[self.at]
        return (<bytes>self.tail)[0] if self.tail_size else None

    @property
    def awaited(self):
        """Bytes of the packet that is not complete yet, as far as its length is known."""
        return max(PyBytes_GET_SIZE(self.data) - self.at + self.tail_size, self.wanted)

    def feed(self, data not None):
        """
        Take what was read, of which nothing but bytes is kept as it is; `step` works it off. Raises
        `OverflowError` beyond 4 GiB.
        """
        cdef Py_buffer read
        self.is_fed = True
        if isinstance(data, bytes) and self.is_idle() and <size_t>len(data) <= MOST_AHEAD:
            self.data = data
            self.at = 0
            return
        PyObject_GetBuffer(data, &read, PyBUF_SIMPLE)
        try:
            self.add(<const char*>read.buf, read.len)
        finally:
            PyBuffer_Release(&read)

    cdef int add(self, const char* data, size_t size) except -1:
        """Take what was read, which is copied."""
        cdef size_t left = PyBytes_GET_SIZE(self.data) - self.at
        self.is_fed = True
        if size + left + self.tail_size > MOST_AHEAD:
            raise OverflowError("more than fits was read ahead")
        if self.is_idle():
            self.data = PyBytes_FromStringAndSize(data, size)
            self.at = 0
            return 0
        self.set_aside()
        return self.grow_tail(data, size)

    cdef int set_aside(self) except -1:
        """A few bytes that are left over must not keep a read of 256 KiB in memory."""
        cdef size_t left = PyBytes_GET_SIZE(self.data) - self.at
        if left:
            self.grow_tail(PyBytes_AS_STRING(self.data) + self.at, left)
        self.data = b""
        self.at = 0
        return 0

    cdef int grow_tail(self, const char* data, size_t size) except -1:
        """Put more to the tail."""
        self.widen_tail(size)
        if size:
            memcpy(PyBytes_AS_STRING(<bytes>self.tail) + self.tail_size, data, size)
        self.tail_size += size
        return 0

    cdef int widen_tail(self, size_t size) except -1:
        """The tail has room for so much more, and for more than that when it gets long."""
        cdef size_t needed = self.tail_size + size, room
        if self.tail == NULL:
            self.tail_size = 0
            self.tail = new_bytes(size)
            return 0
        room = PyBytes_GET_SIZE(<bytes>self.tail)
        if room and room < needed:
            room = max(needed, min(max(self.wanted, room + room // 2), 2 * needed))
            try:
                _PyBytes_Resize(&self.tail, room)
            except MemoryError:
                self.tail_size = 0
                raise
        return 0

    cdef bint is_amid(self) noexcept:
        """Whether much is to come of a packet, of which there is some already."""
        return self.tail_size and self.wanted >= self.tail_size + MUCH

    cdef ssize_t read_on(self, int descriptor) except -2:
        """As `recv`: read of such a packet straight to where it stays, and nothing else."""
        cdef size_t had = self.tail_size, most
        cdef ssize_t size
        self.widen_tail(MUCH)
        most = min(self.wanted, <size_t>PyBytes_GET_SIZE(<bytes>self.tail)) - had
        # The kernel may hold 6 MB: copied at once, these make everybody wait.
        most = min(most, 2 * self.portion)
        size = recv(descriptor, PyBytes_AS_STRING(<bytes>self.tail) + had, most, MSG_DONTWAIT)
        if size > 0:
            self.tail_size += size
        return size

    cdef bint is_idle(self) noexcept:
        """Whether everything that came is worked off."""
        return not self.tail_size and <Py_ssize_t>self.at == PyBytes_GET_SIZE(self.data)

    cdef bint is_new(self) noexcept:
        """As in the reference."""
        return False

    cdef bytes joined(self, const char* data, size_t size):
        """
        The packet whose beginning came before, joined with this; None: it is not whole yet, and was
        taken.
        """
        if not self.tail_size:
            return PyBytes_FromStringAndSize(data, size)
        self.grow_tail(data, size)
        if not self.begin():
            return None
        whole, self.data = self.data, b""
        return whole

    cdef bint take_pings(self, const char* data, size_t size, double now) except -1:
        """As in the reference."""
        return False

    cdef size_t answered(self, bytes data, size_t at) except? 0:
        """As in the reference, from `at` on; where that ends."""
        return at

    cdef Run peek(self, bytes data, size_t at):
        """The run there, where it may go on at once; it ends at `peeked`."""
        return None

    cdef int record_forwarded(self, Run run) except -1:
        """Note that the run went on."""
        return 0

    cdef int gather(self, bytes data, size_t at, Gathered& plain, size_t most) except -1:
        """Gather the plain publishes of QoS 0 there, at most so many."""
        cdef size_t size = PyBytes_GET_SIZE(data)
        self.peeked = take_plain(plain, bytes_of(data), at, size, self.max_packet, most, self.form)
        return 0

    cdef Cut look(self, bytes data, size_t at, Frame& frame) noexcept:
        """Cut the packet at this place."""
        cdef size_t size = PyBytes_GET_SIZE(data)
        return cut(bytes_of(data) + at, size - at, self.max_packet, frame)

    cdef bint buffer_rest(self, bytes data, size_t at) except -1:
        """As in the reference, of what there is from `at` on."""
        cdef Frame frame
        self.is_fed = not at or self.look(data, at, frame) != PART
        if self.is_fed:
            self.data = data
            self.at = at
        elif at < <size_t>PyBytes_GET_SIZE(data):
            self.wanted = frame.stop
            self.grow_tail(PyBytes_AS_STRING(data) + at, PyBytes_GET_SIZE(data) - at)
        return not self.is_fed

    cdef bint begin(self) except -1:
        """Whether there may be a packet; if so, the bytes are all in `data`."""
        cdef size_t pending = PyBytes_GET_SIZE(self.data) - self.at + self.tail_size
        if pending < self.wanted:
            self.set_aside()
            return False
        self.wanted = 2
        if self.tail_size:
            if <size_t>PyBytes_GET_SIZE(<bytes>self.tail) != self.tail_size:
                _PyBytes_Resize(&self.tail, self.tail_size)
            self.data = <bytes>self.tail
            self.at = 0
            Py_XDECREF(self.tail)
            self.tail = NULL
            self.tail_size = 0
        return True

    cdef bint cut(self, Frame& frame) except -1:
        """Whether there is a whole packet at `at`; what is no packet goes into `fault`."""
        cdef size_t left = PyBytes_GET_SIZE(self.data) - self.at
        cdef Cut found = cut(self.bytes_at(self.at), left, self.max_packet, frame)
        if found == WHOLE:
            return True
        if found == PART:
            self.wanted = frame.stop
            self.set_aside()
        elif found == TOO_LARGE:
            first_byte = self.bytes_at(self.at)[0]
            body = self.data[self.at + frame.body : self.at + frame.stop]
            self.fault = _too_large(self.max_packet, first_byte, body)
        else:
            reason = "A remaining length has more than four bytes."
            self.fault = ProtocolViolation("section 2.2.3", reason)
        return False

    cdef bint take_plain(self, Gathered& gathered, size_t most) except -1:
        """Take what is plain at QoS 0, up to anything else; whether that was any."""
        cdef size_t size = PyBytes_GET_SIZE(self.data), start = self.at
        self.at = take_plain(
            gathered, self.bytes_at(0), start, size, self.max_packet, most, self.form
        )
        return self.at > start

    cdef const Byte* bytes_at(self, size_t place) noexcept:
        return <const Byte*>PyBytes_AS_STRING(self.data) + place

    cdef tuple take_frame(self, const Frame& frame, Byte first_byte):
        """The packet at `at`, for others."""
        cdef const char* body = PyBytes_AS_STRING(self.data) + self.at + frame.body
        found = first_byte, PyBytes_FromStringAndSize(body, frame.stop - frame.body)
        self.at += frame.stop
        return found

    cdef bint is_alone(self, const Frame& frame) noexcept:
        """Whether `data` is a large packet and no more."""
        cdef size_t size = PyBytes_GET_SIZE(self.data)
        return size >= LONG and not self.at and frame.stop == size

    cdef tuple take_all(self, const Frame& frame, Byte first_byte):
        """
        The packet that `data` is, for others; moved within `data` if nobody else has that. A copy of
        16 MB takes three times as long, and its memory.
        """
        cdef size_t size = frame.stop - frame.body
        cdef PyObject* whole
        cdef char* start
        if Py_REFCNT(<PyObject*>self.data) > 1:
            return self.take_frame(frame, first_byte)
        Py_INCREF(self.data)
        whole = <PyObject*>self.data
        self.data = b""
        start = PyBytes_AS_STRING(<bytes>whole)
        memmove(start, start + frame.body, size)
        _PyBytes_Resize(&whole, size)
        found = first_byte, <bytes>whole
        Py_XDECREF(whole)
        return found


cdef PyObject* new_bytes(size_t size) except NULL:
    cdef bytes made = PyBytes_FromStringAndSize(NULL, size)
    Py_INCREF(made)
    return <PyObject*>made


def limit_levels(size_t most):
    """As in the reference."""
    global most_levels
    most_levels = most
    _limit_levels(most)


@cython.final
cdef class PacketReader(Input):
    """As in the reference; made by `Router.make_packet_reader`."""

    cdef PacketWriter packet_writer
    cdef Flows flows
    cdef object session
    cdef str client_id
    cdef tuple clients  # made when there is a run
    cdef list pubacks_
    cdef public object qos0
    cdef public object qos12
    cdef cbool is_clean
    cdef public cbool takes_qos12
    cdef public cbool leaves_text
    cdef public cbool has_heard
    cdef public cbool has_landed
    cdef public cbool has_more
    cdef public cbool wants_flows
    cdef public cbool is_padded

    def __init__(self, size_t max_packet, PacketWriter packet_writer not None):
        self.max_packet = max_packet
        self.wanted = 2
        self.packet_writer = packet_writer

    @property
    def pubacks(self):
        """Packet ids of PUBACKs that are for others."""
        return [] if self.pubacks_ is None else self.pubacks_

    def open(self, session, str client_id not None, Flows flows, *, bint clean, int level=4):
        """As in the reference."""
        self.session = session
        self.client_id = client_id
        self.clients = None
        self.flows = flows
        self.is_clean = clean
        self.form = LEVEL_5 if level >= LISTED_LEVEL else LEVEL_4

    def close(self):
        """Nothing more is gathered."""
        self.session = None

    def step(self):
        """
        Work on up to a packet that is for others, and return it. Or work on to the end, if a run
        has room for so many messages. It `has_more` where bytes may be left to look at.

        The gathered packets came before it. The caller takes them from `qos0`, `qos12` and
        `pubacks` first, then `fault`: the bytes that follow are no packets. `has_heard` is set when
        there was a whole packet. Where the window of the packet_writer has got room, what waited
        behind it is launched; `has_landed`: its session has to see to the rest. `wants_flows`: the
        next packet is a publish that may be gathered when there are any.
        """
        cdef Frame frame
        cdef bytes data
        cdef Gathered plain, others
        cdef tuple found = None
        cdef uint32_t serial = 0 if self.flows is None else self.flows.next_serial()
        self.pubacks_ = None
        self.has_heard = self.has_landed = self.has_more = self.wants_flows = False
        plain.leaves_text = others.leaves_text = self.leaves_text
        if self.begin():
            data = self.data
            if self.session is not None:
                self.has_heard = self.take_plain(plain, MOST_IN_RUN - 1)
            while self.cut(frame):
                self.has_heard = True
                if self.session is None or not self.process(frame, serial, plain, others):
                    if self.wants_flows:
                        self.has_more = True
                        break
                    if self.is_alone(frame):
                        data = b""  # no publish was before it
                        found = self.take_all(frame, self.bytes_at(0)[0])
                    else:
                        found = self.take_frame(frame, self.bytes_at(self.at)[0])
                    self.is_padded = frame.is_padded
                    self.has_more = self.at < <size_t>PyBytes_GET_SIZE(self.data)
                    if not self.has_more:
                        self.set_aside()
                    break
                self.at += frame.stop
                if plain.entries.size() == MOST_IN_RUN or others.entries.size() == MOST_IN_RUN:
                    self.has_more = True
                    break
            if self.has_landed:
                self.packet_writer.launch()
                self.has_landed = not self.packet_writer.is_direct or self.packet_writer.has_news()
            self.qos0 = self.run(plain, data, serial)
            self.qos12 = self.run(others, data, serial)
            self.packet_writer.router.notify_output()
        else:
            self.qos0 = self.qos12 = None
        self.is_fed = self.has_more or self.fault is not None
        return found

    cdef bint is_new(self) noexcept:
        return self.session is None

    cdef bint take_pings(self, const char* data, size_t size, double now) except -1:
        cdef size_t half = self.tail_size, total = half + size
        if not self.are_pings(data, size) or not self.may_take_pings():
            return False
        if half:
            Py_XDECREF(self.tail)
            self.tail = NULL
            self.tail_size = 0
        if total & 1:
            self.wanted = 2
            self.grow_tail(data + size - 1, 1)
        if total > 1:
            self.heard_at = now
            self.packet_writer.put_pongs(total // 2)
        return True

    cdef bint are_pings(self, const char* data, size_t size) noexcept:
        """Whether this, behind so many bytes of a PINGREQ, is nothing else."""
        cdef size_t half = self.tail_size, place
        for place in range(size):
            if <Byte>data[place] != (0 if (half + place) & 1 else 0xC0):
                return False
        return True

    cdef bint may_take_pings(self) noexcept:
        """As in the reference."""
        if self.session is None or self.is_fed or self.tail_size > 1:
            return False
        if self.tail_size and PyBytes_AS_STRING(<bytes>self.tail)[0] != <char>0xC0:
            return False
        return self.packet_writer.descriptor >= 0 and self.packet_writer.is_open()

    cdef size_t answered(self, bytes data, size_t at) except? 0:
        cdef Frame frame
        if self.session is None or not self.packet_writer.is_calm():
            return at
        self.has_landed = False
        while self.look(data, at, frame) == WHOLE:
            if not self.take_answer(frame, bytes_of(data) + at):
                break
            at += frame.stop
        if self.has_landed:
            self.packet_writer.launch()
        return at

    cdef Run peek(self, bytes data, size_t at):
        cdef Gathered plain
        cdef Frame frame
        if self.session is None:
            return None
        plain.leaves_text = self.leaves_text
        self.gather(data, at, plain, MOST_IN_RUN)
        return self.run(plain, data, 0) if self.look(data, self.peeked, frame) == PART else None

    cdef int record_forwarded(self, Run run) except -1:
        self.packet_writer.router.received += run.entries_.size()
        return 0

    cdef bint process(
        self, const Frame& frame, uint32_t serial, Gathered& plain, Gathered& others
    ) except -1:
        """Deal with the packet at `at`; False: it is for others."""
        cdef const Byte* packet = self.bytes_at(self.at)
        if packet[0] >> 4 != 3:
            return self.take_answer(frame, packet)
        if packet[0] & 6:
            return self.take_publish(frame, serial, others)
        return self.take_publish(frame, serial, plain)

    cdef bint is_illegal(self, const Frame& frame) noexcept:
        """As in the reference."""
        return frame.is_padded and self.form == LEVEL_5

    cdef bint take_answer(self, const Frame& frame, const Byte* packet) except -1:
        """Deal with the packet if it answers one; False: it is for others."""
        cdef Byte first_byte = packet[0]
        cdef uint16_t packet_id
        if frame.stop - frame.body != 2 or self.is_illegal(frame):
            return False
        packet_id = packet[frame.body] << 8 | packet[frame.body + 1]
        if not packet_id:
            return False
        if first_byte == 0x40:
            if self.packet_writer.has_window:
                if not self.packet_writer.acknowledge_one(packet_id):
                    return False
                self.has_landed = True
            else:
                if self.pubacks_ is None:
                    self.pubacks_ = []
                self.pubacks_.append(packet_id)
            return True
        if not self.is_clean:
            return False
        if first_byte == 0x50:
            return self.packet_writer.receive_one(packet_id)
        elif first_byte == 0x62:
            if self.flows is None:
                return False
            return self.flows.release_one(packet_id, self.packet_writer)
        elif first_byte == 0x70:
            if not self.packet_writer.complete_one(packet_id):
                return False
            self.has_landed = True
        else:
            return False
        return True

    cdef bint take_publish(
        self, const Frame& frame, uint32_t serial, Gathered& gathered
    ) except -1:
        cdef const Byte* packet = self.bytes_at(self.at)
        cdef Publish one
        if self.is_illegal(frame):
            return False
        if not plain_publish(packet[0], packet, frame, one, gathered, self.form):
            return False
        if one.qos:
            self.wants_flows = self.flows is None
            if not self.takes_qos12 or self.wants_flows or (one.qos == 2 and not self.is_clean):
                return False
            if not self.flows.open_flow(one.packet_id, one.qos, serial):
                return False
        gathered.add(one, packet[0], self.bytes_at(0), self.at)
        return True

    cdef Run run(self, Gathered& gathered, bytes data, uint32_t serial):
        cdef Run run = gathered_run(gathered, data)
        if run is not None:
            if self.clients is None:
                self.clients = (self.client_id,)
            run.clients = self.clients
            run.session = self.session
            run.serial = serial
            run.flows = self.flows
            run.packet_writer = self.packet_writer
        return run


@cython.final
cdef class Bailiwick:
    """As in the reference."""

    cdef NativeBailiwick native

    def set(self, str apex not None):
        """As in the reference."""
        self.native.set(apex.encode())

    def put(self, str apex not None):
        """As in the reference."""
        self.native.put(apex.encode())

    def drop(self, str apex not None):
        """As in the reference."""
        self.native.drop(apex.encode())

    def has(self, str topic not None):
        """As in the reference."""
        cdef bytes encoded = topic.encode()
        return self.native.has(bytes_of(encoded), PyBytes_GET_SIZE(encoded))


@cython.final
cdef class LinkReader(Input):
    """As in the reference."""

    cdef readonly Bailiwick bailiwick
    cdef public int64_t expected
    cdef public cbool is_open
    cdef public uint64_t received
    cdef public uint64_t most
    cdef public object may_take
    cdef public object leave
    cdef dict known  # by headers without their counts: clients and edge of the publishes
    cdef bytes header
    cdef bytes begun  # such a header: that of the batch at hand
    cdef bytes peeked_header
    cdef int64_t peeked_left

    def __init__(self, size_t max_frame):
        self.max_packet = max_frame
        self.form = STORED
        self.wanted = 2
        self.bailiwick = Bailiwick()
        self.known = {}
        self.header = b""

    def know(self, str client_id not None, str edge not None, count):
        """As in the reference."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self.header) - <Py_ssize_t>COUNT
        if not self.is_open or not 0 <= size <= LONGEST_KNOWN - <Py_ssize_t>COUNT:
            return
        if count_at(PyBytes_AS_STRING(self.header) + size) == count:
            if len(self.known) >= MOST_KNOWN:
                self.known.clear()
            self.begun = self.header[:size]
            self.known[self.begun] = (client_id,), edge

    def forget(self):
        """As in the reference."""
        self.known.clear()
        self.header = b""

    cdef Run peek(self, bytes data, size_t at):
        cdef Gathered plain
        cdef Run run
        if not self.is_open or self.received >= self.most:
            return None
        self.peeked_header, self.peeked_left = self.begun, self.expected
        if not self.expected:
            at = self.peek_header(data, at)
        found = self.known.get(self.peeked_header)
        if found is None:
            return None
        plain.bailiwick = &self.bailiwick.native
        self.gather(data, at, plain, min(<size_t>self.peeked_left, MOST_IN_RUN))
        self.peeked_left -= plain.entries.size()
        run = gathered_run(plain, data)
        if run is not None:
            run.clients, run.edge = found
        return run

    cdef size_t peek_header(self, bytes data, size_t at) except? 0:
        """The header there, and where it ends."""
        cdef Frame frame
        cdef const char* body
        cdef size_t size
        self.peeked_header = None
        if self.look(data, at, frame) == WHOLE and not bytes_of(data)[at]:
            body = PyBytes_AS_STRING(data) + at + frame.body
            size = frame.stop - frame.body
            if size >= COUNT:
                self.peeked_header = PyBytes_FromStringAndSize(body, size - COUNT)
                self.peeked_left = count_at(body + size - COUNT)
        return at + frame.stop

    cdef int record_forwarded(self, Run run) except -1:
        self.received += run.size
        self.begun, self.expected = self.peeked_header, self.peeked_left
        return 0

    cdef tuple begin_again(self):
        """A header for the rest of the batch at hand."""
        cdef char count[COUNT]
        put_count(count, self.expected)
        self.header = self.begun + PyBytes_FromStringAndSize(count, COUNT)
        self.begun = None
        self.expected = 0
        return 0, self.header

    def is_silent(self, double now):
        """As in the reference."""
        return is_silent(self, now)

    def trust(self, size_t max_frame):
        """Frames may be as large as this from here on."""
        self.max_packet = max_frame

    def step(self):
        """
        The next frame, or several. Plain publishes of one batch within the bailiwick, all of QoS 0
        or none, are a run. The caller sets the run's clients and offsets. None: there is no more,
        and `fault` says where it is because the bytes that follow are no frames.
        """
        cdef Frame frame
        cdef Gathered plain
        cdef Publish one
        cdef Byte first_byte
        cdef const Byte* packet
        cdef bytes data
        cdef bint is_plain, is_publish
        cdef Run run
        self.is_fed = False
        if not self.begin():
            return None
        self.is_fed = True
        if self.begun is not None:
            if not self.cut(frame):
                self.is_fed = self.fault is not None
                return None
            if self.expected:
                return self.begin_again()
            self.begun = None
        data = self.data
        plain.bailiwick = &self.bailiwick.native
        if self.expected > 0:
            self.take_plain(plain, min(<size_t>self.expected, MOST_IN_RUN - 1))
        self.expected -= plain.entries.size()
        while self.cut(frame):
            packet = self.bytes_at(self.at)
            first_byte = packet[0]
            is_plain, is_publish = False, is_stored_publish(first_byte)
            if is_publish:
                first_byte &= ~DUP
                is_plain = self.expected and plain_publish(
                    first_byte, packet, frame, one, plain, self.form
                )
            if plain.entries.empty():
                if not is_plain:
                    if is_publish and self.expected:
                        self.expected -= 1
                    found = self.take_frame(frame, first_byte)
                    self.header = b"" if first_byte else found[1]
                    return found
            elif not is_plain or (one.qos > 0) != (plain.entries[0].qos > 0):
                break
            self.expected -= 1
            plain.add(one, unlisted(first_byte), self.bytes_at(0), self.at)
            self.at += frame.stop
            if plain.entries.size() == MOST_IN_RUN:
                break
        run = gathered_run(plain, data)
        if run is not None:
            run.clients = ("",)
        else:
            self.is_fed = self.fault is not None
        return run
