"""
The progress of one session in the journals of the zones.

For each part the set has the place to read on from (`behind`). The set has the place up to which
the session has all (`taken`). The set also has the records that the session must not be given
twice. A part that cannot be read now and may come back is set aside (`cut_off`). Bookkeeping only:
what is read, and when, is the backlog's; what is sent, the sender's.

A session that follows a part live has nothing here. A session that falls behind gets a cursor. The
cursor rises to the end of what was read, and then goes; `taken` remembers the end. A part that is
set aside keeps its lowest offset until the part can be read, or is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, Protocol

from txbroker.model.invariant import holds, ordered
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.cursor import Cursor, MergedPart, Subscription, WaitingRecords

_NO_CURSORS: Final[Mapping[JournalId, Cursor]] = MappingProxyType({})
_NO_OFFSETS: Final[Mapping[JournalId, int]] = MappingProxyType({})
_NOTHING_HAD: Final[Mapping[JournalId, tuple[MergedPart, ...]]] = MappingProxyType({})


class ReadingSession(Protocol):
    """The session, as its cursors see it."""

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """Return the subscriptions by filter."""

    def update_live(self) -> None:
        """Let live messages go straight to the client, or stop that, as the cursors require."""

    def save(self) -> None:
        """Schedule a save of a durable session's present state."""

    def save_all(self) -> None:
        """Save the session's subscriptions, their changed start offsets included."""


