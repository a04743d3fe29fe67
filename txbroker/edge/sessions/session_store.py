"""
The durable state of an edge's sessions, and when it is written.

A changed session is written with the next group commit, once however often it changed. Where nobody
waits for that, it is written within a second. Packets whose flow has to be safe first (protocol
rule 17) leave when that commit is done. For the zones in which nobody is behind, one position for
all sessions is enough: `checkpoint` writes it, after the sessions that it does not hold for.

A session is written as a whole while it is small. Of a large one a row is written for each filter
and each open publish that changed (`SessionRows`). So a commit costs by what changed, however much
a client has. A session that was kept as a whole by an earlier version is one that has grown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from txbroker.edge.sessions.session_format import (
    decode_session,
    decode_subscription,
    encode_session,
    encode_subscriptions,
)
from txbroker.edge.sessions.session_rows import RowTable, SessionRows
from txbroker.edge.sessions.window_format import (
    decode_publish,
    decode_window,
    encode_numbered,
    encode_publish,
    encode_window,
)
from txbroker.model.log_position import JournalId
from txbroker.model.topics import is_filter_within, may_match_within
from txbroker.mqtt.session.cursor import Cursor
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import Unsaved
from txbroker.v1 import state_pb2

PASSAGES = 4_000
"""Transitions whose names are persisted, at most; owners announce fewer."""

LARGE = 32
"""Filters, or open publishes, of a session that is written as a whole; beyond, rows are written."""


class SessionCommit(Protocol):
    """The node's group commit."""

    def before_write(self, hook: Callable[[], None]) -> None:
        """Call `hook` once, before the next commit, to add its writes."""

    def when_durable(self, action: Callable[[], None]) -> None:
        """Run `action` when all writes so far are durable."""


