"""What comes from the sockets of clients, and of links."""

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
"""A descriptor can be read (epoll_ctl(2))."""

ENDED = 0x008 | 0x010
"""
EPOLLERR and EPOLLHUP: what those who have left sent before is read as that of others, of whom a
crowd may leave at once.
"""

READ_SIZE = 256 * 1024
"""Bytes that are read at once."""

READ_LEAST = 1024
"""Bytes that are read at once where very many have brought more than there is time for."""

BATCH = 1024
"""How many of those that are ready are served in one go."""

FED = 1 << 30
"""In the place of what epoll says of a descriptor: it was read, and that is to be worked on."""

Way = tuple[Any, Any, Any, Callable[[list[Run]], None] | None]
"""By which route, with which verdict, which edge this node's own is, and what keeps runs."""

Left = list[tuple[Any, int]]
"""Which sessions cannot get which messages of a run straight."""


class Watching(Protocol):
    """`select.epoll`, as far as it is used here."""

    def poll(self, timeout: float | None, maxevents: int) -> list[tuple[int, int]]: ...


class Switch(Protocol):
    """The exchange, as those who read see it: who gets a run, and what is due."""

    received: int
    is_quiet: bool

    @property
    def is_full(self) -> bool:
        """True if a packet writer has passed its high mark."""

    def tell(self) -> None:
        """What has output is told."""

    def send_all(self) -> bool:
        """Write what has output; False: not all was."""

    def split(self, run: Run) -> list[tuple[Any, Run]]:
        """The routes of its topics, each with its part of the run."""

    def edges_for(self, run: Run, route: Any, verdict: Any) -> tuple[Any, ...] | None:
        """Which edges get it, where it is all of this route and verdict."""

    def fan_out(self, run: Run, part: Any) -> Left:
        """To the clients that are here."""


class Sender:
    """
    A link to an owner or to another edge, for what nothing has to be decided for: QoS 0.

    Up to `room` more bytes may be `sent`, as `Run.size` counts them; whoever set it before it is
    used knows what else was.
    """

    def __init__(self, packet_writer: PacketWriter, make_header: Callable[[str], bytes]) -> None:
        """`make_header` makes what goes before publishes of a client, with any count (`COUNT`)."""
        self.room = 0
        self.sent = 0
        self._packet_writer = packet_writer
        self._make_header = make_header
        self._headers: dict[str, bytes] = {}

    def forget(self) -> None:
        """Headers have to be made anew."""
        self._headers.clear()

    @property
    def can_send(self) -> bool:
        """Whether something may be sent here and now."""
        return self.room > 0 and self._packet_writer.descriptor >= 0

    def send(self, run: Run) -> bool:
        """Send a run of one client; False: that cannot be done here and now."""
        if not self.can_send:
            return False
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
    Reads those of clients and of links that are ready, and lets go on at once what nothing has to
    be decided for: plain publishes of QoS 0, which go to clients that are here and over links.
    Whoever has to be asked is asked once until somebody else has had a turn.
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
        The own zone. `ask` says what goes on there now, None: nothing; `leave` gets what could not
        be given to everybody, or filled a packet writer; `find_edge` gives the link to another edge
        by which it may go now.
        """
        self._ask, self._leave, self._find_edge = ask, leave, find_edge

    def wire_owners(self, find_owner: Callable[[Any], Sender | None]) -> None:
        """The other zones: `find_owner` gives the link to a route's owner by which it may go."""
        self._find_owner = find_owner

    def add(self, descriptor: int, packet_reader: PacketReader | LinkReader) -> None:
        """What comes there is for this packet reader."""
        self._packet_readers[descriptor] = packet_reader

    def remove(self, descriptor: int) -> None:
        """It is read no more."""
        self._packet_readers.pop(descriptor, None)

    def crowd(self, waiting: int) -> None:
        """
        What so many have brought waits, and is held: the more there are, the less each may bring.
        """
        self._most = max(READ_SIZE // (waiting + 1), READ_LEAST)

    def hurry(self, is_hurried: bool) -> None:
        """
        Somebody waits for many turns, which have to be short meanwhile: less is read in each. (The
        reference reads as much.)
        """

    def read(self, descriptor: int) -> bool:
        """
        Read that of a client or link that has just connected, to which nothing can go on yet;
        whether something is in its packet reader now. An end, or an error, is met again by `wait`.
        """
        packet_reader = self._packet_readers.get(descriptor)
        return packet_reader is not None and self._read(packet_reader, descriptor, 0.0) == FED

    def tell(self) -> None:
        """What has output is told, and runs are kept, as far as `wait` has put that off."""
        self._router.tell()
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
        Wait for so many seconds, if not for ever, and serve what is ready; whoever reads the clock
        has no turn in between, but other threads have.

        Returns what is for others: descriptors with what `epoll` says of each, or `FED` for what
        was read and is in the packet reader (if that is more of a long packet that is not whole
        yet, it may be missing); whoever gets them has to `tell` first, even if there are none.
        None: there is nothing. `interest` has EPOLLIN where a descriptor may be read. What is to be
        kept may wait for 10 ms, to be kept with others, but never until anybody else has a turn.
        Where those who are ready bring more than there is time for, some are not read yet: whoever
        has brought less comes first. (Compiled; the reference reads all of them.)
        """
        self._has_left = False
        self._answers.clear()
        self._router.is_quiet = True
        try:
            now, left = clock(), []
            for descriptor, events in epoll.poll(timeout, BATCH):
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
        """What is for others of what it has brought: `FED`, that it is at its end, or 0."""
        try:
            data = os.read(descriptor, self._most)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            return EPOLLIN
        if not data:
            return EPOLLIN
        try:
            if packet_reader.is_fed:
                packet_reader.feed(data)
                return FED
            whole = packet_reader.joined(data)
            if whole is not None and packet_reader.keep(
                whole, self._take(packet_reader, whole, now)
            ):
                return 0
        except Exception as error:
            packet_reader.fault = error  # of one connection: the others go on
        return FED

    def _take(self, packet_reader: PacketReader | LinkReader, data: bytes, now: float) -> int:
        """Have go on at once what can; how many bytes that were."""
        at = packet_reader.answered(data)
        while (peeked := packet_reader.peek(data[at:])) is not None and self._pass_on(
            packet_reader, peeked[0]
        ):
            at += peeked[1]
            at += packet_reader.answered(data[at:])
        if at:
            packet_reader.heard_at = now
        return at

    def _pass_on(self, packet_reader: PacketReader | LinkReader, run: Run) -> bool:
        """Take a run, if it can go on at once."""
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
        self._router.received += packet_reader.note(run)
        if left or self._router.is_full:
            self._answers.clear()
            self._has_left = True
            leave(run, left)
        return True

    def _answer(self, key: Any, question: Callable[[], Any]) -> Any:
        """What was said to this since anybody else last had a turn."""
        if key not in self._answers:
            self._answers[key] = question()
        return self._answers[key]

    def _deliver(self, packet_reader: LinkReader, run: Run) -> Left | None:
        """To the clients that are here; None: it has to wait."""
        assert packet_reader.may_take is not None
        is_free = self._answer(packet_reader, packet_reader.may_take)
        return self._router.fan_out(run, None) if is_free else None

    def _publish(self, run: Run) -> Left | None:
        """In the own zone; None: it is not of that, or somebody has to wait."""
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
        """To an owner elsewhere; None: there is none, or it has to wait."""
        (route, _), *others = self._router.split(run)
        if route is None or others:
            return None
        sender = self._answer(route, partial(self._find_owner, route))
        return [] if sender is not None and sender.send(run) else None