class CursorSet:
    """
    See the module's text. `ahead`: up to where the session read more than this node's stream has
    brought. `had`: what was given, before the session became one with another.

    Invariant: each offset is 0 or more, and no part waits for itself.
    """

    # Most sessions have no cursors, and a node may have very many sessions: slots save their
    # memory.
    __slots__ = ("_session", "ahead", "behind", "cut_off", "had", "taken")

    def __init__(self, session: ReadingSession) -> None:
        self.behind = _NO_CURSORS
        self.ahead = _NO_OFFSETS
        self.had = _NOTHING_HAD
        self.taken = _NO_OFFSETS
        self.cut_off = _NO_OFFSETS
        self._session = session

    @property
    def is_plain(self) -> bool:
        """True if live messages may go straight to the client."""
        return not (self.behind or self.ahead or self.had)

    def has_met(self, part: JournalId) -> bool:
        """True if the session took records of the part, or must read it."""
        return any(part in known for known in (self.behind, self.ahead, self.taken, self.cut_off))

    def check(self) -> None:
        """State where the session may stand."""
        for part, cursor in self.behind.items():
            holds(self, 6, "a cursor is of its part", cursor.part == part, part, cursor.part)
            ordered(self, 6, "0 <= cursor", 0, cursor.offset)
            waits_for_itself = cursor.after is not None and cursor.after.part == part
            holds(self, 7, "a part does not wait for itself", not waits_for_itself, part)
            loops = [stop for stop in cursor.stops if stop.part == part]
            holds(self, 7, "a part does not stop for itself", not loops, part, loops)
        for kind in (self.ahead, self.taken, self.cut_off):
            ordered(self, 6, "0 <= offsets of parts", 0, min(kind.values(), default=0))
        for part, had in self.had.items():
            holds(self, 18, "what was given is of something", had, part)

    # changes

    def add(self, cursor: Cursor) -> None:
        """Set the session behind in the cursor's part."""
        self.behind = {**self.behind, cursor.part: cursor}
        self._session.update_live()

    def end(self, part: JournalId) -> None:
        """Clear the catch-up cursor of the part."""
        self.behind = {known: c for known, c in self.behind.items() if known != part}
        self._session.update_live()

    def end_all(self) -> None:
        """Clear all catch-up cursors: the session is current in every part."""
        self.behind = _NO_CURSORS
        self._session.update_live()

    def get_ahead(self, part: JournalId, offset: int) -> None:
        """
        Note that the session read the part up to this offset, ahead of the node's live stream.
        """
        self.ahead = {**self.ahead, part: offset}
        self._session.update_live()

    def forget_ahead(self, part: JournalId) -> None:
        """Forget the lead in a part: the node's live stream has reached it."""
        if part in self.ahead:
            self.ahead = {known: o for known, o in self.ahead.items() if known != part}
            self._session.update_live()

    def set_had(self, part: JournalId, had: tuple[MergedPart, ...]) -> None:
        """Set the records of the part that the merged sessions took; empty: forget them."""
        rest = {known: h for known, h in self.had.items() if known != part}
        self.had = {**rest, part: had} if had else rest
        self._session.update_live()

    def note_had(self, part: JournalId, had: MergedPart) -> None:
        """Note records of the part that the session must not be given again."""
        self.set_had(part, (*self.had.get(part, ()), had))

    def suspend(self, part: JournalId, offset: int) -> None:
        """Suspend a part that was cut off; records above `offset` are due if the part returns."""
        self.cut_off = {**self.cut_off, part: min(offset, self.cut_off.get(part, offset))}

    def has_had(self, place: LogPosition, topic: str) -> bool:
        """True if one of the merged sessions took this record."""
        return any(had.has(place.offset, topic) for had in self.had.get(place.part, ()))

    def needs(self) -> Iterator[LogPosition]:
        """Yield the positions up to which the session needs no record, one or two for each part."""
        for cursor in self.behind.values():
            yield LogPosition(cursor.part, cursor.offset)
        for part, offset in self.cut_off.items():
            yield LogPosition(part, offset)

    def advance(self, part: JournalId, offset: int) -> None:
        """Note that the session took all records of the part up to this offset."""
        if isinstance(self.taken, dict):
            self.taken[part] = offset
        else:
            self.taken = {part: offset}

    def _forget_taken(self, part: JournalId) -> bool:
        return isinstance(self.taken, dict) and self.taken.pop(part, None) is not None

    def fall_behind(self, place: LogPosition) -> None:
        """
        Move the cursor back: this message and all later ones of its part must be read from the
        journal.
        """
        cursor = self.behind.get(place.part)
        if cursor is None:
            self.add(Cursor(place.part, place.offset - 1))
        else:
            cursor.offset = min(cursor.offset, place.offset - 1)
        self._session.save()

    def count(self, cursor: Cursor, end: int) -> WaitingRecords:
        """Count the records up to `end` that wait behind the cursor, and those that come live."""
        cursor.waiting = WaitingRecords(cursor.offset, end)
        self._session.update_live()
        return cursor.waiting

    def catch_up(self, cursor: Cursor) -> None:
        """End catch-up at the cursor: all records behind it are taken."""
        part = cursor.part
        self.end(part)
        if part in self.cut_off:
            self._forget_taken(part)
            self.forget_ahead(part)
        elif cursor.until is not None and cursor.is_over:
            self.forget_part(part)
        else:
            # An ended part needs its offset, too: this node may learn of the end only later.
            self.advance(part, cursor.offset)
        self._session.save()

    def end_part(self, part: JournalId) -> None:
        """Forget a part whose end has been announced, now or as soon as the session has all."""
        cursor = self.behind.get(part)
        if cursor is None:
            self.forget_part(part)
        else:
            cursor.is_over = True

    def forget_part(self, part: JournalId) -> None:
        """
        Forget a part without further records, in the subscriptions, too.

        The session has read all earlier parts of the zone that it is not behind in. A later start
        would take their offsets for places to read on from, and would follow them here again.
        """
        self.forget_ahead(part)
        self.set_had(part, ())
        subscriptions = self._session.subscriptions.values()
        known = {*self.taken, *(begun for s in subscriptions for begun in s.starts)}
        over = {one for one in known if one == part or self._is_left(one, part)}
        if not over:
            return
        for one in over:
            self._forget_taken(one)
            for subscription in subscriptions:
                if one in subscription.starts:
                    subscription.forget_part(one)
        self._session.save_all()

    def _is_left(self, earlier: JournalId, part: JournalId) -> bool:
        """True if the session has left the earlier part for this one of the same zone."""
        is_unread = earlier in self.behind or earlier in self.cut_off
        return earlier.zone == part.zone and earlier.epoch < part.epoch and not is_unread

    def set_aside(self, part: JournalId, offset: int) -> Cursor | None:
        """
        Suspend an unreadable part that may return; records above `offset` are still due.

        Return the part's cursor, at the end of all readable records; None: the part had none.
        """
        self.suspend(part, offset)
        cursor = self.behind.get(part)
        if cursor is not None:
            cursor.until = cursor.offset
        self._session.save()
        return cursor

    def resume(self, part: JournalId, *, is_kept: bool) -> None:
        """
        Resume a suspended part that is readable again, or forget it (`is_kept` False) for good.
        """
        offset = self.cut_off[part]
        self.cut_off = {known: o for known, o in self.cut_off.items() if known != part}
        if not is_kept:
            self.forget_part(part)
        elif part not in self.behind:
            self.add(Cursor(part, offset))
        self._session.save()

    def detach(self) -> None:
        """
        Discard the counts of waiting records, and merged records that the cursors have passed.
        """
        for cursor in self.behind.values():
            cursor.waiting = None
        for part, known in list(self.had.items()):
            cursor_there = self.behind.get(part)
            end = max(had.through for had in known)
            is_aside = part in self.cut_off
            if not is_aside and (cursor_there is None or cursor_there.offset >= end):
                self.set_had(part, ())
