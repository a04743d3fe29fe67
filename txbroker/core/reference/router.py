"""Where publishes go: from their topics to routes, to edges, to the clients that are here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from txbroker.core.reference.packet_reader import PacketReader
from txbroker.core.reference.packet_writer import PacketWriter
from txbroker.core.reference.packets import Entry, publish_head
from txbroker.core.reference.run import Run
from txbroker.core.reference.sockets import Sender, Sockets
from txbroker.core.subscription_index import SubscriptionIndex
from txbroker.mqtt.wire.message import OVERHEAD

MOST_OUTPUTS = 256
OUTPUT_BYTES = 4 * 1024 * 1024
"""Packet writers that are written in one go, and bytes, beside those of the last one."""

LEAST = 4 * 1024
"""
Bytes of output up to which a packet writer has as little as any; of these, the last comes first.
"""

OUTPUT_LIMIT = 128 * 1024 * 1024
"""Bytes of memory that hold what is on its way to clients, of all of them together."""


class Target:
    """
    A subscription of a session whose client is here, at `qos`.

    `is_plain`: live messages may go straight to its packet writer, as far as that is concerned.
    """

    __slots__ = ("is_plain", "packet_writer", "qos", "session", "subscription")

    def __init__(self, session: Any, subscription: Any, packet_writer: PacketWriter) -> None:
        self.session = session
        self.subscription = subscription
        self.packet_writer = packet_writer
        self.qos = 0
        self.is_plain = False


class Apexes:
    """What belongs to each apex; a topic belongs to the deepest one that encloses it."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def set(self, apex: str, value: Any) -> None:
        """From now on."""
        self._values[apex] = value

    def replace(self, values: dict[str, Any]) -> None:
        """These, and no others."""
        self._values = dict(values)

    def remove(self, apex: str) -> None:
        """Topics within belong to the apex above; nothing where there is none."""
        self._values.pop(apex, None)

    def find(self, topic: str) -> Any:
        """The value for a topic, None where no apex encloses it."""
        while topic not in self._values:
            above, slash, _ = topic.rpartition("/")
            if not slash:
                return self._values.get("")
            topic = above
        return self._values[topic]


