# Values by apex, and subscriptions by filter, found by topic.

ctypedef PyObject* Borrowed  # of what lives at least as long as this is looked at


cdef inline const Byte* bytes_of(bytes data) noexcept:
    return <const Byte*>PyBytes_AS_STRING(data)


@cython.final
cdef class Nodes:
    """The levels of all that an router knows of topics."""

    cdef Levels levels


@cython.final
cdef class Apexes:
    """As in the reference. Values are told apart by what they are, not by what they are equal to."""

    cdef Nodes nodes
    cdef Kind kind
    cdef dict numbers  # by apex
    cdef list values  # by number
    cdef list unused

    def __cinit__(self, Nodes nodes=None, Kind kind=ROUTE):
        self.nodes = Nodes() if nodes is None else nodes
        self.kind = kind
        self.numbers = {}
        self.values = []
        self.unused = []

    cdef uint32_t node_of(self, str apex) except? 0xFFFFFFFF:
        cdef bytes text = apex.encode()
        self.nodes.levels.generation += 1
        return self.nodes.levels.reach(bytes_of(text), len(text), False)

    def set(self, str apex not None, value):
        """From now on."""
        node = self.node_of(apex)
        number = self.numbers.get(apex)
        if number is None:
            if self.unused:
                number = self.unused.pop()
            else:
                number = len(self.values)
                self.values.append(None)
            self.nodes.levels.set_number(node, self.kind, number)
            self.numbers[apex] = number
        self.values[number] = value

    def replace(self, dict values not None):
        """These, and no others."""
        for apex in [known for known in self.numbers if known not in values]:
            self.remove(apex)
        for apex, value in values.items():
            number = self.numbers.get(apex)
            if number is None or self.values[number] is not value:
                self.set(apex, value)

    def remove(self, str apex not None):
        """Topics within belong to the apex above; nothing where there is none."""
        number = self.numbers.pop(apex, None)
        if number is not None:
            self.nodes.levels.prune(self.node_of(apex), self.kind)
            self.unused.append(number)
            self.values[number] = None

    def find(self, str topic not None):
        """The value for a topic, None where no apex encloses it."""
        cdef bytes text = topic.encode()
        return self.value(self.nodes.levels.find(bytes_of(text), len(text), self.kind))

    cdef object value(self, uint32_t number):
        return None if number == NONE else self.values[number]


@cython.final
cdef class Tree:
    """
    `matching.index.SubscriptionIndex`, with no cache of its own: an `Router` has one.

    A filter's entries are one pair, or a dict of several by key, at the filter's number in `items`.
    """

    cdef Nodes nodes
    cdef Kind kind
    cdef dict numbers  # by filter
    cdef list items
    cdef list unused
    cdef Py_ssize_t size
    cdef tuple last

    def __cinit__(self, Nodes nodes=None, Kind kind=TARGET):
        self.nodes = Nodes() if nodes is None else nodes
        self.kind = kind
        self.numbers = {}
        self.items = []
        self.unused = []

    def __len__(self):
        return self.size

    def __contains__(self, str topic_filter not None):
        return topic_filter in self.numbers

    def filters(self):
        """Every filter that has a subscription, once; not to be changed while iterated."""
        return iter(self.numbers)

    def add(self, str topic_filter not None, key, value):
        """Set the value of a key on a filter; True when the key is new there."""
        cdef bytes text
        cdef uint32_t node
        pair = self.last
        if pair is None or pair[0] is not key or pair[1] is not value:
            pair = self.last = (key, value)  # an edge has many filters, and one pair for all
        number = self.numbers.get(topic_filter)
        self.nodes.levels.generation += 1
        if number is None:
            number = self.unused.pop() if self.unused else len(self.items)
            if number == len(self.items):
                self.items.append(None)
            text = topic_filter.encode()
            node = self.nodes.levels.reach(bytes_of(text), len(text), True)
            self.numbers[topic_filter] = number
            self.items[number] = pair
            self.nodes.levels.set_number(node, self.kind, number)
            self.size += 1
            return True
        item = self.items[number]
        if type(item) is tuple:
            known = item[0]
            if known is key or known == key:
                self.items[number] = pair
                return False
            self.items[number] = {known: item, key: pair}
            self.size += 1
            return True
        is_new = key not in item
        item[key] = pair
        self.size += is_new
        return is_new

    def remove(self, str topic_filter not None, key):
        """Take a key off a filter; False when it was not there."""
        cdef bytes text
        cdef uint32_t node
        number = self.numbers.get(topic_filter)
        if number is None:
            return False
        item = self.items[number]
        if type(item) is tuple:
            if not (item[0] is key or item[0] == key):
                return False
        elif key not in item:
            return False
        self.nodes.levels.generation += 1
        self.size -= 1
        self.last = None
        if type(item) is dict and len(item) > 1:
            del item[key]
            return True
        del self.numbers[topic_filter]
        text = topic_filter.encode()
        node = self.nodes.levels.reach(bytes_of(text), len(text), True)
        self.nodes.levels.prune(node, self.kind)
        self.unused.append(number)
        self.items[number] = None
        return True

    def match(self, str topic not None):
        """
        The `(key, value)` pairs of all filters that match the topic.

        A key comes once per matching filter, so overlapping subscriptions show as several pairs.
        """
        cdef bytes text = topic.encode()
        cdef Plans* plans = new Plans(self.nodes.levels)
        try:
            number = plans.set_for(plans.number_of(bytes_of(text), len(text)), self.kind)
            return tuple(self.pairs_of(plans.sets(self.kind), number))
        finally:
            del plans

    @property
    def levels(self):
        """How many levels are kept."""
        return self.nodes.levels.count()

    cdef int values_of(self, const Sets& sets, uint32_t number, vector[Borrowed]& values) except -1:
        """The values of all pairs of a set of filters, in order."""
        cdef const uint32_t* members = sets.members(number)
        cdef size_t index
        cdef Py_ssize_t place
        cdef PyObject* key
        cdef PyObject* pair
        for index in range(sets.size(number)):
            item = self.items[members[index]]
            if type(item) is tuple:
                values.push_back(<Borrowed>(<tuple>item)[1])
                continue
            place = 0
            while PyDict_Next(item, &place, &key, &pair):
                values.push_back(<Borrowed>(<tuple>pair)[1])
        return 0

    cdef list pairs_of(self, const Sets& sets, uint32_t number):
        """All pairs of a set of filters, in order."""
        cdef const uint32_t* members = sets.members(number)
        cdef size_t index
        cdef list items = [None] * sets.size(number), pairs = []
        for index in range(sets.size(number)):
            items[index] = self.items[members[index]]
        for item in items:
            if type(item) is tuple:
                pairs.append(item)
            else:
                pairs.extend((<dict>item).values())
        return pairs
