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
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import attrs

from txbroker.edge.sessions.cursor_recovery import stay_behind
from txbroker.edge.sessions.session_checks import check_row
from txbroker.edge.sessions.session_format import (
    decode_session,
    decode_subscription,
    encode_session,
    encode_subscriptions,
)
from txbroker.edge.sessions.session_rows import RowTable, SessionRows
from txbroker.edge.sessions.stored_positions import StoredPositions
from txbroker.edge.sessions.window_format import (
    decode_publish,
    decode_window,
    encode_numbered,
    encode_publish,
    encode_window,
)
from txbroker.model.log_position import JournalId
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import Unsaved

STEP = 16
"""
Sessions that one step of a checkpoint writes.

The rows of 9,000 groups, whose last members had left together, took 0.8 s of one turn.
"""

GROUPS = 10_000
"""The most groups that are noted: names of strangers must not fill the disk."""

LARGE = 32
"""Filters, or open publishes, of a session that is written as a whole; beyond, rows are written."""


class SessionCommit(Protocol):
    """The node's group commit."""

    def before_write(self, hook: Callable[[], None]) -> None:
        """Call `hook` once, before the next commit, to add its writes."""

    def when_durable(self, action: Callable[[], None]) -> None:
        """Run `action` when all writes so far are durable."""


@attrs.frozen
class SessionTables:
    """
    The tables of an edge's durable sessions.

    `messages` holds the messages that sessions wait for and that cannot be read again. `positions`
    and `passages` are those of `StoredPositions`. `filters` and `publishes` have the rows of large
    sessions. `groups` has the shared subscriptions with members.
    """

    sessions: RowTable
    windows: RowTable
    filters: RowTable
    publishes: RowTable
    messages: RowTable
    positions: RowTable
    passages: RowTable
    groups: RowTable

    @classmethod
    def of(cls, table: Callable[[str], RowTable]) -> SessionTables:
        """Return the tables of these names."""
        return cls(*(table(field.name) for field in attrs.fields(cls)))


class SessionStore:
    """
    Keeps the durable sessions; `lived` is what the node has lived, in microseconds.

    `stored` has the positions, and the transitions of this edge when zones changed hands.
    `noted_groups` has the shared subscriptions with members, as far as their coordinators know.

    A session that is over writes nothing, whoever asks: its name is its successor's.
    """

    def __init__(
        self,
        tables: SessionTables,
        commit: SessionCommit,
        *,
        lived: Callable[[], int],
        now: Callable[[], float],
        message_clock: Callable[[], int],
    ) -> None:
        """`message_clock`: what ages messages, in microseconds; it goes on over a restart."""
        self._sessions = tables.sessions
        self._windows = tables.windows
        self._filters = SessionRows(tables.filters)
        self._publishes = SessionRows(tables.publishes)
        self._number = max((*self._filters.numbers, *self._publishes.numbers), default=0)
        self._messages = tables.messages
        self.stored = StoredPositions(tables.positions, tables.passages)
        self._group_rows = tables.groups
        self.noted_groups = {name.decode() for name, _ in tables.groups.items()}
        self._commit = commit
        self._lived = lived
        self._now = now
        self._message_clock = message_clock
        self._changed: dict[Session, None] = {}
        self._rarely: dict[Session, None] = {}
        self._groups: deque[list[tuple[Session, list[Unsaved]]]] = deque()
        self._waiting: list[tuple[Session, list[Unsaved]]] = []
        self._is_urgent = False
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

    def check_changed(self) -> None:
        """State what the sessions keep of the rules that changed and are not written."""
        for session in self._changed:
            session.check()

    def check_written(self, session: Session) -> None:
        """State what the row of an absent session has, unless a change of it waits."""
        row = self._windows.get(session.client_id.encode())
        if row is not None and session not in self._changed:
            check_row(session, row)

    # from the shared subscriptions

    def note_group(self, text: str) -> bool:
        """Note that a group has members here; return False if there is no room for one more."""
        if text not in self.noted_groups:
            if len(self.noted_groups) >= GROUPS:
                return False
            self.noted_groups.add(text)
            self._group_rows.put(text.encode(), b"")
        return True

    def forget_group(self, text: str) -> None:
        """Forget a group that has no member, as its coordinator knows."""
        if text in self.noted_groups:
            self.noted_groups.discard(text)
            self._group_rows.delete(text.encode())

    # from the node

    def load(self, make: Callable[[str], Session]) -> list[Session]:
        """Load every durable session as it was; `make` gives a new session for a client id."""
        positions = self.stored.load()
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
            if stay_behind(session, positions):
                # From here on the positions advance without this session. Unsaved cursors would be
                # lost in a crash.
                self.save_all(session)
            restored.append(session)
        for number in unused:  # the process ended before it had deleted the rows of ended sessions
            self._clear(number)
        return restored

    def checkpoint(self, positions: Mapping[JournalId, int], written: Callable[[], object]) -> None:
        """
        Write lazy changes in slices, then the positions, once a second; then call `written`.

        A call during an unfinished checkpoint does nothing.
        """
        if not self.stored.is_due:
            self.stored.take(positions)
            changed = list(dict.fromkeys((*self._rarely, *self._changed)))
            self._work_off(self._checkpoint(changed, written))

    def checkpoint_now(self, positions: Mapping[JournalId, int]) -> None:
        """Write lazy changes and the positions in one turn, as the node ends."""
        self.stored.take(positions)
        self._put()
        self.stored.put()

    def on_closed(self, part: JournalId, offset: int) -> None:
        """
        Persist the end of a part; the part that continues it is still to be announced.

        The position and the sessions' changes go into one commit. A position of a second ago would,
        after a crash, give sessions again the messages that they have had since.
        """
        self.stored.close(part, offset)
        self.save_soon()

    def on_ended(self, part: JournalId) -> None:
        """
        Delete the position of a part: each session that is not behind has all of its records.

        The deletion and the sessions' new cursors go into one commit. A position that stays alone
        would make the sessions behind again after a crash.
        """
        self.stored.end(part)
        self.save_soon()

    def save_soon(self) -> None:
        """Write all changes with the next group commit."""
        self._commit.before_write(self._put)

    # internal

    def _checkpoint(self, changed: list[Session], written: Callable[[], object]) -> Iterator[None]:
        """Write the sessions that had changed when the positions were taken, then the positions."""
        try:
            for start in range(0, len(changed), STEP):
                for session in changed[start : start + STEP]:
                    self._put_one(session)
                yield
            self.stored.put()
        finally:
            self.stored.give_up()  # otherwise an error here would end all checkpoints
        written()

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
        for session in dict.fromkeys((*self._rarely, *self._changed)):
            self._put_one(session)

    def _put_one(self, session: Session) -> None:
        """Write what changed of one session."""
        grows = not session.number and _is_large(session)
        if grows:
            self._number += 1
            session.number = self._number
            session.change_all()
        is_seen = grows or session in self._rarely
        is_changed = grows or session in self._changed
        self._rarely.pop(session, None)
        self._changed.pop(session, None)
        # A late publish answer would bring a session that is over back. Its open flows would answer
        # for publishes of the session after it.
        if is_seen and not session.is_over:
            self._put_session(session)
        if is_changed and not session.is_over:
            self._put_flows(session)

    def _put_flows(self, session: Session) -> None:
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