class Router:
    """
    All that a node knows of topics, for runs: `routes` by apex at its edge; at its authority the
    verdict by apex (`bounds`) and the edges by filter (`interests`); `targets` by filter.

    `received` counts publishes of clients, `delivered` messages that went straight to clients, once
    for each, `fills` how often a window became full. `send_outputs` is called at the end of a turn.
    `is_quiet`: what is due is told later.
    """

    def __init__(self, on_output: Callable[[], None], cache_limit: int = 100_000) -> None:
        """`on_output` is called when the first packet writer has something to send."""
        self.routes = Apexes()
        self.bounds = Apexes()
        self.interests: SubscriptionIndex[str, Any] = SubscriptionIndex(cache_limit=cache_limit)
        self.targets: SubscriptionIndex[str, Target] = SubscriptionIndex(cache_limit=cache_limit)
        self.received = 0
        self.delivered = 0
        self.fills = 0
        self.is_quiet = False
        self._is_due = False
        self._on_output = on_output
        self._outputs: list[PacketWriter] = []
        self._full: list[PacketWriter] = []

    def make_packet_writer(self) -> PacketWriter:
        """The way to a client."""
        return PacketWriter(self._note_output, self._full.append, self._count_fill)

    def make_packet_reader(self, packet_writer: PacketWriter, max_packet: int) -> PacketReader:
        """What comes from the same client."""
        return PacketReader(max_packet, packet_writer)

    def make_sockets(self) -> Sockets:
        """Where clients and links are read."""
        return Sockets(self)

    def make_sender(
        self, packet_writer: PacketWriter, make_header: Callable[[str], bytes]
    ) -> Sender:
        """What goes over a link at once."""
        return Sender(packet_writer, make_header)

    def make_target(self, session: Any, subscription: Any, packet_writer: PacketWriter) -> Target:
        """A subscription of a client that is here, for `targets`."""
        return Target(session, subscription, packet_writer)

    @property
    def forgotten(self) -> int:
        """How often what was kept of topics went, as it was too much."""
        return self.interests.forgotten + self.targets.forgotten

    def set_cache_limit(self, limit: int) -> None:
        """For how many topics it is kept who gets them."""
        self.interests.cache_limit = self.targets.cache_limit = limit

    def limit_output(self, limit: int) -> None:
        """
        Set how much memory may hold what is on its way to clients (`OUTPUT_LIMIT`). Beyond half of
        it each client whose socket takes nothing now may have less waiting, down to 16 KiB, so that
        who has most of it pays first. (The reference has no such limit.)
        """

    def room(self, most: int) -> int:
        """Of so many bytes that may wait for such a client, how many may wait now."""
        return most

    def _note_output(self, packet_writer: PacketWriter) -> None:
        if not self._outputs:
            self._is_due = True
            self.tell()
        self._outputs.append(packet_writer)

    def _count_fill(self) -> None:
        self.fills += 1

    def tell(self) -> None:
        """Call `on_output` where that is due."""
        if self._is_due and not self.is_quiet:
            self._is_due = False
            self._on_output()

    def send_all(self) -> bool:
        """Write what there is to send; False: somebody has to look at some of it."""
        left = self.send_outputs()
        for packet_writer in left:
            packet_writer.is_noted = True
        self._outputs += left
        self._is_due = bool(self._outputs)
        return not self._is_due

    def send_outputs(self) -> list[PacketWriter]:
        """
        Write what there is to send, where a packet writer has the `descriptor` of a socket. Of very
        many, or much, it is done for those that have least, and those that have waited longest, so
        that a message to a crowd holds up no message to others; `has_outputs` until all is done.
        The rest waits, too, where writing takes long. (Compiled; the reference has no clock.)

        Returns those that had something to send and that somebody has to look at, each once, in the
        order in which they were written: not all could be, or something else has happened there.
        """
        outputs = self._outputs
        first = _few(outputs)
        light = sorted(
            range(first, len(outputs)),
            key=lambda place: (max(outputs[place].size, LEAST), -place),
        )
        light = light[: _few(outputs[place] for place in light)]
        written = [outputs[place] for place in light] + outputs[:first]
        rest = set(range(first, len(outputs))).difference(light)
        self._outputs = [outputs[place] for place in sorted(rest)]
        for packet_writer in written:
            packet_writer.is_noted = False
        return [packet_writer for packet_writer in written if not packet_writer.is_sent()]

    @property
    def has_outputs(self) -> bool:
        """True if some of those that have something to send are still to be written."""
        return bool(self._outputs)

    @property
    def is_full(self) -> bool:
        """Whether `take_full` has any."""
        return bool(self._full)

    def take_full(self) -> list[PacketWriter]:
        """Those that passed a high mark since the last call, each once."""
        full = self._full[:]
        self._full.clear()
        for packet_writer in full:
            packet_writer.is_full = False
        return full

    def split(self, run: Run) -> list[tuple[Any, Run]]:
        """What of a run goes to which of `routes`, in order; the whole run where it is one."""
        return _grouped(run, [self.routes.find(topic) for topic in run.topics()])

    def taken(self, run: Run, verdict: Any) -> int:
        """How many messages at the beginning of a run get this verdict of `bounds`."""
        for index, topic in enumerate(run.topics()):
            if self.bounds.find(topic) is not verdict:
                return index
        return run.count

    def belongs(self, run: Run, route: Any, verdict: Any) -> bool:
        """Whether all of a run goes by this route, and gets this verdict."""
        return all(
            self.routes.find(topic) is route and self.bounds.find(topic) is verdict
            for topic in run.topics()
        )

    def sole_receiver(self, runs: list[Run]) -> Any:
        """The edge that gets all of these runs, where no other one gets any of them; or None."""
        found = [self.receivers(run) for run in runs]
        edges = {edge for parts in found for edges, _ in parts for edge in edges}
        are_whole = all(
            len(parts) == 1 and parts[0][1] is run for parts, run in zip(found, runs, strict=True)
        )
        return edges.pop() if are_whole and len(edges) == 1 else None

    def receivers(self, run: Run) -> list[tuple[tuple[Any, ...], Run]]:
        """
        What of a run goes to which edges (the values of `interests`): each edge once, with all that
        it gets, in order; the whole run where that is all.
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
        """Who gets all of a run of QoS 0; None where not all of it goes the same way."""
        found: list[tuple[Any, ...]] = []
        for topic in run.topics():
            if self.routes.find(topic) is not route or self.bounds.find(topic) is not verdict:
                return None
            edges = dict(self.interests.match(topic))
            found.append(tuple(edges[key] for key in sorted(edges)))
            if found[-1] != found[0]:
                return None
        return found[0]

    def pass_on(
        self, run: Run, route: Any, verdict: Any, edge: Any
    ) -> list[tuple[Any, int]] | None:
        """
        `fan_out` for a run of QoS 0 of which all goes by this route, gets this verdict and goes to
        this edge and no other; None where that is not so, and nothing was done.
        """
        if self.edges_for(run, route, verdict) != (edge,):
            return None
        return self.fan_out(run, None)

    def fan_out(self, run: Run, part: Any) -> list[tuple[Any, int]]:
        """
        Give a run to the clients that are here; `part` is where it lies in a journal.

        Returns which sessions cannot get which of its messages straight.
        """
        left: list[tuple[Any, int]] = []
        for index, (topic, one) in enumerate(zip(run.topics(), run.entries, strict=True)):
            best: dict[Any, tuple[Target, bool]] = {}
            for _, target in self.targets.match(topic):
                known = best.get(target.session)
                is_plain = target.is_plain and (known is None or known[1])
                if known is None or target.qos > known[0].qos:
                    best[target.session] = target, is_plain
                else:
                    best[target.session] = known[0], is_plain
            for session, (target, is_plain) in best.items():
                if is_plain and self._give(target, run, index, one, part):
                    self.delivered += 1
                else:
                    # What follows may not overtake what can be left to the journal.
                    if target.packet_writer.has_window and run.qos:
                        target.packet_writer.is_direct = False
                    left.append((session, index))
        return left

    def fan_out_some(
        self, runs: list[Run], start: int, part: Any
    ) -> tuple[int, list[tuple[Any, int]]]:
        """
        `fan_out` for runs from `start` on, up to one of which something is left, or has filled an
        packet writer: where that one ends, and what is left of it.
        """
        while True:
            left = self.fan_out(runs[start], part)
            start += 1
            if left or self._full or start == len(runs):
                return start, left

    def way(self, run: Run, index: int) -> object:
        """
        Which of `targets` match a message of a run: the same for those that all the same ones do,
        while nothing changes there.
        """
        one = run.entries[index]
        return run.data[one.topic : one.topic_end].decode()

    def matching(self, run: Run, index: int, session: Any) -> list[Any]:
        """The subscriptions of a session that is here which match a message of a run."""
        one = run.entries[index]
        topic = run.data[one.topic : one.topic_end].decode()
        targets = (target for _, target in self.targets.match(topic))
        return [target.subscription for target in targets if target.session is session]

    def answer(self, runs: list[Run]) -> list[tuple[Run, list[int]]]:
        """
        Runs of clients that are here are safe: each is told, as far as the packet ids are the run's
        still. Returns the runs that have lost some of theirs, with those packet ids.
        """
        found = []
        for run in runs:
            assert run.flows is not None
            others = run.flows.taken(run, run.packet_writer)
            if others:
                found.append((run, others))
        return found

    def _give(self, target: Target, run: Run, index: int, one: Entry, part: Any) -> bool:
        packet_writer = target.packet_writer
        qos = min(target.qos, one.qos)
        if not packet_writer.is_direct or (qos and not packet_writer.has_window):
            return False
        topic, payload = run.data[one.topic : one.topic_end], run.data[one.payload : one.end]
        if not qos:
            packet_writer.send_qos0(publish_head(0, topic, len(payload)) + payload)
            return True
        size = len(topic) + len(payload) + OVERHEAD
        if packet_writer.give(topic, payload, qos, size, part, run.offset(index)):
            return True
        packet_writer.is_direct = False
        return False


def _few(packet_writers: Iterable[PacketWriter]) -> int:
    """How many of them are half of what is written in one go."""
    count = size = 0
    for packet_writer in packet_writers:
        if count >= MOST_OUTPUTS // 2 or size >= OUTPUT_BYTES // 2:
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
