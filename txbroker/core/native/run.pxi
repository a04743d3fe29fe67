# Publishes that came together and go on together.

cdef class Flows
cdef class PacketWriter


@cython.final
cdef class Run:
    """
    As in the reference. `data` is what was read, other packets included: it is not copied.

    The entries' `plan` is the number of each topic in the router of this `epoch`.
    """

    cdef readonly bytes data
    cdef public tuple clients
    cdef public object places
    cdef public str edge
    cdef public object session
    cdef public Flows flows
    cdef public PacketWriter packet_writer
    cdef public object offsets
    cdef public int64_t first
    cdef public uint32_t serial
    cdef public int qos
    cdef public uint64_t size
    cdef uint64_t epoch
    cdef vector[Entry] entries_

    def __init__(
        self, bytes data not None, entries, *, tuple clients not None, places=None,
        str edge not None="", session=None, uint32_t serial=0,
    ):
        """Raises `ValueError` for entries that do not lie in the data, or are none."""
        cdef Entry one
        cdef vector[Entry] found
        for given in entries:
            start, topic, topic_end, payload, end, qos, packet_id = given
            in_order = 0 <= start < topic < topic_end <= payload <= end <= len(data)
            if not in_order or topic_end - topic > 65_535 or qos not in (0, 1, 2):
                raise ValueError("an entry lies outside of the data")
            one.start, one.topic, one.topic_end = start, topic, topic_end
            one.payload, one.end, one.plan = payload, end, NONE
            one.qos, one.packet_id = qos, packet_id
            found.push_back(one)
        if found.empty():
            raise ValueError("a run has at least one message")
        self.set(data, found)
        self.clients = clients
        self.places = places
        self.edge = edge
        self.session = session
        self.serial = serial

    cdef int set(self, bytes data, const vector[Entry]& entries) except -1:
        """At least one entry; the rest is as for a new one."""
        cdef uint64_t size = OVERHEAD * entries.size()
        cdef size_t index
        self.data = data
        keep(self.entries_, entries)
        for index in range(entries.size()):
            size += entries[index].end - entries[index].payload
            size += entries[index].topic_end - entries[index].topic
        self.size = size
        self.qos = entries[0].qos > 0
        self.epoch = 0
        return 0

    cdef const char* bytes_at(self, size_t place) noexcept:
        return PyBytes_AS_STRING(self.data) + place

    cdef Entry* at(self, index) except NULL:
        cdef Py_ssize_t place = index
        if place < 0 or <size_t>place >= self.entries_.size():
            raise IndexError("a run has no such message")
        return &self.entries_[place]

    @property
    def entries(self):
        """Where each message lies in `data`."""
        return [
            EntryTuple(
                one.start, one.topic, one.topic_end, one.payload, one.end, one.qos, one.packet_id
            )
            for one in self.entries_
        ]

    @property
    def count(self):
        """How many messages there are."""
        return self.entries_.size()

    @property
    def raw(self):
        """The packets as they came, one behind the other; a view where they lie in more."""
        cdef size_t index, size = 0, pieces = 1
        cdef const Entry* one
        cdef bytes joined
        cdef char* at
        for index in range(self.entries_.size()):
            one = &self.entries_[index]
            size += one.end - one.start
            if index and one.start != self.entries_[index - 1].end:
                pieces += 1
        one = &self.entries_[0]
        if pieces == 1:
            if size == <size_t>PyBytes_GET_SIZE(self.data):
                return self.data
            return memoryview(self.data)[one.start:one.start + size]
        joined = PyBytes_FromStringAndSize(NULL, size)
        at = PyBytes_AS_STRING(joined)
        for index in range(self.entries_.size()):
            one = &self.entries_[index]
            memcpy(at, self.bytes_at(one.start), one.end - one.start)
            at += one.end - one.start
        return joined

    def offset(self, index):
        """Where one of them lies; 0: nowhere."""
        if self.offsets is not None:
            return self.offsets[index]
        return self.first and self.first + index

    cdef int fill_offsets(self, vector[int64_t]& offsets) except -1:
        """Of each message."""
        cdef size_t index
        cdef int64_t step = self.first != 0
        offsets.reserve(self.entries_.size())
        for index in range(self.entries_.size()):
            if self.offsets is not None:
                offsets.push_back(self.offsets[index])
            else:
                offsets.push_back(self.first + step * <int64_t>index)
        return 0

    cdef str topic_of(self, const Entry* one):
        return PyBytes_FromStringAndSize(
            self.bytes_at(one.topic), one.topic_end - one.topic
        ).decode()

    @property
    def last(self):
        """Where the last one lies; 0: nowhere."""
        return self.offset(self.entries_.size() - 1)

    @property
    def client_id(self):
        """Who published it, where that is one client."""
        return self.clients[0]

    def ranges(self):
        """Where they lie: the first offset and how many follow each other from there on."""
        if self.offsets is None:
            return [(self.first, self.entries_.size())]
        found = []
        begin, count = 0, 0
        for offset in self.offsets:
            if count and begin + count == offset:
                count += 1
                continue
            if count:
                found.append((begin, count))
            begin, count = offset, 1
        found.append((begin, count))
        return found

    def topics(self):
        """Of each message."""
        cdef size_t index
        return [self.topic_of(&self.entries_[index]) for index in range(self.entries_.size())]

    @property
    def packet_ids(self):
        """Of each message; 0 for QoS 0."""
        cdef size_t index
        return [self.entries_[index].packet_id for index in range(self.entries_.size())]

    def message(self, index):
        """One of them by itself."""
        cdef Entry one = self.at(index)[0]
        message = Message(
            self.topic_of(&one),
            PyBytes_FromStringAndSize(self.bytes_at(one.payload), one.end - one.payload),
            one.qos,
            False,
            self.clients[0 if self.places is None else self.places[index]],
            edge=self.edge,
        )
        if self.bytes_at(one.start)[0] == 0x32:  # what goes to a client at QoS 1 begins the same
            size = one.payload - 2 - one.start
            message._qos1_head = PyBytes_FromStringAndSize(self.bytes_at(one.start), size)
        return message

    def cut(self, size_t count):
        """So many at its beginning, and the rest."""
        return self.select(range(count)), self.select(range(count, self.entries_.size()))

    def select(self, indices):
        """Some of them, at least one, in this order."""
        cdef vector[uint32_t] chosen
        for index in indices:
            self.at(index)
            chosen.push_back(index)
        return self.selected(chosen)

    cdef Run selected(self, vector[uint32_t]& chosen):
        """Some of them, by indices that are good."""
        cdef Run run = Run.__new__(Run)
        cdef vector[Entry] entries
        cdef uint32_t index
        if chosen.empty():
            raise ValueError("a run has at least one message")
        entries.reserve(chosen.size())
        for index in chosen:
            entries.push_back(self.entries_[index])
        run.set(self.data, entries)
        run.clients = self.clients
        run.edge = self.edge
        run.session = self.session
        run.serial = self.serial
        run.flows = self.flows
        run.packet_writer = self.packet_writer
        run.epoch = self.epoch
        if self.places is not None:
            run.places = [self.places[index] for index in chosen]
        if self.first or self.offsets is not None:
            run.offsets = [self.offset(index) for index in chosen]
        return run


cdef Run gathered_run(Gathered& gathered, bytes data):
    """A run of what was gathered from this data; None: nothing was."""
    cdef Run run
    if gathered.entries.empty():
        return None
    run = Run.__new__(Run)
    if gathered.is_copied:
        data = PyBytes_FromStringAndSize(gathered.copied.data(), gathered.copied.size())
    run.set(data, gathered.entries)
    run.edge = ""
    return run
