# Where publishes go.

cdef uint64_t last_epoch = 0  # of any exchange

# Seconds for what is written in one turn, and one write more in each call: to who reads nothing it
# takes long.
cdef double WRITE_FOR = 0.002

# Likewise, while somebody waits for many turns.
cdef double HURRIED_WRITE_FOR = 0.0005


@cython.final
cdef class Target:
    """As in the reference; made by `Router.make_target`."""

    cdef readonly object session
    cdef readonly object subscription
    cdef readonly PacketWriter packet_writer
    cdef public int qos
    cdef public bint is_plain

    def __init__(self, session, subscription, PacketWriter packet_writer not None):
        self.session = session
        self.subscription = subscription
        self.packet_writer = packet_writer


cdef struct Way:
    # A subscription that a message goes to; so many of the same session follow.
    Borrowed target
    uint32_t more


cdef struct Range:
    size_t start
    size_t stop


@cython.final
cdef class Router:
    """
    As in the reference, where answers are looked up for each message. Here they are kept in plans,
    as numbers. All plans go at once when anything changes that they come from, or when they are too
    many. Another epoch begins then.
    """

    cdef readonly Apexes routes
    cdef readonly Apexes bounds
    cdef readonly Tree interests
    cdef readonly Tree targets
    cdef readonly Tree singles
    cdef public uint64_t received
    cdef public uint64_t delivered
    cdef readonly uint64_t fills
    cdef readonly uint64_t forgotten
    cdef size_t cache_limit
    cdef size_t output_limit
    cdef cbool is_hurried
    cdef size_t written  # in this turn of the event loop
    cdef double wrote_for  # likewise, in seconds
    cdef object on_output
    cdef list outputs
    cdef OutputGroup group
    cdef list full
    cdef bint is_due
    cdef bint is_quiet  # what is due is told later
    cdef Nodes nodes
    cdef uint64_t generation  # of the nodes, at the time of the epoch
    cdef Plans* plans
    cdef uint64_t epoch
    # By the sets of `targets`: where the ways of each one are.
    cdef vector[Way] ways
    cdef vector[Range] ranges
    # By the sets of `interests`: the tuple of each, and each tuple once.
    cdef list receivers_
    cdef dict tuples
    # Parts of journals that something in queues lies in, and how much does.
    cdef list parts
    cdef dict part_numbers
    cdef vector[uint32_t] part_uses

    def __cinit__(self, *args, **kwargs):
        self.nodes = Nodes()
        self.plans = new Plans(self.nodes.levels)

    def __dealloc__(self):
        del self.plans

    def __init__(self, on_output, size_t cache_limit=100_000):
        """
        `on_output` is called when the first packet_writer has something to send, at the end of the call
        that gave it. Plans of about `cache_limit` topics are kept.
        """
        self.routes = Apexes(self.nodes, ROUTE)
        self.bounds = Apexes(self.nodes, VERDICT)
        self.interests = Tree(self.nodes, INTEREST)
        self.targets = Tree(self.nodes, TARGET)
        self.singles = Tree(self.nodes, SINGLE)
        self.cache_limit = cache_limit
        self.output_limit = OUTPUT_LIMIT
        self.is_hurried = False
        self.written = 0
        self.wrote_for = 0
        self.on_output = on_output
        self.outputs = []
        self.group = OutputGroup()
        self.full = []
        self.parts = []
        self.part_numbers = {}
        self.forget()

    def make_packet_writer(self):
        """The way to a client."""
        return PacketWriter(self)

    def make_packet_reader(self, PacketWriter packet_writer not None, size_t max_packet):
        """The input of the same client."""
        return PacketReader(max_packet, packet_writer)

    def make_sockets(self):
        """Where clients and links are read."""
        return Sockets(self)

    def make_sender(self, PacketWriter packet_writer not None, make_header):
        """The sender of runs that go over a link at once."""
        return Sender(packet_writer, make_header)

    def make_target(self, session, subscription, PacketWriter packet_writer not None):
        """A subscription of a client that is here, for `targets`."""
        if packet_writer.router is not self:
            raise ValueError("the packet_writer is of another router")
        return Target(session, subscription, packet_writer)

    cdef int notify_output(self) except -1:
        """Call `on_output` where that is due."""
        if self.is_due and not self.is_quiet:
            self.is_due = False
            self.on_output()
        return 0

    cdef bint send_all(self) except -1:
        """Write what there is to send; False: somebody has to look at some of it."""
        cdef PacketWriter packet_writer
        if not self.outputs:
            return True
        left = self.send_outputs()
        for packet_writer in left:
            packet_writer.is_noted = True
        self.outputs += left
        self.is_due = bool(self.outputs)
        return not self.is_due

    def send_outputs(self):
        """As in the reference."""
        cdef PacketWriter packet_writer
        cdef list left = [], outputs = self.outputs
        cdef double began = monotonic(), until = began
        until += max((HURRIED_WRITE_FOR if self.is_hurried else WRITE_FOR) - self.wrote_for, 0.0)
        cdef Py_ssize_t place = 0
        cdef size_t most = OUTPUT_BYTES
        if self.is_hurried:
            most = HURRIED_BYTES - min(self.written, HURRIED_BYTES)
        self.outputs = []
        self.group.members.clear()
        if len(outputs) > MOST_OUTPUTS // 2 or size_of(outputs) > most // 2:
            outputs = self.chosen(outputs, most)
        for packet_writer in outputs:
            place += 1
            packet_writer.is_noted = False
            self.written += packet_writer.output.size()
            if not packet_writer.is_sent():
                left.append(packet_writer)
            self.written -= packet_writer.output.size()
            if packet_writer.descriptor >= 0 and monotonic() >= until:
                self.outputs = outputs[place:] + self.outputs
                break
        self.wrote_for += monotonic() - began
        return left

    def hurry(self, bint is_hurried):
        """As in the reference."""
        self.is_hurried = is_hurried
        self.begin_turn()

    def begin_turn(self):
        """As in the reference."""
        self.written = 0
        self.wrote_for = 0

    cdef list chosen(self, list outputs, size_t most_bytes):
        """The outputs that are written in one go; the others wait on."""
        cdef vector[pair[size_t, size_t]] rest
        cdef vector[cbool] is_light
        cdef list light = []
        cdef size_t index, place, first = 0, count, size = 0, most = MOST_OUTPUTS // 2
        while first < <size_t>len(outputs) and first < most and size < most_bytes // 2:
            size += (<PacketWriter>outputs[first]).output.size()
            first += 1
        for index in range(first, len(outputs)):
            size = max((<PacketWriter>outputs[index]).output.size(), LEAST)
            rest.push_back(pair[size_t, size_t](size, len(outputs) - index))
        count = min(most, rest.size())
        partial_sort(rest.begin(), rest.begin() + <Py_ssize_t>count, rest.end())
        is_light.resize(len(outputs))
        size = 0
        for index in range(count):
            if size >= most_bytes // 2 and rest[index].first > LEAST:
                break
            place = len(outputs) - rest[index].second
            size += (<PacketWriter>outputs[place]).output.size()
            is_light[place] = True
            light.append(outputs[place])
        self.outputs = [outputs[i] for i in range(first, len(outputs)) if not is_light[<size_t>i]]
        return light + outputs[:first]

    @property
    def has_outputs(self):
        """As in the reference."""
        return bool(self.outputs)

    def dequeue_full(self):
        """The packet writers that passed a high mark since the last call, each once."""
        cdef PacketWriter packet_writer
        if not self.full:
            return []
        full, self.full = self.full, []
        for packet_writer in full:
            packet_writer.is_full = False
        return full

    def set_cache_limit(self, size_t limit):
        """For how many topics it is kept who gets them."""
        self.cache_limit = limit

    def limit_output(self, size_t limit):
        """As in the reference."""
        self.output_limit = limit

    def room(self, size_t most):
        """As in the reference."""
        return room_of(most, self.output_limit)

    # plans

    cdef int forget(self) except -1:
        """All plans, and what is known of the sets that they speak of."""
        global last_epoch
        last_epoch += 1
        self.epoch = last_epoch
        self.generation = self.nodes.levels.generation
        self.plans.clear()
        self.ways.clear()
        self.ranges.clear()
        self.receivers_ = []
        self.tuples = {}
        return 0

    cdef int make_room(self) except -1:
        """All plans go, as they are too many."""
        self.forgotten += 1
        return self.forget()

    cdef bint is_full(self) noexcept:
        return self.plans.is_full(self.ways.size() * sizeof(Way))

    cdef size_t look_up(self, Run run, size_t index=0) except 0:
        """Give messages their plans, from this one on; where those end that have one."""
        cdef size_t stop
        if self.generation != self.nodes.levels.generation:
            self.forget()
        elif self.is_full() or (not index and self.plans.count() > self.cache_limit):
            self.make_room()
        elif run.epoch == self.epoch:
            return run.entries_.size()
        stop = self.plans.look_up(
            run.entries_, index, bytes_of(run.data), self.ways.size() * sizeof(Way)
        )
        run.epoch = 0 if index or stop < run.entries_.size() else self.epoch
        return stop

    # where to

    def split(self, Run run not None):
        """
        The part of a run for each of `routes`, in order; the whole run where it has one route.
        """
        cdef list values = []
        cdef vector[uint32_t] groups
        cdef unordered_map[Borrowed, uint32_t] places
        cdef uint32_t number, last = NONE
        cdef size_t index, stop = 0, count = run.entries_.size()
        for index in range(count):
            if index == stop:
                stop = self.look_up(run, index)
            number = self.plans.at(run.entries_[index].plan).route
            if index and number != last:
                groups.resize(index, place_of(values, places, self.routes.value(last)))
            last = number
        if groups.empty():
            return [(self.routes.value(last), run)]
        groups.resize(count, place_of(values, places, self.routes.value(last)))
        return grouped(run, values, groups)

    cdef object route_of(self, Run run):
        """The one of `routes` by which all of a run goes, if there is one."""
        cdef uint32_t number, last
        cdef size_t index
        if self.look_up(run) < run.entries_.size():
            return None
        last = self.plans.at(run.entries_[0].plan).route
        route = self.routes.value(last)
        for index in range(1, run.entries_.size()):
            number = self.plans.at(run.entries_[index].plan).route
            if number != last and self.routes.value(number) is not route:
                return None
            last = number
        return route

    def accepted_count(self, Run run not None, verdict):
        """How many messages at the beginning of a run get this verdict of `bounds`."""
        cdef uint32_t last = NONE
        cdef size_t index, stop = 0
        for index in range(run.entries_.size()):
            if index == stop:
                stop = self.look_up(run, index)
            elif run.entries_[index].plan == last:
                continue
            last = run.entries_[index].plan
            if self.verdict_of(last) is not verdict:
                return index
        return run.entries_.size()

    cdef object verdict_of(self, uint32_t plan):
        """The verdict of `bounds`; None for topics that are `singles`."""
        if self.singles.size and self.plans.sets(SINGLE).size(self.plans.set_for(plan, SINGLE)):
            return None
        return self.bounds.value(self.plans.at(plan).verdict)

    def belongs(self, Run run not None, route, verdict):
        """Whether all of a run goes by this route, and gets this verdict."""
        cdef uint32_t last = NONE
        cdef size_t index, stop = 0
        for index in range(run.entries_.size()):
            if index == stop:
                stop = self.look_up(run, index)
            elif run.entries_[index].plan == last:
                continue
            last = run.entries_[index].plan
            if self.routes.value(self.plans.at(last).route) is not route:
                return False
            if self.verdict_of(last) is not verdict:
                return False
        return True

    def sole_receiver(self, list runs not None):
        """The edge that gets all of these runs, where no other one gets any of them; or None."""
        cdef Run run
        cdef uint32_t last
        cdef size_t index, stop
        cdef tuple edges
        sole = None
        for run in runs:
            last, stop = NONE, 0
            for index in range(run.entries_.size()):
                if index == stop:
                    stop = self.look_up(run, index)
                elif run.entries_[index].plan == last:
                    continue
                last = run.entries_[index].plan
                edges = self.receivers_of(last)
                if len(edges) != 1 or (sole is not None and edges[0] is not sole):
                    return None
                sole = edges[0]
        return sole

    def receivers(self, Run run not None):
        """The part of a run for each edge: each once, with all that it gets, in order."""
        cdef list values = []
        cdef vector[uint32_t] groups
        cdef unordered_map[Borrowed, uint32_t] places
        cdef uint32_t last = NONE
        cdef size_t index, stop = 0
        groups.reserve(run.entries_.size())
        for index in range(run.entries_.size()):
            if index == stop:
                stop = self.look_up(run, index)
            elif run.entries_[index].plan == last:
                groups.push_back(groups.back())
                continue
            last = run.entries_[index].plan
            groups.push_back(place_of(values, places, self.receivers_of(last)))
        return shared(run, values, groups)

    cdef tuple receivers_of(self, uint32_t plan):
        """The values of `interests`, by key, each once; the same tuple where they are the same."""
        cdef uint32_t number = self.plans.set_for(plan, INTEREST)
        cdef list known = self.receivers_
        cdef dict tuples = self.tuples
        while <uint32_t>len(known) <= number:
            known.append(None)
        if known[number] is None:
            peers = dict(self.interests.pairs_of(self.plans.sets(INTEREST), number))
            found = tuple([peers[key] for key in sorted(peers)])
            known[number] = tuples.setdefault(found, found)
        return known[number]

    # to clients

    cdef Range ways_for(self, uint32_t plan) except *:
        """The ways, in `ways`, of what has this plan."""
        cdef uint32_t number = self.plans.set_for(plan, TARGET)
        while self.ranges.size() <= number:
            self.add_ways(<uint32_t>self.ranges.size())
        return self.ranges[number]

    cdef int add_ways(self, uint32_t number) except -1:
        """Make the ways of a set: its targets, those of one session next to each other."""
        cdef vector[Borrowed] found
        cdef unordered_map[Borrowed, size_t] places
        cdef vector[vector[Borrowed]] sessions
        cdef Range made
        cdef Borrowed session
        cdef size_t index, place
        self.targets.values_of(self.plans.sets(TARGET), number, found)
        for index in range(found.size()):
            session = <Borrowed>(<Target?><object>found[index]).session
            if not places.count(session):
                places[session] = sessions.size()
                sessions.resize(sessions.size() + 1)
            sessions[places[session]].push_back(found[index])
        made.start = self.ways.size()
        for index in range(sessions.size()):
            for place in range(sessions[index].size()):
                self.ways.push_back(Way(sessions[index][place], sessions[index].size() - 1 - place))
        made.stop = self.ways.size()
        self.ranges.push_back(made)
        return 0

    cdef tuple edges_for(self, Run run, route, verdict):
        """The edges that get all of a run of QoS 0; None where not all of it goes the same way."""
        cdef uint32_t plan, last = NONE
        cdef size_t index
        cdef tuple edges = None
        if self.look_up(run) < run.entries_.size():
            return None
        for index in range(run.entries_.size()):
            plan = run.entries_[index].plan
            if plan == last:
                continue
            last = plan
            if self.routes.value(self.plans.at(plan).route) is not route:
                return None
            if self.verdict_of(plan) is not verdict:
                return None
            found = self.receivers_of(plan)
            if index and found is not edges:
                return None
            edges = found
        return edges

    def forward(self, Run run not None, route, verdict, edge):
        """
        `fan_out` for a run of QoS 0 that goes by one way. All of the run goes by this route, gets
        this verdict, and goes to this edge and no other. Otherwise None, and nothing was done.
        """
        cdef tuple edges = self.edges_for(run, route, verdict)
        if edges is None or len(edges) != 1 or edges[0] is not edge:
            return None
        return self.fan_out(run, None)

    def fan_out(self, Run run not None, part):
        """
        Give a run to the clients that are here; `part` is where it lies in a journal.

        Returns which sessions cannot get which of its messages straight, as ranges of these.
        """
        cdef list left = []
        cdef vector[int64_t] offsets
        cdef size_t index = 0, last, stop = 0, count = run.entries_.size()
        cdef Range ways
        cdef uint32_t number = 0
        if run.qos:
            run.fill_offsets(offsets)
            number = self.part_number(part)
        while index < count:
            if index >= stop or self.is_full():
                stop = self.look_up(run, index)
            ways = self.ways_for(run.entries_[index].plan)
            last = index + 1
            if ways.start != ways.stop:
                last = self.alike(run, index, stop)
                if run.qos:
                    self.give_qos12(run, index, last, ways, part, number, offsets, left)
                else:
                    self.give_qos0(run, index, last, ways, left)
            index = last
        self.notify_output()
        return left

    def fan_out_some(self, list runs not None, Py_ssize_t start, part):
        """
        `fan_out` for runs from `start` on, up to one that leaves a rest, or that has filled a
        packet writer. Returns the place behind that run, and its rest.
        """
        while True:
            left = self.fan_out(runs[start], part)
            start += 1
            if left or self.full or start == len(runs):
                return start, left

    def targets_of(self, str topic not None, part):
        """As in the reference."""
        cdef bytes text = topic.encode()
        cdef Target target
        cdef list found = []
        cdef Range ways
        cdef size_t at
        if self.generation != self.nodes.levels.generation:
            self.forget()
        elif self.is_full() or self.plans.count() > self.cache_limit:
            self.make_room()
        ways = self.ways_for(self.plans.number_of(bytes_of(text), len(text)))
        for at in range(ways.start, ways.stop):
            target = <Target>self.ways[at].target
            if part is None or target.packet_writer.reads is not part:
                found.append(target)
        return found

    def way(self, Run run not None, size_t index):
        """As in the reference."""
        return self.epoch << 32 | self.plans.set_for(self.plan_of(run, index), TARGET)

    def matching(self, Run run not None, size_t index, session):
        """As in the reference."""
        cdef Range ways = self.ways_for(self.plan_of(run, index))
        cdef Target target
        cdef size_t at = ways.start, stop
        cdef list found = []
        while at < ways.stop:
            stop = at + self.ways[at].more + 1
            target = <Target>self.ways[at].target
            if target.session is session:
                for at in range(at, stop):
                    found.append((<Target>self.ways[at].target).subscription)
            at = stop
        return found

    cdef uint32_t plan_of(self, Run run, size_t index) except? 0xFFFFFFFF:
        """The plan of one message of the run."""
        if index >= run.entries_.size():
            raise IndexError(index)
        # From its beginning where that does: a run that is known is not looked up again.
        if self.look_up(run) <= index:
            self.look_up(run, index)
        return run.entries_[index].plan

    def answer(self, list runs not None):
        """
        Runs of clients that are here are safe: each is told, as far as the packet ids are still the
        run's. Returns the runs that have lost some of theirs, with those packet ids.
        """
        cdef Run run
        cdef list others, found = []
        for run in runs:
            others = run.flows.acknowledge(run, run.packet_writer)
            if others:
                found.append((run, others))
        return found

    cdef size_t alike(self, Run run, size_t index, size_t stop) except 0:
        """
        Where the messages end, at `stop` or before, that go its ways; at QoS 0, where also their
        bytes no longer follow one another.
        """
        cdef const Entry* one = &run.entries_[index]
        cdef uint32_t number = self.plans.set_for(one.plan, TARGET), last = one.plan
        cdef size_t end = one.end
        for index in range(index + 1, stop):
            one = &run.entries_[index]
            if one.start != end and not run.qos:
                return index
            if one.plan != last and self.plans.set_for(one.plan, TARGET) != number:
                return index
            last, end = one.plan, one.end
        return stop

    cdef int give_qos0(
        self, Run run, size_t index, size_t stop, Range ways, list left
    ) except -1:
        """Give messages of QoS 0 that follow one another to all who get them, as they came."""
        cdef Target target
        cdef bint is_plain
        cdef size_t at = ways.start
        cdef object those = None
        while at < ways.stop:
            target = self.best(at, &is_plain)
            at += self.ways[at].more + 1
            if is_plain and target.packet_writer.is_direct:
                target.packet_writer.put_qos0(run, index, stop)
                self.delivered += stop - index
                continue
            if those is None:
                those = range(index, stop)
            left.append((target.session, those))
        return 0

    cdef int give_qos12(
        self, Run run, size_t index, size_t stop, Range ways, part, uint32_t number,
        const vector[int64_t]& offsets, list left,
    ) except -1:
        """
        Give messages of QoS 1 or 2 that go the same ways to all who get them, at their QoS.

        Who cannot get one of them gets none of those behind it, and is not asked again. To ask each
        of 9,000 sessions a hundred times took a third of a second.
        """
        cdef const Entry* one = &run.entries_[index]
        cdef vector[Borrowed] open
        cdef Target target
        cdef bint is_plain
        cdef size_t at = ways.start, place, kept
        cdef Content content = run.content(one)
        cdef object those = range(index, stop)
        while at < ways.stop:
            target = self.best(at, &is_plain)
            at += self.ways[at].more + 1
            if part is not None and target.packet_writer.reads is part:
                continue
            if is_plain and self.give(target, content, one.qos, number, offsets[index]):
                open.push_back(<Borrowed>target)
            else:
                self.leave(target, those, left)
        for index in range(index + 1, stop):
            if open.empty():
                break
            one = &run.entries_[index]
            content = run.content(one)
            those, kept = None, 0
            for place in range(open.size()):
                target = <Target>open[place]
                if self.give(target, content, one.qos, number, offsets[index]):
                    open[kept] = open[place]
                    kept += 1
                    continue
                if those is None:
                    those = range(index, stop)
                self.leave(target, those, left)
            open.resize(kept)
        return 0

    cdef bint give(
        self, Target target, Content& content, uint8_t qos, uint32_t part, int64_t offset
    ) except -1:
        """Give one message of this QoS to one session; False: it cannot get it straight."""
        content.qos = min(target.qos, qos)
        content.has_list = target.packet_writer.has_lists()
        if not self.deliver(target.packet_writer, content, part, offset):
            return False
        self.delivered += 1
        return True

    cdef int leave(self, Target target, those, list left) except -1:
        """Leave these messages of a run to the caller."""
        if target.packet_writer.has_window:
            target.packet_writer.is_direct = False  # what follows may not overtake
        left.append((target.session, those))
        return 0

    cdef bint deliver(
        self, PacketWriter packet_writer, const Content& content, uint32_t part, int64_t offset
    ) except -1:
        """Give one message to one client; False: it cannot get it straight."""
        cdef string whole
        if not packet_writer.is_direct or (content.qos and not packet_writer.has_window):
            return False
        if content.qos:
            packet_writer.is_direct = packet_writer.put_qos12(content, part, offset)
            return packet_writer.is_direct
        if packet_writer.is_accepted(content.packet_size()) and packet_writer.may_go():
            if packet_writer.aliases != NULL:
                whole.resize(content.packet_size())
                content.put(&whole[0])
                packet_writer.put_one(NULL, whole.data(), whole.size())
                return True
            packet_writer.note()
            content.put_head(packet_writer.output.extend(content.head_size()))
            packet_writer.output.share(content.owner, content.payload, content.payload_size)
            packet_writer.note_output()
        return True

    cdef Target best(self, size_t at, bint* is_plain):
        """Of a session's targets, the first with the highest QoS; whether all are plain."""
        cdef Target target = <Target>self.ways[at].target
        cdef Target other
        cdef size_t index
        cdef bint all_plain = target.is_plain
        for index in range(at + 1, at + 1 + self.ways[at].more):
            other = <Target>self.ways[index].target
            all_plain = all_plain and other.is_plain
            if other.qos > target.qos:
                target = other
        is_plain[0] = all_plain
        return target

    # parts of journals

    cdef uint32_t part_number(self, part) except? 0xFFFFFFFF:
        """The number of a part, which is its own as long as something in a queue lies in it."""
        cdef size_t number
        known = self.part_numbers.get(part)
        if known is not None:
            return known
        for number in range(self.part_uses.size()):
            if not self.part_uses[number]:
                del self.part_numbers[self.parts[number]]
                self.parts[number] = part
                break
        else:
            number = self.part_uses.size()
            self.parts.append(part)
            self.part_uses.push_back(0)
        self.part_numbers[part] = number
        return <uint32_t>number