class SessionStore:
    """
    Keeps the durable sessions; `lived` is what the node has lived, in microseconds.

    `messages` holds the messages that sessions wait for and that cannot be read again. `passages`
    names the transitions of this edge when zones changed hands. `filters` and `publishes` have the
    rows of large sessions.

    A session that is over writes nothing, whoever asks: its name is its successor's.
    """

    def __init__(
        self,
        *,
        sessions: RowTable,
        windows: RowTable,
        filters: RowTable,
        publishes: RowTable,
        messages: RowTable,
        positions: RowTable,
        passages: RowTable,
        commit: SessionCommit,
        lived: Callable[[], int],
        now: Callable[[], float],
        message_clock: Callable[[], int],
    ) -> None:
        """`message_clock`: what ages messages, in microseconds; it goes on over a restart."""
        self._sessions = sessions
        self._windows = windows
        self._filters = SessionRows(filters)
        self._publishes = SessionRows(publishes)
        self._number = max((*self._filters.numbers, *self._publishes.numbers), default=0)
        self._messages = messages
        self._positions = positions
        self._passages = passages
        self._commit = commit
        self._lived = lived
        self._now = now
        self._message_clock = message_clock
        self._changed: dict[Session, None] = {}
        self._rarely: dict[Session, None] = {}
        self._groups: deque[list[tuple[Session, list[Unsaved]]]] = deque()
        self._waiting: list[tuple[Session, list[Unsaved]]] = []
        self._is_urgent = False
        self._gone_through = dict.fromkeys(name for name, _ in passages.items())
        self._unwritten: list[bytes] = []
        self._told: dict[str, tuple[int, int]] = {}
        self._save_left: Callable[[Session], None] = lambda _: None
        self._work_off: Callable[[Iterator[None]], object] = list

    def wire_slices(self, work_off: Callable[[Iterator[None]], object]) -> None:
        """Set `work_off`, which does long work step by step; without it, work is done at once."""
        self._work_off = work_off

    def wire(self, save_left: Callable[[Session], None]) -> None:
        """
        Set `save_left`, which saves the changes of a session that is over and moved to another
        node.
        """
        self._save_left = save_left

    # from sessions and their clients

    def save(self, session: Session, *, urgent: bool) -> None:
        """Save the session's window and cursors; `urgent`: its packets wait for the commit."""
        self._changed[session] = None
        if urgent and not self._is_urgent:
            self._is_urgent = True
            self._commit.before_write(self._write)
            self._commit.when_durable(self._on_durable)

    def mark_seen(self, session: Session) -> None:
        """
        Save within a second that the client came or left.

        If the process ends before, the rows written while the client was connected still hold.
        """
        self._rarely[session] = None

    def save_all(self, session: Session) -> None:
        """Save the session with its subscriptions, in the next group commit."""
        self._rarely[session] = None
        self._changed[session] = None
        self._commit.before_write(self._put)

    def save_now(self, session: Session) -> None:
        """Save as `save_all` does, in one batch with all other writes of this turn."""
        self._rarely[session] = None
        self._changed[session] = None
        self._put()

    def save_then(self, session: Session, action: Callable[[], None]) -> None:
        """Run `action` when the window is durable as it is now, or when the session is over."""
        if session.is_over:
            self._save_left(session)
        else:
            self._changed[session] = None
        self._commit.before_write(self._put)
        self._commit.when_durable(action)

    def when_durable(self, action: Callable[[], None]) -> None:
        """Run `action` when all saves so far are durable."""
        self._commit.when_durable(action)

    def forget(self, session: Session) -> None:
        """Delete the rows of a session that has ended."""
        self._changed.pop(session, None)
        self._rarely.pop(session, None)
        name = session.client_id.encode()
        _, gone = session.durable_sender.numbering.dequeue_changes()
        for number in (*session.durable_sender.numbers(), *gone):
            self._messages.delete(_numbered(name, number))
        self._sessions.delete(name)
        self._windows.delete(name)
        if session.number:
            self._clear(session.number)

    # from the transition log

    def has_gone_through(self, name: bytes) -> bool:
        """True if this edge has gone through the transition."""
        return name in self._gone_through

    def store_transition(self, name: bytes) -> None:
        """
        Note that this edge has gone through a transition.

        The note is written in one commit with the next positions, so that both are true or neither.
        """
        if name not in self._gone_through:
            self._gone_through[name] = None
            self._unwritten.append(name)

    def check_changed(self) -> None:
        """State what the sessions keep of the rules that changed and are not written."""
        for session in self._changed:
            session.check()

    def stored_position(self, part: JournalId) -> int:
        """The position of a part that was put last in this life of the process; 0: none."""
        epoch, offset = self._told.get(part.zone, (part.epoch, 0))
        return offset if epoch == part.epoch else 0

    # from the node

    def load(self, make: Callable[[str], Session]) -> list[Session]:
        """Load every durable session as it was; `make` gives a new session for a client id."""
        positions = self.positions()
        restored = []
        unused = {*self._filters.numbers, *self._publishes.numbers}
        for name, value in self._sessions.items():
            session = make(name.decode())
            away_since, session.number = decode_session(value, session)
            self._number = max(self._number, session.number)
            unused.discard(session.number)
            seconds = (self._lived() - away_since) / 1e6 if away_since else 0.0
            session.away_since = self._now() - max(seconds, 0.0)
            for topic_filter, row in self._filters.of(session.number):
                decode_subscription(topic_filter.decode(), row, session)
            self._load_window(name, session)
            session.dequeue_changed()
            if _stay_behind(session, positions):
                # From here on the positions advance without this session. Unsaved cursors would be
                # lost in a crash.
                self.save_all(session)
            restored.append(session)
        for number in unused:  # the process ended before it had deleted the rows of ended sessions
            self._clear(number)
        return restored

    def positions(self) -> dict[JournalId, int]:
        """Return, part by part, how far the sessions that were not behind had come."""
        found = {}
        for zone, value in self._positions.items():
            stored = state_pb2.Checkpoint.FromString(value)
            found[JournalId(zone.decode(), stored.epoch)] = stored.offset
        return found

    def checkpoint(self, positions: Iterable[tuple[str, int, int]]) -> None:
        """Write lazy changes and the positions (zone, epoch, offset), once a second."""
        self._put()
        for name in self._unwritten:
            self._passages.put(name, b"1")
        self._unwritten.clear()
        while len(self._gone_through) > PASSAGES:
            name = next(iter(self._gone_through))
            del self._gone_through[name]
            self._passages.delete(name)
        for zone, epoch, offset in positions:
            self._put_position(zone, epoch, offset)

    def on_closed(self, part: JournalId, offset: int) -> None:
        """
        Persist the end of a part; the part that continues it is still to be announced.

        The position and the sessions' changes go into one commit. A position of a second ago would,
        after a crash, give sessions again the messages that they have had since.
        """
        value = self._positions.get(part.zone.encode())
        if value is None or state_pb2.Checkpoint.FromString(value).epoch <= part.epoch:
            self._put_position(part.zone, part.epoch, offset)
        self.save_soon()

    def on_ended(self, part: JournalId) -> None:
        """
        Delete the position of a part: each session that is not behind has all of its records.

        The deletion and the sessions' new cursors go into one commit. A position that stays alone
        would make the sessions behind again after a crash.
        """
        value = self._positions.get(part.zone.encode())
        if value is not None and state_pb2.Checkpoint.FromString(value).epoch <= part.epoch:
            self._positions.delete(part.zone.encode())
        if self._told.get(part.zone, (part.epoch, 0))[0] <= part.epoch:
            self._told.pop(part.zone, None)
        self.save_soon()

    def save_soon(self) -> None:
        """Write all changes with the next group commit."""
        self._commit.before_write(self._put)

    # internal

    def _put_position(self, zone: str, epoch: int, offset: int) -> None:
        if self._told.get(zone) != (epoch, offset):
            self._told[zone] = (epoch, offset)
            point = state_pb2.Checkpoint(epoch=epoch, offset=offset)
            self._positions.put(zone.encode(), point.SerializeToString())

    def _load_window(self, name: bytes, session: Session) -> None:
        window = decode_window(
            self._windows.get(name) or b"",
            session,
            lambda number: self._messages.get(_numbered(name, number)),
            self._message_clock(),
        )
        rows = [decode_publish(value) for _, value in self._publishes.of(session.number)]
        publishes = window.publishes + rows
        session.restore(window.flows, window.held, publishes, window.last_id)
        session.receiver.dequeue_changed()

    def _clear(self, number: int) -> None:
        """Delete the rows of a number that belongs to no session any more."""
        for rows in (self._filters, self._publishes):
            self._work_off(rows.clear(number))

    def _write(self) -> None:
        self._put()
        self._is_urgent = False
        self._groups.append(self._waiting)
        self._waiting = []

    def _put(self) -> None:
        for session in (*self._rarely, *self._changed):
            if not session.number and _is_large(session):
                self._number += 1
                session.number = self._number
                session.change_all()
                self._rarely[session] = self._changed[session] = None
        for session in self._rarely:
            if not session.is_over:  # a late publish answer would bring the session back
                self._put_session(session)
        self._rarely.clear()
        for session in self._changed:
            if session.is_over:
                continue  # its open flows would answer for publishes of the session after it
            name = session.client_id.encode()
            new, gone = session.durable_sender.numbering.dequeue_changes()
            for entry in new:
                value = encode_numbered(entry, session.now(), self._message_clock())
                self._messages.put(_numbered(name, entry.number), value)
            for number in gone:
                self._messages.delete(_numbered(name, number))
            self._put_window(name, session)
            unsaved = session.durable_sender.dequeue_unsaved()
            if unsaved:
                self._waiting.append((session, unsaved))
        self._changed.clear()

    def _put_session(self, session: Session) -> None:
        away = 0
        if session.sink is None and session.away_since is not None:
            away = self._lived() - int((self._now() - session.away_since) * 1e6)
        number, changed = session.number, session.dequeue_changed()
        value = encode_session(session, away, is_whole=not number)
        self._sessions.put(session.client_id.encode(), value)
        if not number:
            return
        known = session.subscriptions
        for topic_filter in changed:
            if topic_filter not in known:
                self._filters.delete(number, topic_filter.encode())
        for topic_filter, row in encode_subscriptions(known[f] for f in changed if f in known):
            self._filters.put(number, topic_filter.encode(), row)

    def _put_window(self, name: bytes, session: Session) -> None:
        number = session.number
        self._windows.put(name, encode_window(session, publishes=not number))
        changed = session.receiver.dequeue_changed() if session.has_received else ()
        if not number:
            return
        for packet_id in changed:
            publish = session.receiver.stored_flow(packet_id)
            if publish is None:
                self._publishes.delete(number, packet_id.to_bytes(2))
            else:
                self._publishes.put(number, packet_id.to_bytes(2), encode_publish(publish))

    def _on_durable(self) -> None:
        for session, saved in self._groups.popleft():
            session.durable_sender.on_saved(saved)


