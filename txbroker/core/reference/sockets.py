"""
Reads the sockets of clients and links, and forwards plain publishes of QoS 0 at once.

`wait` reads each ready socket once, and forwards runs from the start of its bytes. A run is
forwarded if its topics need no decision. In the own zone all its topics go to the same edges, and
elsewhere all go by the same route. Also each link on the way must have room. A delivery from an
owner goes to the clients of this node, if `may_take` allows. Other bytes go to the packet reader,
and the caller receives the descriptor with `FED`.

Calls of `on_output` and runs for the journal are postponed until `notify_output`, so that they are
handled together.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from txbroker.core.reference.link import COUNT, MOST_KNOWN, LinkReader
from txbroker.core.reference.packet_reader import PacketReader
from txbroker.core.reference.packet_writer import PacketWriter
from txbroker.core.reference.run import Run

EPOLLIN = 0x001
"""epoll reports a readable descriptor (epoll_ctl(2))."""

ENDED = 0x008 | 0x010
"""
EPOLLERR and EPOLLHUP: the reader still reads what a disconnected peer has sent.

A crowd of peers may disconnect at once.
"""

READ_SIZE = 256 * 1024
"""Bytes that one read requests."""

READ_LEAST = 1024
"""Bytes that one read requests when very many connections have more than the turn's work."""

BATCH = 1024
"""Ready descriptors that one call serves."""

FED = 1 << 30
"""Replaces the events of a descriptor whose bytes were read and await processing."""

Way = tuple[Any, Any, Any, Callable[[list[Run]], None] | None]
"""Route, verdict, this node's own edge, and the callback that journals runs."""

Left = list[tuple[Any, range]]
"""Sessions, each with indexes of messages of a run that it cannot receive directly."""


class Watching(Protocol):
    """The used part of `select.epoll`."""

    def poll(self, timeout: float | None, maxevents: int) -> list[tuple[int, int]]: ...


class Switch(Protocol):
    """The router, as the reader of sockets needs it."""

    received: int
    is_due: bool
    is_quiet: bool

    @property
    def is_full(self) -> bool:
        """True if a packet writer has passed its high mark."""

    def notify_output(self) -> None:
        """Call `on_output` if due."""

    def send_all(self) -> bool:
        """Write all output; return False if some is left."""

    def split(self, run: Run) -> list[tuple[Any, Run]]:
        """Split a run by route."""

    def edges_for(self, run: Run, route: Any, verdict: Any) -> tuple[Any, ...] | None:
        """Return the edges that receive a run; None if its messages differ in that."""

    def fan_out(self, run: Run, part: Any) -> Left:
        """Deliver a run to the clients of this node."""


class Sender:
    """
    A link to an owner or to another edge, for QoS 0 runs that need no decision.

    `room` more bytes may be sent, and `sent` were sent, counted as `Run.size`. The code that sets
    `room` accounts for all other traffic. `has_properties`: True if the other end reads properties.
    """

    def __init__(self, packet_writer: PacketWriter, make_header: Callable[[str], bytes]) -> None:
        """`make_header` makes the header of a client's batch, with any count (`COUNT`)."""
        self.room = 0
        self.sent = 0
        self.has_properties = False
        self._packet_writer = packet_writer
        self._make_header = make_header
        self._headers: dict[str, bytes] = {}

    def forget(self) -> None:
        """Forget all headers, so that new ones are made."""
        self._headers.clear()

    @property
    def can_send(self) -> bool:
        """True if a run may be sent at once."""
        return self.room > 0 and self._packet_writer.descriptor >= 0

    def send(self, run: Run) -> bool:
        """Send a run of one client; return False if that is impossible now."""
        if not self.can_send:
            return False
        if not self.has_properties:
            run = run.without_properties()
        header = self._headers.get(run.clients[0])
        if header is None:
            header = self._make_header(run.clients[0])[:-COUNT]
            if len(self._headers) >= MOST_KNOWN:
                self._headers.clear()
            self._headers[run.clients[0]] = header
        self._packet_writer.send(header + run.count.to_bytes(COUNT, "little") + run.raw)
        self.room -= run.size
        self.sent += run.size
        return True


