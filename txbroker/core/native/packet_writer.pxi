# The output to one client, and the packet ids of its publishes.

cdef class Router


cdef enum Written:
    ALL, SOME, ENOUGH, BROKEN, RAISED

# Bytes that are written to one client at once: for 2 MiB, the kernel may take 10 ms to find room.
cdef size_t MOST_WRITTEN = 512 * 1024

# Likewise, while somebody waits for many turns.
cdef size_t MOST_HURRIED = 256 * 1024


@cython.final
cdef class PacketWriter:
    """As in the reference; made by `Router.make_packet_writer`."""

    cdef Router router
    cdef public object connection
    cdef public object reads
    cdef Output output
    cdef Window* window  # NULL until something is to be kept in it
    cdef Aliases* aliases  # NULL where the client offers none
    cdef uint16_t most_aliases
    cdef uint64_t memory
    cdef public uint64_t dropped
    cdef readonly uint64_t written
    cdef uint64_t shut_drops
    cdef public uint32_t max_packet
    cdef public uint32_t too_large
    cdef uint32_t inflight
    cdef public int descriptor
    cdef public cbool is_behind
    cdef public cbool is_direct
    cdef public cbool is_shut
    cdef public cbool is_noted
    cdef public cbool is_full
    cdef public cbool is_told
    cdef readonly cbool has_window
    cdef public uint8_t level

    def __cinit__(self, Router router not None):
        self.router = router
        self.level = 4
        self.descriptor = -1

    def __dealloc__(self):
        cdef size_t place = 0
        cdef Waiting waiting
        del self.aliases
        if self.window == NULL:
            return
        if self.router is not None:
            while self.window.queue.count():
                waiting = self.window.queue.at(0)
                self.router.part_uses[waiting.part] -= 1
                self.window.queue.pop()
        del self.window

    @property
    def alias_maximum(self):
        """As in the reference."""
        return self.most_aliases

    @alias_maximum.setter
    def alias_maximum(self, uint16_t most):
        del self.aliases
        self.aliases = new Aliases(most) if most else NULL
        self.most_aliases = most

    # output

    @property
    def size(self):
        """Bytes that wait for the socket."""
        return self.output.size()

    @property
    def has_room(self):
        """As in the reference."""
        return self.is_open()

    cdef bint is_open(self) noexcept:
        """Whether what can wait may be sent now."""
        if self.window != NULL and self.window.first.size() >= self.room(QUEUE_BYTES):
            return False
        return self.output.size() < self.mark()

    cdef size_t room(self, size_t most) noexcept:
        """Of so many bytes that may wait those that may as long as all packet_writers hold so much."""
        return room_of(most, self.router.output_limit)

    cdef size_t mark(self) noexcept:
        """Bytes of output from which on nothing is added that can wait."""
        return HIGH_MARK if self.descriptor >= 0 else self.room(HIGH_MARK)

    cdef size_t most(self) noexcept:
        """Bytes of output beyond which what may be dropped is; who takes all has none waiting."""
        return MOST if self.descriptor >= 0 else self.room(MOST)

    cdef int note(self) except -1:
        """Note that output waits; the caller calls `Router.tell` at the end."""
        if not self.is_noted:
            self.router.is_due = self.router.is_due or not self.router.outputs
            self.router.outputs.append(self)
            self.is_noted = True
        return 0

    cdef int note_full(self, bint is_full) except -1:
        """The output, or what waits behind the window, has passed its high mark, if so."""
        if is_full and not self.is_full:
            self.router.full.append(self)
            self.is_full = True
        return 0

    cdef int note_output(self) except -1:
        """Something was put into the output."""
        return self.note_full(self.output.size() >= HIGH_MARK)

    cdef int put(self, const void* data, size_t size) except -1:
        self.note()
        self.output.append(data, size)
        return self.note_output()

    cdef int put_pongs(self, size_t count) except -1:
        """Answer so many PINGREQ packets [MQTT-3.12.4-1]."""
        cdef size_t index
        self.note()
        for index in range(count):
            self.output.append(b"\xd0\0", 2)
        return self.note_output()

    def send(self, bytes data not None):
        """Put bytes into the output; they leave in order."""
        self.put(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        self.router.notify_output()

    def send_soon(self, bytes data not None):
        """As in the reference."""
        self.put(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        self.router.group.add(self)
        self.router.notify_output()

    cdef int put_qos0(self, Run run, size_t index, size_t stop) except -1:
        """Send QoS 0 messages that follow one another, or drop and count those that cannot go."""
        cdef Stretch some = run.stretch(index, stop, self.has_lists())
        cdef bint are_small = not self.max_packet or some.size <= self.max_packet
        if are_small and self.aliases == NULL and not self.is_shut and self.output.size() + some.size <= self.most():
            self.note()
            self.output.share(some.owner, some.at, some.size)
            return self.note_output()
        for index in range(index, stop):
            some = run.stretch(index, index + 1, self.has_lists())
            if self.is_accepted(some.size) and self.may_go():
                self.put_one(some.owner, some.at, some.size)
        return 0

    cdef int put_one(self, PyObject* owner, const char* at, size_t size) except -1:
        """Put a PUBLISH of QoS 0, which lies in `owner` if that is not NULL, into the output."""
        cdef string made
        self.note()
        if self.has_alias(at, size, made):
            self.output.append(made.data(), made.size())
        elif owner != NULL:
            self.output.share(owner, at, size)
        else:
            self.output.append(at, size)
        return self.note_output()

    cdef bint has_alias(self, const char* at, size_t size, string& made) except -1:
        """Whether a packet goes with an alias; `made` is what goes then."""
        if self.aliases == NULL or (self.max_packet and size + ALIAS_GROWTH > self.max_packet):
            return False
        return self.aliases.put(<const Byte*>at, size, made)

    cdef bint has_lists(self) noexcept:
        """Whether its packets have property lists."""
        return self.level >= LISTED_LEVEL

    cdef bint is_accepted(self, size_t size) except -1:
        """Whether the client takes a packet of this size; it is counted where not."""
        if not self.max_packet or size <= self.max_packet:
            return True
        self.note()
        self.too_large += 1
        return False

    cdef bint may_go(self) except -1:
        """Whether a packet that may be dropped is to be sent; it is counted where not."""
        if self.is_shut or self.output.size() > self.most():
            self.dropped += 1
            self.shut_drops += self.is_shut
            if not self.is_shut or self.shut_drops == 1 or self.shut_drops % MANY_DROPPED == 0:
                self.note()
            return False
        return True

    def send_qos0(self, bytes packet not None):
        """Send a packet that may be dropped; False: it was, and counted."""
        is_sent = self.is_accepted(PyBytes_GET_SIZE(packet)) and self.may_go()
        if is_sent:
            self.put_one(NULL, PyBytes_AS_STRING(packet), PyBytes_GET_SIZE(packet))
        self.router.notify_output()
        return is_sent

    def send_run(self, Run run not None):
        """As in the reference."""
        self.put_qos0(run, 0, run.entries_.size())
        self.router.notify_output()

    def dequeue(self):
        """All output, which is the caller's from here on."""
        cdef iovec vectors[64]
        cdef size_t count, index, size, done = 0
        cdef bytes output
        cdef char* at
        if self.output.sole() != NULL:
            output = <bytes>self.output.sole()
            size = self.output.size()
            self.output.clear()
            done = PyBytes_GET_SIZE(output) - size
            return memoryview(output)[done:] if done else output
        output = PyBytes_FromStringAndSize(NULL, self.output.size())
        at = PyBytes_AS_STRING(output)
        while self.output.size():
            count = self.output.gather(vectors)
            size = 0
            for index in range(count):
                memcpy(at + size, vectors[index].iov_base, vectors[index].iov_len)
                size += vectors[index].iov_len
            self.output.consume(size)
            at += size
        return output

    cdef Written write(self, int descriptor) except ? RAISED:
        """Write what a non-blocking socket takes, if not too much; `errno` says why it failed."""
        cdef iovec vectors[64]
        cdef ssize_t written
        cdef size_t index, count, size
        cdef size_t left = MOST_HURRIED if self.router.is_hurried else MOST_WRITTEN
        while self.output.size():
            if not left:
                return ENOUGH
            count = self.output.gather(vectors)
            size = 0
            for index in range(count):
                vectors[index].iov_len = min(vectors[index].iov_len, left - size)
                size += vectors[index].iov_len
            written = send_vectors(descriptor, vectors, count, MSG_DONTWAIT | MSG_NOSIGNAL)
            if written >= 0:
                self.output.consume(written)
                self.written += written
                left -= written
                if <size_t>written < size:
                    return SOME
            elif errno == EAGAIN:
                return SOME
            elif errno == EINTR:
                PyErr_CheckSignals()
            else:
                return BROKEN
        return ALL

    def send_to(self, int descriptor):
        """As in the reference."""
        cdef Written written = self.write(descriptor)
        if written == BROKEN:
            PyErr_SetFromErrno(OSError)
        return written == ALL

    cdef bint is_sent(self) except -1:
        """Write all to `descriptor`; False: it was not to be, or there is more to be looked at."""
        cdef Written written
        if self.descriptor < 0 or self.dropped or self.too_large or self.has_news():
            return False
        written = self.write(self.descriptor)
        if written == ENOUGH:
            # Others come first. Nobody has to be told: this is asked for by whoever asks again.
            self.router.outputs.append(self)
            self.is_noted = True
        return written == ALL or written == ENOUGH

    cdef bint has_news(self) noexcept:
        """Whether somebody has to look at what became of the window."""
        if self.is_behind:
            return True
        if self.window == NULL:
            return False
        if self.window.landed.size() or self.window.answered.size():
            return True
        return (self.window.fills and not self.is_told) or self.window.waiting() > QUEUE_HIGH_MARK

    cdef bint is_calm(self) noexcept:
        """As in the reference."""
        return self.has_window and self.is_direct and not self.has_news()

    # the window of a clean session

    cdef Window* own_window(self) except NULL:
        """The window, which is made when it is first needed."""
        if self.window == NULL:
            self.window = new Window()
            self.window.inflight = self.inflight
            self.window.memory = self.memory
        return self.window

    def open_window(self, inflight, memory):
        """At most so many messages, of so many bytes, are unacknowledged; one always may be."""
        self.inflight = min(inflight, 65_535)
        self.memory = min(memory, 2**63)
        self.has_window = True
        if self.window != NULL:
            self.window.inflight = self.inflight
            self.window.memory = self.memory

    @property
    def fills(self):
        """How often the window became full."""
        return self.window.fills if self.window != NULL else 0

    @property
    def in_flight(self):
        """Messages that the client has not acknowledged."""
        return self.window.in_flight() if self.window != NULL else 0

    @property
    def waiting(self):
        """Messages behind those in flight."""
        return self.window.waiting() if self.window != NULL else 0

    @property
    def queue_has_room(self):
        """Whether what can be read again may wait here."""
        return self.window == NULL or self.window.queue_has_room(self.room(QUEUE_BYTES))

    @property
    def is_short(self):
        """Whether so little waits that more should be brought."""
        return self.window == NULL or self.window.queue.count() < QUEUE_MESSAGES // 2

    cdef bint put_qos12(self, const Content& content, uint32_t part, int64_t offset) except -1:
        """`give`, with the number of the part."""
        cdef Window* window = self.own_window()
        cdef uint64_t fills
        if not self.is_accepted(content.packet_size()):
            return True
        if not window.waiting() and window.can_launch(self.output, self.mark()):
            self.note()
            fills = window.fills
            window.launch_new(self.output, content)
            self.router.fills += window.fills - fills
            self.note_output()
            return True
        return not content.expires() and self.wait(content, part, offset)

    cdef bint wait(self, const Content& content, uint32_t part, int64_t offset) except -1:
        """Put it at the end of the queue; False: there is no room."""
        cdef Window* window = self.own_window()
        if not window.queue_has_room(self.room(QUEUE_BYTES)):
            return False
        window.queue.push(content, part, offset)
        self.router.part_uses[part] += 1
        self.note_full(window.is_full())
        return True

    def deliver(
        self, bytes topic not None, bytes payload not None, int qos, uint32_t size, part,
        int64_t offset, bytes properties not None=b"", *, bint retain=False,
    ):
        """A live QoS 1/2 message: in flight, or in the queue; False: there is no room."""
        cdef uint32_t number = self.router.part_number(part)
        cdef Content content = self.content_of(topic, payload, properties, qos, retain, size)
        is_given = self.put_qos12(content, number, offset)
        self.router.notify_output()
        return is_given

    def redeliver(
        self, bytes topic not None, bytes payload not None, int qos, uint32_t size, part,
        int64_t offset, bytes properties not None=b"", *, bint retain=False,
    ):
        """
        Queue a message that was read from a journal; it leaves with `pump`. False: there is no
        room.
        """
        cdef uint32_t number = self.router.part_number(part)
        cdef Content content = self.content_of(topic, payload, properties, qos, retain, size)
        if self.is_accepted(content.packet_size()):
            return self.wait(content, number, offset)
        self.router.notify_output()
        return True

    def deliver_first(
        self, bytes topic not None, bytes payload not None, int qos, uint32_t size,
        bytes properties not None=b"", *, bint retain,
    ):
        """Queue a message that cannot be read again; it goes before the queue, with `pump`."""
        cdef Content content = self.content_of(topic, payload, properties, qos, retain, size)
        if self.is_accepted(content.packet_size()):
            self.own_window().first.push(content, NONE, 0)
        else:
            self.router.notify_output()

    @property
    def lend_room(self):
        """As in the reference."""
        if not self.has_window or self.output.size() >= self.mark():
            return 0
        if self.window == NULL:
            return self.inflight if self.memory else 0
        return self.window.free()

    def lend(
        self, bytes topic not None, bytes payload not None, int qos, uint32_t size,
        bytes properties not None=b"", *, bint retain=False, bint again=False,
    ):
        """As in the reference."""
        cdef Content content = self.content_of(topic, payload, properties, qos, retain, size)
        cdef Window* window = self.own_window()
        cdef uint64_t fills = window.fills
        if window.waiting() or not window.can_launch(self.output, self.mark()):
            return 0
        content.is_again = again
        self.note()
        window.launch_new(self.output, content, LENT)
        self.router.fills += window.fills - fills
        self.note_output()
        self.router.notify_output()
        return window.last_id()

    def dequeue_landed(self):
        """As in the reference."""
        if self.window == NULL or not self.window.landed.size():
            return []
        landed = list(self.window.landed)
        self.window.landed.clear()
        return landed

    def lend_run(
        self, Run run not None, size_t start, size_t stop, uint32_t lender, *, bint again=False
    ):
        """As in the reference."""
        cdef Window* window = self.own_window()
        cdef uint64_t fills = window.fills
        cdef vector[int64_t] offsets
        cdef size_t index = start
        cdef const Entry* one
        cdef Content content
        cdef LentAs lent_as
        if stop > run.entries_.size():
            raise IndexError("a run has no such message")
        run.fill_offsets(offsets)
        lent_as.lender = lender
        while index < stop:
            one = &run.entries_[index]
            if one.qos != 1 or window.waiting() or not window.can_launch(self.output, self.mark()):
                break
            content = run.content(one)
            content.qos, content.has_list, content.is_again = 1, self.has_lists(), again
            if self.max_packet and content.packet_size() > self.max_packet:
                break
            lent_as.offset = offsets[index]
            self.note()
            window.lend_as(self.output, content, lent_as)
            self.note_output()
            index += 1
        self.router.fills += window.fills - fills
        self.router.notify_output()
        return index - start if index > start else 0

    def dequeue_answered(self):
        """As in the reference."""
        if self.window == NULL or not self.window.answered.size():
            return {}
        answered = by_lender(self.window.answered)
        self.window.answered.clear()
        return answered

    def unanswered(self):
        """As in the reference."""
        return {} if self.window == NULL else by_lender(self.window.unanswered())

    cdef Content content_of(
        self, bytes topic, bytes payload, bytes properties, int qos, bint retain, uint32_t size
    ) except *:
        """Of a message at QoS 1 or 2; raises `ValueError` for what no packet can hold."""
        cdef Content content
        cdef size_t length = len(payload) + len(properties)
        if qos not in (1, 2) or len(topic) > 65_535 or length > 268_000_000:
            raise ValueError("no such message")
        content.topic, content.topic_size = PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic)
        content.payload = PyBytes_AS_STRING(payload)
        content.payload_size = PyBytes_GET_SIZE(payload)
        content.properties = PyBytes_AS_STRING(properties)
        content.properties_size = PyBytes_GET_SIZE(properties)
        content.has_list = self.has_lists()
        content.qos, content.is_retained, content.size = qos, retain, size
        content.is_again = False
        content.owner = <PyObject*>payload
        return content

    def drop_first(self, uint32_t messages, uint64_t size):
        """Drop the oldest of those that cannot be read again, beyond these limits; how many."""
        dropped = 0
        if self.window != NULL:
            while self.window.first.count() > messages or self.window.first.size() > size:
                self.window.first.pop()
                dropped += 1
        return dropped

    def pump(self):
        """Launch what waits, as far as the window and the output have room."""
        self.launch()
        self.router.notify_output()

    cdef int launch(self) except -1:
        cdef uint64_t fills
        if self.window == NULL or not self.window.waiting():
            return 0
        if self.window.can_launch(self.output, self.mark()):
            self.note()
            fills = self.window.fills
            self.window.pump(self.output, self.mark(), self.router.part_uses)
            self.router.fills += self.window.fills - fills
            self.note_output()
        return 0

    cdef bint acknowledge_one(self, uint16_t packet_id) except -1:
        cdef size_t known = self.landed()
        is_right = self.window == NULL or self.window.acknowledge(packet_id)
        self.note_landed(known)
        return is_right

    cdef size_t landed(self) noexcept:
        """How many answers to lent messages nobody has looked at."""
        if self.window == NULL:
            return 0
        return self.window.landed.size() + self.window.answered.size()

    cdef int note_landed(self, size_t known) except -1:
        """Somebody looks at the answers to lent messages, if there are more than the known ones."""
        if self.landed() > known:
            self.note()
        return 0

    def acknowledge(self, packet_ids):
        """As in the reference."""
        cdef bint is_right = True
        for packet_id in packet_ids:
            is_right = self.acknowledge_one(packet_id) and is_right
        self.router.notify_output()
        return is_right

    cdef bint receive_one(self, uint16_t packet_id) except -1:
        cdef size_t known = self.landed()
        if self.window != NULL and not self.window.receive(packet_id):
            return False
        self.note_landed(known)
        if self.has_lists() and (self.window == NULL or not self.window.has(packet_id)):
            return self.answer_not_found(packet_id)
        self.answer(0x62, packet_id)
        return True

    def receive(self, uint16_t packet_id):
        """As in the reference."""
        cdef bint is_right = self.receive_one(packet_id)
        self.router.notify_output()
        return is_right

    cdef bint complete_one(self, uint16_t packet_id) noexcept:
        return self.window == NULL or self.window.complete(packet_id)

    def complete(self, uint16_t packet_id):
        """As in the reference."""
        return self.complete_one(packet_id)

    def refuse(self, uint16_t packet_id):
        """As in the reference."""
        cdef size_t known = self.landed()
        is_right = self.window == NULL or self.window.refuse(packet_id)
        self.note_landed(known)
        self.router.notify_output()
        return is_right

    def first_queued(self):
        """The lowest offset in the queue of each part that has any."""
        cdef size_t place = 0
        cdef uint32_t left
        cdef Waiting waiting
        found = {}
        if self.window != NULL:
            for left in range(self.window.queue.count()):
                waiting = self.window.queue.at(place)
                found.setdefault(self.router.parts[waiting.part], waiting.offset)
                place += sizeof(Waiting) + waiting.packet_size
        return found

    cdef int answer(self, uint8_t first_byte, uint16_t packet_id) except -1:
        """Send a packet that is only a packet id."""
        cdef char* at
        self.note()
        at = self.output.extend(4)
        at[0], at[1] = <char>first_byte, 2
        put_two(at + 2, packet_id)
        return self.note_output()

    cdef bint answer_not_found(self, uint16_t packet_id) except -1:
        """Send PUBREL for a packet id that no message in flight has; True."""
        cdef char* at
        self.note()
        at = self.output.extend(5)
        at[0], at[1], at[4] = <char>0x62, 3, <char>0x92
        put_two(at + 2, packet_id)
        self.note_output()
        return True

    def memory_held(self):
        """Bytes of memory that it has beside its own, for measurements."""
        held = self.output.held()
        return held + self.window.held() + sizeof(Window) if self.window != NULL else held


cdef dict by_lender(const vector[LentAs]& messages):
    """The offsets of each lender."""
    cdef size_t index
    cdef int64_t last = -1
    cdef list offsets = None
    cdef dict found = {}
    for index in range(messages.size()):
        if messages[index].lender != last:
            last = messages[index].lender
            offsets = found.setdefault(last, [])
        offsets.append(messages[index].offset)
    return found


cdef enum:
    OPEN, TAKEN, HELD  # states of a packet id that a client uses


@cython.final
cdef class Flows:
    """As in the reference; held packet ids are in the same table."""

    cdef PacketIds ids
    cdef uint32_t open
    cdef uint32_t serial

    def __len__(self):
        return self.open

    cpdef uint32_t next_serial(self) noexcept:
        """The number of the next run; after 2^32 of them they come again."""
        self.serial += 1
        if not self.serial:
            self.serial = 1
        return self.serial

    cpdef bint open_flow(self, uint16_t packet_id, uint8_t qos, uint32_t serial) except -1:
        """A publish came in, in the run of this number; False: its packet id is not free."""
        if not packet_id:
            raise ValueError("a packet id is not 0")
        if self.ids.find(packet_id) != NULL:
            return False
        self.ids.insert(packet_id, qos, OPEN, serial)
        self.open += 1
        return True

    def acknowledge(self, Run run not None, PacketWriter packet_writer):
        """
        A run of this client is safe: PUBACK or PUBREC goes to the packet_writer, in the order of the run.

        Returns the packet ids that are its no longer.
        """
        cdef PacketIds.Slot* flow
        cdef uint16_t packet_id
        cdef size_t index
        cdef list others = []
        for index in range(run.entries_.size()):
            packet_id = run.entries_[index].packet_id
            flow = self.ids.find(packet_id)
            if flow == NULL or flow.state == HELD or flow.value != run.serial:
                others.append(packet_id)
                continue
            if packet_writer is not None:
                packet_writer.answer(0x40 if flow.qos == 1 else 0x50, packet_id)
            if flow.qos == 1:
                self.ids.erase(flow)
                self.open -= 1
            else:
                flow.state = TAKEN
        if packet_writer is not None:
            packet_writer.router.notify_output()
        return others

    cdef bint release_one(self, uint16_t packet_id, PacketWriter packet_writer) except -1:
        cdef PacketIds.Slot* flow = self.ids.find(packet_id)
        if flow != NULL:
            if flow.state == HELD:
                return False
        if flow != NULL and flow.qos == 2:
            self.ids.erase(flow)
            self.open -= 1
        elif packet_writer.has_lists():
            return False
        packet_writer.answer(0x70, packet_id)
        return True

    def release(self, uint16_t packet_id, PacketWriter packet_writer not None):
        """As in the reference."""
        is_free = self.release_one(packet_id, packet_writer)
        packet_writer.router.notify_output()
        return is_free

    def hold(self, uint16_t packet_id):
        """Somebody else looks after it from here on."""
        cdef PacketIds.Slot* flow = self.ids.find(packet_id)
        if not packet_id:
            raise ValueError("a packet id is not 0")
        if flow == NULL:
            self.ids.insert(packet_id, 0, HELD, 0)
        elif flow.state != HELD:
            flow.state = HELD
            self.open -= 1

    def free(self, uint16_t packet_id):
        """Free a packet id that was held."""
        cdef PacketIds.Slot* flow = self.ids.find(packet_id)
        if flow != NULL and flow.state == HELD:
            self.ids.erase(flow)

    def get(self, uint16_t packet_id):
        """The publish of a run that has this packet id."""
        cdef PacketIds.Slot* flow = self.ids.find(packet_id)
        if flow == NULL or flow.state == HELD:
            return None
        return Flow(flow.qos, flow.value, flow.state == TAKEN)

    def packet_ids(self):
        """The packet ids of all publishes of runs that are open, in no order."""
        cdef uint32_t index
        found = []
        for index in range(self.ids.room()):
            if self.ids.at(index).id and self.ids.at(index).state != HELD:
                found.append(self.ids.at(index).id)
        return found

    def memory_held(self):
        """Bytes of memory that it has beside its own, for measurements."""
        return self.ids.room() * sizeof(PacketIds.Slot)
