"""Routes publishes by topic: to zones' owners, to edges, and to the clients of this node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from txbroker.core.reference.output_group import OutputGroup
from txbroker.core.reference.packet_reader import PacketReader
from txbroker.core.reference.packet_writer import PacketWriter
from txbroker.core.reference.packets import Entry
from txbroker.core.reference.run import Run
from txbroker.core.reference.sockets import Sender, Sockets
from txbroker.core.subscription_index import SubscriptionIndex
from txbroker.mqtt.wire.message import OVERHEAD

MOST_OUTPUTS = 256
OUTPUT_BYTES = 4 * 1024 * 1024
"""Packet writers, and bytes, that one call writes, beside those of the last packet writer."""

HURRIED_BYTES = 512 * 1024
"""
Bytes that all calls of one turn of the event loop write while a caller awaits a sync.

Each of several calls in a turn wrote 4 MiB to a crowd that reads nothing. A publish of QoS 1 waits
for six such turns.
"""

LEAST = 4 * 1024
"""
Output in bytes up to which packet writers count as equally small; of these, the last comes first.
"""

OUTPUT_LIMIT = 128 * 1024 * 1024
"""Memory in bytes for the output to all clients together."""


class Target:
    """
    A subscription at `qos` of a session whose client is connected to this node.

    `is_plain`: True if the subscription allows live messages to bypass the session.
    """

    __slots__ = ("is_plain", "packet_writer", "qos", "session", "subscription")

    def __init__(self, session: Any, subscription: Any, packet_writer: PacketWriter) -> None:
        self.session = session
        self.subscription = subscription
        self.packet_writer = packet_writer
        self.qos = 0
        self.is_plain = False


class Apexes:
    """Values by apex; a topic belongs to the deepest apex that encloses it."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def set(self, apex: str, value: Any) -> None:
        """Set the value of an apex."""
        self._values[apex] = value

    def replace(self, values: dict[str, Any]) -> None:
        """Replace all values."""
        self._values = dict(values)

    def remove(self, apex: str) -> None:
        """Remove an apex; its topics belong to the apex above, if any."""
        self._values.pop(apex, None)

    def find(self, topic: str) -> Any:
        """Return the value for a topic; None if no apex encloses it."""
        while topic not in self._values:
            above, slash, _ = topic.rpartition("/")
            if not slash:
                return self._values.get("")
            topic = above
        return self._values[topic]


