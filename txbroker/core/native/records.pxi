# Records of a journal as they are stored, found by filter.

@cython.final
cdef class StoredRecords:
    """As in the reference."""

    cdef RecordData data
    cdef list topics  # by number, those that somebody has
    cdef list publishers  # likewise

    def __init__(
        self, uint64_t after=0, uint64_t through=_LAST, *,
        uint64_t most=_LAST, uint64_t room=_LAST, uint8_t least=0,
    ):
        self.data.set(after, through, most, room, least)
        self.topics = []
        self.publishers = []

    def __len__(self):
        return self.data.count()

    @property
    def through(self):
        """All up to this offset was looked at."""
        return self.data.through

    @property
    def size(self):
        """Bytes that all this takes, about."""
        return self.data.size()

    def add(self, uint64_t first, bytes body not None, size_t count, bytes places not None=b""):
        """As in the reference."""
        cdef cbool more = False
        cdef Problem found = self.data.add(
            first, bytes_of(body), PyBytes_GET_SIZE(body), count,
            bytes_of(places), PyBytes_GET_SIZE(places), more,
        )
        if found:
            raise _malformed(first, found)
        return more

    def place_above(self, uint64_t offset):
        """The place of the first record above the offset."""
        return self.data.place_above(offset)

    cdef int find_places(
        self, list filters, uint64_t after, size_t most, vector[size_t]& places
    ) except -1:
        """The places of the first records above the offset that match; the filters are held."""
        cdef vector[Text] texts
        cdef Text text
        cdef Py_ssize_t size = 0
        for one in filters:
            text.at = <const Byte*>PyUnicode_AsUTF8AndSize(one, &size)
            text.size = size
            texts.push_back(text)
        self.data.find(texts, after, most, places)
        return 0

    def find(self, filters not None, uint64_t after, size_t most):
        """As in the reference."""
        cdef vector[size_t] places
        cdef size_t index, place
        cdef Packet packet
        self.find_places(list(filters), after, most, places)
        found = []
        for index in range(places.size()):
            place = places[index]
            packet = self.data.packet(place)
            found.append((
                place, self.data.offset(place), self.topic(place, packet), packet.first >> 1 & 3,
                self.message_size(place, packet),
            ))
        return found

    def run(self, filters not None, uint64_t after, uint64_t through, *, size_t most, size_t room):
        """As in the reference."""
        cdef vector[size_t] places
        cdef Gathered gathered
        cdef Frame frame
        cdef Publish publish
        cdef size_t index, size = 0, at = 0
        cdef Packet one
        cdef uint64_t reached = max(after, min(through, self.data.through))
        cdef const char* packets = self.data.packets().data()
        cdef bytes data
        cdef char* copy
        cdef Byte first
        gathered.leaves_expiring = True
        self.find_places(list(filters), after, most + 1, places)
        for index in range(places.size()):
            one = self.data.packet(places[index])
            if <uint64_t>self.data.offset(places[index]) > through:
                places.resize(index)
                break
            if index == most or (index and size >= room):
                reached = self.data.offset(places[index]) - 1
                places.resize(index)
                break
            size += one.end - one.start
        data = PyBytes_FromStringAndSize(NULL, size)
        copy = PyBytes_AS_STRING(data)
        for index in range(places.size()):
            one = self.data.packet(places[index])
            memcpy(copy + at, packets + one.start, one.end - one.start)
            first = one.first & ~DUP
            cut(<const Byte*>copy + at, one.end - one.start, one.end - one.start, frame)
            if (one.first >> 1 & 3) != 1 or not plain_publish(
                first, <const Byte*>copy + at, frame, publish, gathered, STORED
            ):
                reached = self.data.offset(places[index]) - 1
                places.resize(index)
                break
            gathered.add(publish, unlisted(first), <const Byte*>copy, at)
            at += one.end - one.start
        return self.offset_run(gathered_run(gathered, data), places), reached

    cdef Run offset_run(self, Run run, const vector[size_t]& places):
        """The run of the records at these places, which says where they lie."""
        cdef size_t index
        cdef int64_t first
        if run is None:
            return None
        run.clients = ("",)
        first = self.data.offset(places[0])
        if self.data.offset(places.back()) - first == <int64_t>places.size() - 1:
            run.first = first
        else:
            run.offsets = [self.data.offset(places[index]) for index in range(places.size())]
        return run

    def size_above(self, uint64_t offset):
        """`Message.size` of all above the offset."""
        cdef size_t place, size = 0
        for place in range(self.data.place_above(offset), self.data.count()):
            size += self.message_size(place, self.data.packet(place))
        return size

    def record(self, size_t place):
        """All of the record; raises `IndexError`."""
        if place >= self.data.count():
            raise IndexError(place)
        cdef Packet one = self.data.packet(place)
        cdef const char* packets = self.data.packets().data()
        client, node = self.publisher(self.data.publisher(place))
        return _WholeRecord(
            self.data.offset(place),
            self.topic(place, one),
            PyBytes_FromStringAndSize(packets + one.payload, one.end - one.payload),
            one.first >> 1 & 3,
            one.first & 1 == 1,
            client,
            node,
            PyBytes_FromStringAndSize(packets + one.properties, one.payload - one.properties),
            PyBytes_FromStringAndSize(packets + one.start, one.end - one.start),
        )

    def offsets(self):
        """The offsets of all records."""
        cdef size_t place
        return [self.data.offset(place) for place in range(self.data.count())]

    def packets(self):
        """The raw PUBLISH packets of all."""
        return PyBytes_FromStringAndSize(self.data.packets().data(), self.data.packets().size())

    cdef size_t message_size(self, size_t place, const Packet& one):
        return one.end - one.properties + self.data.length(place) + OVERHEAD

    cdef str topic(self, size_t place, const Packet& one):
        cdef uint32_t number = self.data.topic(place)
        if len(self.topics) < <Py_ssize_t>self.data.topics():
            self.topics += [None] * (self.data.topics() - len(self.topics))
        found = self.topics[number]
        if found is None:
            found = self.topics[number] = (
                self.data.packets().data()[one.topic:one.topic_end].decode()
            )
        return found

    cdef tuple publisher(self, size_t number):
        cdef size_t index
        for index in range(len(self.publishers), number + 1):
            pair = &self.data.publishers.pairs[index]
            self.publishers.append((pair.client.decode(), pair.node.decode()))
        return self.publishers[number]