def _is_large(session: Session) -> bool:
    return not session.is_over and max(len(session.subscriptions), session.open_flows) > LARGE


def _numbered(name: bytes, number: int) -> bytes:
    return name + b"\0" + number.to_bytes(8)


def _stay_behind(session: Session, positions: dict[JournalId, int]) -> bool:
    """
    Begin a cursor, at the positions or farther, in each part of a session that was not behind.

    Returns True if there was any such part.
    """
    known = {part.zone: part.epoch for part in positions}
    starts: dict[JournalId, int] = {}
    for subscription in session.subscriptions.values():
        for part, offset in subscription.starts.items():
            starts[part] = min(offset, starts.get(part, offset))
    parts = {**dict.fromkeys(session.places.taken, 0), **starts, **positions}
    is_new = False
    for part, offset in parts.items():
        is_past = known.get(part.zone, 0) > part.epoch
        if part in session.places.behind or part in session.places.cut_off or is_past:
            continue
        if not _touches(session, part.zone, known):
            continue
        since = max(offset, session.places.taken.get(part, 0))
        session.places.add(Cursor(part, since))
        is_new = True
    return is_new


def _touches(session: Session, zone: str, known: Iterable[str]) -> bool:
    """True if the zone may have records for the session that no deeper zone of `known` has."""
    depth = len(zone)
    deeper = [apex for apex in known if len(apex) > depth and apex.startswith(zone)]
    return any(
        may_match_within(topic_filter, zone)
        and zone not in subscription.pending
        and not any(is_filter_within(topic_filter, apex) for apex in deeper)
        for topic_filter, subscription in session.subscriptions.items()
    )