class Router:
    """
    The topic tables of a node, for runs.

    - `routes`: at the edge, the route by apex.
    - `bounds`: at the authority, the verdict by apex.
    - `interests`: at the authority, the edges by filter.
    - `targets`: at the edge, the connected clients' subscriptions by filter.
    - `singles`: at the authority, the filters of topics that get no verdict. The zone takes their
      messages one by one.

    `received` counts publishes of clients. `delivered` counts messages that went directly to
    clients, once per client. `fills` counts how often a window became full. The node calls
    `send_outputs` at the end of a turn. While `is_quiet` is True, `on_output` is postponed until
    `notify_output`; `is_due` is True if a call is postponed.
    """

    def __init__(self, on_output: Callable[[], None], cache_limit: int = 100_000) -> None:
        """`on_output` is called when the first packet writer has output."""
        self.routes = Apexes()
        self.bounds = Apexes()
        self.interests: SubscriptionIndex[str, Any] = SubscriptionIndex(cache_limit=cache_limit)
        self.targets: SubscriptionIndex[str, Target] = SubscriptionIndex(cache_limit=cache_limit)
        self.singles: SubscriptionIndex[str, Any] = SubscriptionIndex(cache_limit=cache_limit)
        self.received = 0
        self.delivered = 0
        self.fills = 0
        self.is_quiet = False
        self.is_due = False
        self._on_output = on_output
        self._outputs: list[PacketWriter] = []
        self._is_hurried = False
        self._written = 0  # in this turn of the event loop
        self._group = OutputGroup()
        self._full: list[PacketWriter] = []

    def make_packet_writer(self) -> PacketWriter:
        """Make the packet writer of a connection."""
        return PacketWriter(self._note_output, self._full.append, self._count_fill, self._group.add)

    def make_packet_reader(self, packet_writer: PacketWriter, max_packet: int) -> PacketReader:
        """Make the packet reader of the same connection."""
        return PacketReader(max_packet, packet_writer)

    def make_sockets(self) -> Sockets:
        """Make the reader of all sockets."""
        return Sockets(self)

    def make_sender(
        self, packet_writer: PacketWriter, make_header: Callable[[str], bytes]
    ) -> Sender:
        """Make the sender of a link, for runs of QoS 0."""
        return Sender(packet_writer, make_header)

    def make_target(self, session: Any, subscription: Any, packet_writer: PacketWriter) -> Target:
        """Make the entry of a subscription for `targets`."""
        return Target(session, subscription, packet_writer)

    @property
    def forgotten(self) -> int:
        """Number of topics dropped from the caches because they were full."""
        return self.interests.forgotten + self.targets.forgotten

    def set_cache_limit(self, limit: int) -> None:
        """Set the number of topics whose receivers are cached."""
        for index in (self.interests, self.targets, self.singles):
            index.cache_limit = limit

    def limit_output(self, limit: int) -> None:
        """
        Set the memory for the output to all clients (`OUTPUT_LIMIT`), in bytes.

        Above half of it, the limit of each client whose socket is full shrinks, down to 16 KiB. So
        the client with the most output pays first. (The reference has no such limit.)
        """

    def room(self, most: int) -> int:
        """Return how many of `most` bytes may wait for a client whose socket is full."""
        return most

    def _note_output(self, packet_writer: PacketWriter) -> None:
        if not self._outputs:
            self.is_due = True
            self.notify_output()
        self._outputs.append(packet_writer)

    def _count_fill(self) -> None:
        self.fills += 1

    def notify_output(self) -> None:
        """Call `on_output` if due."""
        if self.is_due and not self.is_quiet:
            self.is_due = False
            self._on_output()

    def send_all(self) -> bool:
        """Write all output; return False if the node must handle some packet writer."""
        left = self.send_outputs()
        for packet_writer in left:
            packet_writer.is_noted = True
        self._outputs += left
        self.is_due = bool(self._outputs)
        return not self.is_due

    def send_outputs(self) -> list[PacketWriter]:
        """
        Write the output of packet writers that have the `descriptor` of a socket.

        Of too many packet writers, or too much output, one call writes a part. The smallest outputs
        and the longest waiting ones go first. So a message to a crowd delays no message to other
        clients. `has_outputs` is True until all are written. A slow write also ends the call early.
        (Compiled; the reference has no clock.)

        Return the packet writers that the node must handle, each once, in the order of writing.
        Each has output that its socket refused, or other news.
        """
        outputs = self._outputs
        self._group.clear()
        most = max(HURRIED_BYTES - self._written, 0) if self._is_hurried else OUTPUT_BYTES
        first = _few(outputs, most)
        light = sorted(
            range(first, len(outputs)),
            key=lambda place: (max(outputs[place].size, LEAST), -place),
        )
        light = light[: _few((outputs[place] for place in light), most, least=LEAST)]
        written = [outputs[place] for place in light] + outputs[:first]
        rest = set(range(first, len(outputs))).difference(light)
        self._outputs = [outputs[place] for place in sorted(rest)]
        for packet_writer in written:
            packet_writer.is_noted = False
        left = []
        for packet_writer in written:
            self._written += packet_writer.size
            if not packet_writer.is_sent():
                left.append(packet_writer)
            self._written -= packet_writer.size
        return left

    def hurry(self, is_hurried: bool) -> None:
        """Write little in each turn, as a caller waits for several turns, or as usual again."""
        self._is_hurried = is_hurried
        self._written = 0

    def begin_turn(self) -> None:
        """Begin a turn of the event loop: `HURRIED_BYTES` may be written again."""
        self._written = 0

    @property
    def has_outputs(self) -> bool:
        """True if some output is still to be written."""
        return bool(self._outputs)

    @property
    def is_full(self) -> bool:
        """True if `dequeue_full` would return any packet writer."""
        return bool(self._full)

    def dequeue_full(self) -> list[PacketWriter]:
        """Return the packet writers that passed a high mark since the last call, each once."""
        full = self._full[:]
        self._full.clear()
        for packet_writer in full:
            packet_writer.is_full = False
        return full

    def split(self, run: Run) -> list[tuple[Any, Run]]:
        """Split a run by route, in order; return the run itself if one route gets all of it."""
        return _grouped(run, [self.routes.find(topic) for topic in run.topics()])

    def accepted_count(self, run: Run, verdict: Any) -> int:
        """Return the number of messages at the start of a run with this verdict of `bounds`."""
        for index, topic in enumerate(run.topics()):
            if self._verdict(topic) is not verdict:
                return index
        return run.count

    def _verdict(self, topic: str) -> Any:
        return None if self.singles.match(topic) else self.bounds.find(topic)

    def belongs(self, run: Run, route: Any, verdict: Any) -> bool:
        """True if the whole run goes by this route and gets this verdict."""
        return all(
            self.routes.find(topic) is route and self._verdict(topic) is verdict
            for topic in run.topics()
        )

    def sole_receiver(self, runs: list[Run]) -> Any:
        """Return the edge that receives all of these runs and shares them with no edge, or None."""
        found = [self.receivers(run) for run in runs]
        edges = {edge for parts in found for edges, _ in parts for edge in edges}
        are_whole = all(
            len(parts) == 1 and parts[0][1] is run for parts, run in zip(found, runs, strict=True)
        )
        return edges.pop() if are_whole and len(edges) == 1 else None

    def receivers(self, run: Run) -> list[tuple[tuple[Any, ...], Run]]:
        """
        Split a run by receiving edges, the values of `interests`.

        Each edge appears once, with all its messages in order; a part that is the whole run is
        `run`.
        """
        chosen: dict[Any, list[int]] = {}
        for index, topic in enumerate(run.topics()):
            peers = dict(self.interests.match(topic))
            for key in sorted(peers):
                chosen.setdefault(peers[key], []).append(index)
        alike: dict[tuple[int, ...], list[Any]] = {}
        for peer, indices in chosen.items():
            alike.setdefault(tuple(indices), []).append(peer)
        return [
            (tuple(found), run if len(indices) == run.count else run.select(indices))
            for indices, found in alike.items()
        ]

    def edges_for(self, run: Run, route: Any, verdict: Any) -> tuple[Any, ...] | None:
        """Return the edges that receive all of a QoS 0 run; None if its messages differ in that."""
        found: list[tuple[Any, ...]] = []
        for topic in run.topics():
            if self.routes.find(topic) is not route or self._verdict(topic) is not verdict:
                return None
            edges = dict(self.interests.match(topic))
            found.append(tuple(edges[key] for key in sorted(edges)))
            if found[-1] != found[0]:
                return None
        return found[0]

    def forward(
        self, run: Run, route: Any, verdict: Any, edge: Any
    ) -> list[tuple[Any, range]] | None:
        """
        Call `fan_out` for a QoS 0 run that goes by this route, with this verdict, to this edge
        only.

        Return None, without effect, for any other run.
        """
        if self.edges_for(run, route, verdict) != (edge,):
            return None
        return self.fan_out(run, None)

    def fan_out(self, run: Run, part: Any) -> list[tuple[Any, range]]:
        """
        Deliver a run to the clients of this node; `part` is its part of a journal.

        Return the sessions, with ranges of message indexes, that could not be delivered directly.
        """
        left: list[tuple[Any, range]] = []
        for index, (topic, one) in enumerate(zip(run.topics(), run.entries, strict=True)):
            best: dict[Any, tuple[Target, bool]] = {}
            for target in self.targets_of(topic, None):
                known, is_plain = best.get(target.session, (target, True))
                highest = target if target.qos > known.qos else known
                best[target.session] = highest, is_plain and target.is_plain
            for session, (target, is_plain) in best.items():
                if run.qos and _reads(target, part):
                    continue
                if is_plain and self._deliver(target, run, index, one, part):
                    self.delivered += 1
                else:
                    # A later message must not overtake this one, which the journal still has.
                    if target.packet_writer.has_window and run.qos:
                        target.packet_writer.is_direct = False
                    left.append((session, range(index, index + 1)))
        return left

    def fan_out_some(
        self, runs: list[Run], start: int, part: Any
    ) -> tuple[int, list[tuple[Any, range]]]:
        """
        Call `fan_out` for runs from `start` on, until one leaves messages or fills a packet writer.

        Return the index behind that run, and its undelivered messages.
        """
        while True:
            left = self.fan_out(runs[start], part)
            start += 1
            if left or self._full or start == len(runs):
                return start, left

    def targets_of(self, topic: str, part: Any) -> list[Target]:
        """Return the targets for a topic, without those of sessions that read the part anyway."""
        return [one for _, one in self.targets.match(topic) if not _reads(one, part)]

    def way(self, run: Run, index: int) -> object:
        """
        Return a key for the set of `targets` that match a message of a run.

        Equal keys mean equal sets, as long as `targets` does not change.
        """
        one = run.entries[index]
        return run.data[one.topic : one.topic_end].decode()

    def matching(self, run: Run, index: int, session: Any) -> list[Any]:
        """Return the subscriptions of a connected session that match a message of a run."""
        one = run.entries[index]
        topic = run.data[one.topic : one.topic_end].decode()
        return [t.subscription for t in self.targets_of(topic, None) if t.session is session]

    def answer(self, runs: list[Run]) -> list[tuple[Run, list[int]]]:
        """
        Acknowledge durable runs to the clients of this node, for the packet ids that a run still
        has.

        Return the runs that have lost packet ids, with those ids.
        """
        found = []
        for run in runs:
            assert run.flows is not None
            others = run.flows.acknowledge(run, run.packet_writer)
            if others:
                found.append((run, others))
        return found

    def _deliver(self, target: Target, run: Run, index: int, one: Entry, part: Any) -> bool:
        packet_writer = target.packet_writer
        qos = min(target.qos, one.qos)
        if not packet_writer.is_direct or (qos and not packet_writer.has_window):
            return False
        topic, payload = run.data[one.topic : one.topic_end], run.data[one.payload : one.end]
        properties = run.properties(index)
        if not qos:
            packet_writer.send_qos0(packet_writer.encode_qos0(topic, payload, properties))
            return True
        size = len(topic) + len(payload) + len(properties) + OVERHEAD
        if packet_writer.deliver(topic, payload, qos, size, part, run.offset(index), properties):
            return True
        packet_writer.is_direct = False
        return False


def _reads(target: Target, part: Any) -> bool:
    """True if the session of the target reads the part anyway; None is no part."""
    return part is not None and target.packet_writer.reads is part


def _few(packet_writers: Iterable[PacketWriter], most: int, *, least: int = -1) -> int:
    """
    Return how many packet writers fill half of the limits of one call, which writes `most` bytes.

    Output of up to `least` bytes is always little enough.
    """
    count = size = 0
    for packet_writer in packet_writers:
        is_enough = size >= most // 2 and packet_writer.size > least
        if count >= MOST_OUTPUTS // 2 or is_enough:
            break
        count += 1
        size += packet_writer.size
    return count


def _grouped(run: Run, values: list[Any]) -> list[tuple[Any, Run]]:
    groups: dict[Any, list[int]] = {}
    for index, value in enumerate(values):
        groups.setdefault(value, []).append(index)
    if len(groups) == 1:
        return [(values[0], run)]
    return [(value, run.select(indices)) for value, indices in groups.items()]