cdef uint32_t place_of(
    list values, unordered_map[Borrowed, uint32_t]& places, value
) except? 0xFFFFFFFF:
    """Where a value is in the list, at whose end it is put where it is new."""
    cdef Borrowed key = <Borrowed>value
    if not places.count(key):
        places[key] = <uint32_t>len(values)
        values.append(value)
    return places[key]


cdef list grouped(Run run, list values, const vector[uint32_t]& groups):
    """The run taken apart: each value with the messages that have its place in `groups`."""
    cdef vector[vector[uint32_t]] chosen
    cdef size_t index
    if len(values) == 1:
        return [(values[0], run)]
    chosen.resize(len(values))
    for index in range(groups.size()):
        chosen[groups[index]].push_back(<uint32_t>index)
    return [(values[index], run.selected(chosen[index])) for index in range(len(values))]


cdef list shared(Run run, list values, const vector[uint32_t]& groups):
    """
    The run for each receiver that the tuples `values` name. The run has all messages whose place in
    `groups` is that of a tuple with the receiver. Receivers of the same messages get the same run.
    """
    cdef dict places = {}  # of each, in `values`
    cdef dict alike = {}
    cdef vector[uint32_t] chosen
    cdef vector[cbool] has
    cdef size_t index
    if len(values) == 1:
        return [(values[0], run)] if values[0] else []
    for place, found in enumerate(values):
        for one in found:
            places.setdefault(one, []).append(place)
    for one, found in places.items():
        alike.setdefault(tuple(found), []).append(one)
    made = []
    for found, ones in alike.items():
        has.assign(len(values), False)
        for place in found:
            has[<size_t>place] = True
        chosen.clear()
        for index in range(groups.size()):
            if has[groups[index]]:
                chosen.push_back(<uint32_t>index)
        whole = chosen.size() == groups.size()
        made.append((tuple(ones), run if whole else run.selected(chosen)))
    return made


cdef size_t size_of(list packet_writers):
    """Bytes that wait in all of them."""
    cdef PacketWriter packet_writer
    cdef size_t size = 0
    for packet_writer in packet_writers:
        size += packet_writer.output.size()
    return size
