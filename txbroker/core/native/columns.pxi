# Stored batches as columns, and the part of a batch that somebody asked for.

cdef size_t CACHE = _CACHE


@cython.final
cdef class Columns:
    """As in the reference."""

    cdef ColumnData data

    def __init__(self, uint64_t start=0, uint64_t end=_LAST, *, cbool payload=True):
        self.data.set(start, end, payload)

    @property
    def count(self):
        """Records since the last `finish`."""
        return self.data.count

    @property
    def size(self):
        """Bytes of their topics and payloads."""
        return self.data.topics.used + self.data.payloads.used

    def add(
        self, uint64_t first, int64_t time, bytes body not None, size_t count,
        bytes places not None=b"",
    ):
        """As in the reference; nothing is kept of what is given."""
        cdef Problem found = self.data.add(
            first, time, bytes_of(body), PyBytes_GET_SIZE(body), count,
            bytes_of(places), PyBytes_GET_SIZE(places),
        )
        if found == FULL:
            raise OverflowError(_FULL)
        if found:
            raise _malformed(first, found)

    def finish(self):
        """The values that were added since the last call."""
        cdef size_t index
        cdef ColumnData* data = &self.data
        publishers = []
        for index in range(data.publishers.pairs.size()):
            pair = &data.publishers.pairs[index]
            publishers.append((pair.client.decode(), pair.node.decode()))
        filled = _Filled(
            data.count,
            _Texts(taken(data.topic_ends), taken(data.topics)),
            _Texts(taken(data.payload_ends), taken(data.payloads)),
            taken(data.qos),
            taken(data.retain),
            taken(data.offset),
            taken(data.created),
            taken(data.publisher),
            publishers,
            properties_of(data.properties, data.count),
        )
        data.clear()
        return filled


@cython.final
cdef class Sieve:
    """As in the reference."""

    cdef object matches
    cdef dict known
    cdef size_t size

    def __init__(self, matches not None):
        self.matches = matches
        self.known = {}

    def sift(
        self, uint64_t first, bytes body not None, size_t count, uint64_t low, uint64_t high
    ):
        """As in the reference."""
        cdef Opened opened
        cdef vector[Packet] packets
        cdef vector[size_t] chosen
        cdef Problem found = read_packets(
            bytes_of(body), PyBytes_GET_SIZE(body), count, opened, packets
        )
        if found:
            raise _malformed(first, found)
        self.choose(first, body, low, high, packets, chosen)
        if chosen.size() == count:
            return None
        if chosen.empty():
            return b"", b""
        return self.cut(body, opened, chosen, packets), places_at(chosen)

    cdef int choose(
        self, uint64_t first, bytes body, uint64_t low, uint64_t high,
        const vector[Packet]& packets, vector[size_t]& chosen,
    ) except -1:
        """Find the places of those that match."""
        cdef const Byte* last = NULL
        cdef size_t last_size = 0, place, length
        cdef cbool is_match = False
        cdef const Byte* topic
        for place in range(packets.size()):
            if first + place < low or first + place >= high:
                continue
            topic = bytes_of(body) + packets[place].topic
            length = packets[place].topic_end - packets[place].topic
            if last == NULL or length != last_size or not are_same(topic, last, length):
                is_match = self.is_match(PyBytes_FromStringAndSize(<const char*>topic, length))
                last = topic
                last_size = length
            if is_match:
                chosen.push_back(place)
        return 0

    cdef cbool is_match(self, bytes raw) except *:
        found = self.known.get(raw)
        if found is None:
            if self.size > CACHE:
                self.known.clear()
                self.size = 0
            found = self.known[raw] = bool(self.matches(raw.decode()))
            self.size += PyBytes_GET_SIZE(raw)
        return found

    cdef bytes cut(
        self, bytes body, const Opened& opened, const vector[size_t]& chosen,
        const vector[Packet]& packets,
    ):
        """A body with these."""
        cdef const char* data = PyBytes_AS_STRING(body)
        cdef size_t names = (opened.places or opened.packets) - opened.names
        cdef size_t size = 7 + names + (2 * chosen.size() if opened.places else 0)
        cdef size_t index
        cdef const Packet* one
        for index in range(chosen.size()):
            size += packets[chosen[index]].end - packets[chosen[index]].start
        cdef bytes made = PyBytes_FromStringAndSize(NULL, size)
        cdef char* at = PyBytes_AS_STRING(made)
        memcpy(at, data, 7)
        at[1] = at[2] = 0  # no marks
        memcpy(at + 7, data + opened.names, names)
        at += 7 + names
        if opened.places:
            for index in range(chosen.size()):
                memcpy(at, data + opened.places + 2 * chosen[index], 2)
                at += 2
        for index in range(chosen.size()):
            one = &packets[chosen[index]]
            memcpy(at, data + one.start, one.end - one.start)
            at += one.end - one.start
        return made


cdef object properties_of(PropertyData& data, size_t rows):
    """As `reference.property_columns.property_columns`."""
    if not data.rows:
        return None
    data.pad(rows)
    return _FilledProperties(
        (taken(data.expiry.valid), taken(data.expiry.values)),
        (taken(data.payload_format.valid), taken(data.payload_format.values)),
        texts_of(data.content_type),
        texts_of(data.response_topic),
        texts_of(data.correlation_data),
        (taken(data.user_properties.valid), taken(data.user_properties.ends)),
        (taken(data.names.ends), taken(data.names.data)),
        (taken(data.values.ends), taken(data.values.data)),
    )


cdef object texts_of(OptionalTexts& column):
    return taken(column.valid), taken(column.texts.ends), taken(column.texts.data)


cdef object taken(Growing& column):
    cdef PyObject* whole = column.take()
    if whole == NULL:
        raise MemoryError()
    found = <object>whole
    Py_XDECREF(whole)
    return found


cdef bytes places_at(const vector[size_t]& chosen):
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 2 * chosen.size())
    cdef char* at = PyBytes_AS_STRING(made)
    cdef size_t index
    for index in range(chosen.size()):
        at[2 * index] = <char>(chosen[index] & 0xFF)
        at[2 * index + 1] = <char>(chosen[index] >> 8)
    return made
