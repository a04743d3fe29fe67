# Publishes that came together and go on together.

cdef class Flows
cdef class PacketWriter


cdef struct Stretch:
    # Packets that follow one another in a bytes object.
    PyObject* owner
    const char* at
    size_t size


@cython.final
cdef class Run:
    """
    As in the reference. `data` is what was read, other packets included: it is not copied. For
    clients whose wire form is another one, all is encoded once more, when the first one gets it.

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
    cdef public object came
    cdef public int64_t first
    cdef public uint32_t serial
    cdef public int qos
    cdef public uint64_t size
    cdef uint64_t epoch
    cdef size_t listed  # so many have a property list
    cdef vector[Entry] entries_
    cdef Reencoded with_lists
    cdef bytes data_with_lists
    cdef Reencoded without_lists
    cdef bytes data_without_lists

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
            in_order = in_order and topic_end + 2 * (qos > 0) <= payload
            if not in_order or topic_end - topic > 65_535 or qos not in (0, 1, 2):
                raise ValueError("an entry lies outside of the data")
            one.start, one.topic, one.topic_end = start, topic, topic_end
            one.payload, one.end, one.plan = payload, end, NONE
            one.qos, one.packet_id = qos, packet_id
            found.push_back(one)
        if found.empty():
            raise ValueError("a run has at least one message")
        self.set(data, found, listed_in(found))
        self.clients = clients
        self.places = places
        self.edge = edge
        self.session = session
        self.serial = serial

    cdef int set(self, bytes data, const vector[Entry]& entries, const Listed& listed) except -1:
        """At least one entry; the rest is as for a new one."""
        cdef uint64_t size = OVERHEAD * entries.size() + listed.properties
        cdef size_t index
        self.data = data
        self.listed = listed.count
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
    def has_properties(self):
        """As in the reference."""
        return self.listed > 0

    @property
    def expires(self):
        """As in the reference."""
        cdef size_t index
        cdef const Entry* one
        if self.listed:
            for index in range(self.entries_.size()):
                one = &self.entries_[index]
                if has_expiry(
                    <const Byte*>self.bytes_at(one.properties()), one.payload - one.properties()
                ):
                    return True
        return False

    @property
    def is_qos1(self):
        """As in the reference."""
        cdef size_t index
        for index in range(self.entries_.size()):
            if self.entries_[index].qos != 1:
                return False
        return True

    @property
    def raw(self):
        """As in the reference; a view where they lie in more, as they are to be."""
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
        if pieces == 1 and not self.listed:
            if size == <size_t>PyBytes_GET_SIZE(self.data):
                return self.data
            return memoryview(self.data)[one.start:one.start + size]
        joined = PyBytes_FromStringAndSize(NULL, size)
        at = PyBytes_AS_STRING(joined)
        for index in range(self.entries_.size()):
            one = &self.entries_[index]
            memcpy(at, self.bytes_at(one.start), one.end - one.start)
            if one.has_list():
                at[0] |= <char>LISTED
            at += one.end - one.start
        return joined

    cdef Stretch stretch(self, size_t index, size_t stop, bint has_lists) except *:
        """
        Messages of QoS 0 up to `stop`, which follow one another, in a client's wire form. The run
        has them as long as it lives.
        """
        cdef Stretch found
        cdef Reencoded* other
        cdef size_t begin
        if self.listed == (self.entries_.size() if has_lists else 0):
            begin = self.entries_[index].start
            found.owner, found.size = <PyObject*>self.data, self.entries_[stop - 1].end - begin
        else:
            other = &self.with_lists if has_lists else &self.without_lists
            if other.starts.empty():
                self.encode(other, has_lists)
            data = self.data_with_lists if has_lists else self.data_without_lists
            begin = other.starts[index]
            found.owner, found.size = <PyObject*>data, other.starts[stop] - begin
        found.at = PyBytes_AS_STRING(<bytes>found.owner) + begin
        return found

    cdef int encode(self, Reencoded* other, bint has_lists) except -1:
        """Put all packets into another wire form."""
        cdef size_t size = other.measure(self.entries_, has_lists)
        cdef bytes data
        try:
            data = PyBytes_FromStringAndSize(NULL, size)
        except MemoryError:
            other.starts.clear()
            raise
        other.put(PyBytes_AS_STRING(data), self.entries_, PyBytes_AS_STRING(self.data))
        if has_lists:
            self.data_with_lists = data
        else:
            self.data_without_lists = data
        return 0

    cdef Content content(self, const Entry* one) noexcept:
        """
        A message for a receiver, which says at which QoS and in which form. The run has the message
        as long as it lives.
        """
        cdef Content content
        content.topic, content.topic_size = self.bytes_at(one.topic), one.topic_end - one.topic
        content.payload, content.payload_size = self.bytes_at(one.payload), one.end - one.payload
        content.properties = self.bytes_at(one.properties())
        content.properties_size = one.payload - one.properties()
        content.is_retained = content.is_again = False
        content.owner = <PyObject*>self.data
        content.size = <uint32_t>(
            content.topic_size + content.properties_size + content.payload_size + OVERHEAD
        )
        content.qos, content.has_list = one.qos, False
        return content

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
        """The publisher, where the run has one client."""
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
        """A message of the run by itself."""
        cdef Entry one = self.at(index)[0]
        message = Message(
            self.topic_of(&one),
            PyBytes_FromStringAndSize(self.bytes_at(one.payload), one.end - one.payload),
            one.qos,
            False,
            self.clients[0 if self.places is None else self.places[index]],
            edge=self.edge,
            properties=self.properties(index),
        )
        if self.bytes_at(one.start)[0] == 0x32:  # what goes to a client at QoS 1 begins the same
            head = PyBytes_FromStringAndSize(self.bytes_at(one.start), one.topic_end - one.start)
            if one.has_list():
                message._qos1_head_5 = head
            else:
                message._qos1_head = head
        return message

    def properties(self, index):
        """As in the reference."""
        cdef Entry* one = self.at(index)
        cdef size_t begin = one.properties()
        return PyBytes_FromStringAndSize(self.bytes_at(begin), one.payload - begin)

    def cut(self, size_t count):
        """So many at its beginning, and the rest."""
        cdef vector[uint32_t] first, rest
        cdef uint32_t index
        for index in range(<uint32_t>self.entries_.size()):
            if index < count:
                first.push_back(index)
            else:
                rest.push_back(index)
        return self.selected(first), self.selected(rest)

    def select(self, indices):
        """Some of them, at least one, in this order."""
        cdef vector[uint32_t] chosen
        for index in indices:
            self.at(index)
            chosen.push_back(index)
        return self.selected(chosen)

    cdef Run selected(self, vector[uint32_t]& chosen):
        """Some of them, by indices that are good."""
        cdef Run run
        cdef vector[Entry] entries
        cdef Listed listed
        cdef uint32_t index
        if chosen.empty():
            raise ValueError("a run has at least one message")
        entries.reserve(chosen.size())
        for index in chosen:
            entries.push_back(self.entries_[index])
        if self.listed:
            listed = listed_in(entries)
        run = self.remade(self.data, entries, listed)
        if self.places is not None:
            run.places = [self.places[index] for index in chosen]
        if self.offsets is not None:
            run.offsets = [self.offset(index) for index in chosen]
        elif self.first and follow(chosen):
            run.first = self.first + chosen[0]
        elif self.first:
            run.first, run.offsets = 0, [self.first + index for index in chosen]
        return run

    cdef Run remade(self, bytes data, const vector[Entry]& entries, const Listed& listed):
        """A run of other messages, or of these in another form, and otherwise the same."""
        cdef Run run = Run.__new__(Run)
        run.set(data, entries, listed)
        run.clients = self.clients
        run.places = self.places
        run.edge = self.edge
        run.session = self.session
        run.serial = self.serial
        run.flows = self.flows
        run.packet_writer = self.packet_writer
        run.epoch = self.epoch
        run.first = self.first
        run.offsets = self.offsets
        run.came = self.came
        return run

    def without_properties(self):
        """As in the reference."""
        cdef Listed none
        if not self.listed:
            return self
        if self.without_lists.starts.empty():
            self.encode(&self.without_lists, False)
        return self.remade(
            self.data_without_lists, self.without_lists.moved(self.entries_), none
        )


cdef bint follow(const vector[uint32_t]& chosen) noexcept:
    """Whether each one is the next one's predecessor."""
    cdef size_t index
    for index in range(1, chosen.size()):
        if chosen[index] != chosen[index - 1] + 1:
            return False
    return True


cdef Listed listed_in(const vector[Entry]& entries):
    cdef Listed listed
    cdef size_t index
    for index in range(entries.size()):
        listed.add(entries[index])
    return listed


cdef Run gathered_run(Gathered& gathered, bytes data):
    """A run of what was gathered from this data; None: nothing was."""
    cdef Run run
    cdef bytes copy
    if gathered.entries.empty():
        return None
    run = Run.__new__(Run)
    if gathered.is_copied:
        data = PyBytes_FromStringAndSize(gathered.copied.data(), gathered.copied.size())
    elif gathered.is_marked:
        copy = PyBytes_FromStringAndSize(
            NULL, gathered.entries.back().end - gathered.entries.front().start
        )
        gathered.unmark(PyBytes_AS_STRING(data), PyBytes_AS_STRING(copy))
        data = copy
    run.set(data, gathered.entries, gathered.listed)
    run.edge = ""
    return run