class Sockets:
    """
    Reads the ready sockets of clients and links.

    Plain publishes of QoS 0 need no decision. The object forwards them at once, to clients of this
    node and over links. The object asks the own zone, each route, edge and link once. The answer is
    cached until other code has run.
    """

    def __init__(self, router: Switch) -> None:
        self._router = router
        self._packet_readers: dict[int, PacketReader | LinkReader] = {}
        self._ask: Callable[[], Way | None] = lambda: None
        self._leave: Callable[[Run, Left], None] = lambda _, __: None
        self._find_edge: Callable[[Any], Sender | None] = lambda _: None
        self._find_owner: Callable[[Any], Sender | None] = lambda _: None
        self._answers: dict[Any, Any] = {}
        self._kept: list[tuple[Callable[[list[Run]], None], Run]] = []
        self._has_left = False
        self._most = READ_SIZE

    def wire_zone(
        self,
        ask: Callable[[], Way | None],
        leave: Callable[[Run, Left], None],
        find_edge: Callable[[Any], Sender | None],
    ) -> None:
        """
        Connect the node's own zone.

        `ask` returns the zone's present `Way`, or None. `leave` receives each run that not all
        clients could receive, or that filled a packet writer. `find_edge` returns the sender of
        another edge if a run may be sent now.
        """
        self._ask, self._leave, self._find_edge = ask, leave, find_edge

    def wire_owners(self, find_owner: Callable[[Any], Sender | None]) -> None:
        """Connect the other zones: `find_owner` returns the sender of a route's owner, or None."""
        self._find_owner = find_owner

    def add(self, descriptor: int, packet_reader: PacketReader | LinkReader) -> None:
        """Read the descriptor into this packet reader."""
        self._packet_readers[descriptor] = packet_reader

    def remove(self, descriptor: int) -> None:
        """Stop reading the descriptor."""
        self._packet_readers.pop(descriptor, None)

    def crowd(self, waiting: int) -> None:
        """Reduce the bytes per read while the work of `waiting` connections is held in memory."""
        self._most = max(READ_SIZE // (waiting + 1), READ_LEAST)

    def hurry(self, is_hurried: bool) -> None:
        """
        Reduce the bytes per turn while a caller waits for many turns, which must be short.

        (The reference reads as much as ever.)
        """

    def read(self, descriptor: int) -> bool:
        """
        Read a new connection, whose packets cannot be forwarded yet.

        Return True if its packet reader holds bytes. `wait` meets an end, or an error, again.
        """
        packet_reader = self._packet_readers.get(descriptor)
        return packet_reader is not None and self._read(packet_reader, descriptor, 0.0) == FED

    @property
    def has_postponed(self) -> bool:
        """True if `wait` has postponed calls of `on_output` or runs for the journal."""
        return self._router.is_due or bool(self._kept)

    def notify_output(self) -> None:
        """Call `on_output` and journal runs, where `wait` has postponed both."""
        self._router.notify_output()
        kept, self._kept = self._kept, []
        for keep, run in kept:
            keep([run])

    def wait(
        self,
        epoll: Watching,
        interest: bytearray,
        timeout: float | None,
        clock: Callable[[], float],
    ) -> list[tuple[int, int]] | None:
        """
        Wait up to `timeout` seconds (None: forever), and serve the ready sockets.

        The thread that reads `clock` runs nothing in between, but other threads may run.

        Return the descriptors for the caller, or None. Each has its events of `epoll`, or `FED` if
        its bytes are in the packet reader. A further piece of a long incomplete packet, or of a
        first packet, may be missing. The caller must first call `notify_output`, even for an empty
        list. `interest` has EPOLLIN for each descriptor that may be read.

        Runs for the journal may wait up to 10 ms to be journaled together, but never until other
        code runs. If the ready connections have more than the turn's work, some are not read.
        Connections that have sent less come first. (Compiled; the reference reads all of them.)
        """
        self._has_left = False
        self._answers.clear()
        self._router.is_quiet = True
        try:
            ready = epoll.poll(timeout, BATCH)
            now, left = clock(), []
            for descriptor, events in ready:
                packet_reader = self._packet_readers.get(descriptor)
                is_read = events & ~ENDED == EPOLLIN
                if packet_reader is None or not (is_read and interest[descriptor] & EPOLLIN):
                    left.append((descriptor, events))
                elif told := self._read(packet_reader, descriptor, now):
                    left.append((descriptor, told))
        finally:
            self._router.is_quiet = False
        has_more = left or self._has_left or not self._router.send_all() or self._kept
        return left if has_more else None

    def _read(self, packet_reader: PacketReader | LinkReader, descriptor: int, now: float) -> int:
        """Read a socket; return `FED`, EPOLLIN for an end, or 0 if all was forwarded or kept."""
        try:
            data = os.read(descriptor, self._most)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            return EPOLLIN
        if not data:
            return EPOLLIN
        try:
            if isinstance(packet_reader, PacketReader) and packet_reader.take_pings(data, now):
                return 0
            if packet_reader.is_fed:
                packet_reader.feed(data)
                return FED
            whole = packet_reader.joined(data)
            # A crowd that sends CONNECT byte by byte would take all turns of the caller.
            if whole is None and isinstance(packet_reader, PacketReader) and packet_reader.is_new:
                return 0
            if whole is not None and packet_reader.buffer_rest(
                whole, self._forward(packet_reader, whole, now)
            ):
                return 0
        except Exception as error:
            packet_reader.fault = error  # An error of one connection must not stop the others.
        return FED

    def _forward(self, packet_reader: PacketReader | LinkReader, data: bytes, now: float) -> int:
        """Forward the runs at the start of `data`; return the number of bytes forwarded."""
        if isinstance(packet_reader, LinkReader) and packet_reader.is_silent(now):
            return 0
        at = packet_reader.answered(data)
        while (peeked := packet_reader.peek(data[at:])) is not None and self._forward_run(
            packet_reader, peeked[0]
        ):
            at += peeked[1]
            at += packet_reader.answered(data[at:])
        if at:
            packet_reader.heard_at = now
        return at

    def _forward_run(self, packet_reader: PacketReader | LinkReader, run: Run) -> bool:
        """Forward a run; return False if it must wait for the caller."""
        leave = self._leave
        if isinstance(packet_reader, LinkReader) and packet_reader.may_take is not None:
            left = self._deliver(packet_reader, run)
            leave = packet_reader.leave
        else:
            left = self._publish(run)
            if left is None and isinstance(packet_reader, PacketReader):
                left = self._send(run)
        if left is None:
            return False
        self._router.received += packet_reader.record_forwarded(run)
        if left or self._router.is_full:
            self._answers.clear()
            self._has_left = True
            leave(run, left)
        return True

    def _answer(self, key: Any, question: Callable[[], Any]) -> Any:
        """Return the answer to a question, cached until other code runs."""
        if key not in self._answers:
            self._answers[key] = question()
        return self._answers[key]

    def _deliver(self, packet_reader: LinkReader, run: Run) -> Left | None:
        """Deliver a run to the clients of this node; None if it must wait."""
        assert packet_reader.may_take is not None
        is_free = self._answer(packet_reader, packet_reader.may_take)
        return self._router.fan_out(run, None) if is_free else None

    def _publish(self, run: Run) -> Left | None:
        """Publish a run in the node's own zone; None if it is of another zone, or must wait."""
        way = self._answer(None, self._ask)
        if way is None:
            return None
        route, verdict, here, keep = way
        edges = self._router.edges_for(run, route, verdict)
        if edges is None:
            return None
        senders = [
            self._answer(edge, partial(self._find_edge, edge)) for edge in edges if edge is not here
        ]
        if any(sender is None or not sender.can_send for sender in senders):
            return None
        for sender in senders:
            sender.send(run)
        if keep is not None:
            self._kept.append((keep, run))
        return self._router.fan_out(run, None) if here in edges else []

    def _send(self, run: Run) -> Left | None:
        """Send a run to another owner; None if no single owner exists, or the run must wait."""
        (route, _), *others = self._router.split(run)
        if route is None or others:
            return None
        sender = self._answer(route, partial(self._find_owner, route))
        return [] if sender is not None and sender.send(run) else None
