"""What a session is subscribed to, and how far it has come in the journals of the zones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import attrs

from txbroker.core import Target
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.topics import matches
from txbroker.mqtt.wire.message import Message

_NONE_PENDING: Final[frozenset[str]] = frozenset()
_NO_STARTS: Final[Mapping[JournalId, int]] = MappingProxyType({})


@attrs.define(slots=True, eq=False, weakref_slot=False)
class Subscription:
    """
    A filter of a session with its granted QoS.

    `pending` are the apexes of zones that have not confirmed yet: their messages do not count.
    `starts` are the offsets at which zones confirmed: nothing up to there is its (rule 9). `held`
    collects what cannot be read again, until the SUBACK has left; None: it has. `is_fresh`: the
    session had no such filter before that SUBACK. `target` is there while the client is. `changed`:
    the filters of a durable session that are to be kept anew; what changes here notes itself there.
    """

    topic_filter: str
    qos: int
    pending: frozenset[str] = _NONE_PENDING
    starts: Mapping[JournalId, int] = _NO_STARTS
    held: list[tuple[Message, bool]] | None = None
    is_fresh: bool = False
    target: Target | None = None
    changed: dict[str, None] | None = None

    @property
    def is_held(self) -> bool:
        """Whether its messages wait for the SUBACK."""
        return self.held is not None and self.is_fresh

    def grant(self, qos: int) -> None:
        """The client asked for another QoS [MQTT-3.8.4-3]."""
        self.qos = qos
        self._on_changed()

    def await_zone(self, apex: str) -> None:
        """The zone is asked, and has not confirmed."""
        self.pending |= {apex}
        self._on_changed()

    def confirm(self, apexes: Iterable[str]) -> None:
        """These are not waited for any more."""
        # One empty set for all: each that comes of an operation has 200 bytes.
        self.pending = self.pending.difference(apexes) or _NONE_PENDING
        self._on_changed()

    def begin(self, part: JournalId, offset: int) -> None:
        """Nothing of the part up to this offset is its."""
        self.starts = _shared_starts(tuple(self.starts.items()), part, offset)
        self._on_changed()

    def forget_part(self, part: JournalId) -> None:
        """Nothing of the part will ever come again."""
        self.starts = {known: offset for known, offset in self.starts.items() if known != part}
        self._on_changed()

    def hold(self, *, is_fresh: bool) -> None:
        """A SUBSCRIBE came: collect what cannot be read again."""
        self.held = []
        self.is_fresh = is_fresh
        self._tell_target()

    def let_go(self) -> list[tuple[Message, bool]]:
        """The SUBACK has left: what was collected."""
        held, self.held, self.is_fresh = self.held, None, False
        self._tell_target()
        return held or []

    def aim(self, target: Target | None) -> None:
        """The client is here, and its connection gets what is live; None: it has left."""
        self.target = target
        if target is not None:
            self._tell_target()

    def _on_changed(self) -> None:
        if self.changed is not None:
            self.changed[self.topic_filter] = None
        self._tell_target()

    def _tell_target(self) -> None:
        target = self.target
        if target is not None:
            target.qos = self.qos
            is_held = self.is_fresh and self.held is not None
            target.is_plain = not (self.pending or is_held)


@lru_cache(maxsize=16)
def _shared_starts(
    starts: tuple[tuple[JournalId, int], ...], part: JournalId, offset: int
) -> Mapping[JournalId, int]:
    """With one more; very many subscriptions made at about the same time have the same ones."""
    return {**dict(starts), part: offset}


@attrs.define(slots=True, eq=False)
class WaitingRecords:
    """
    What waits behind a cursor, as far as it is known: `messages` of `size` bytes up to the offset
    `seen` and above `end`; what lies between is not counted yet, and takes `rest` bytes of the
    journal at most (None: not known; `is_asked`: once more, as the first answer was too old).
    """

    seen: int
    end: int
    rest: int | None = None
    is_asked: bool = False
    messages: int = 0
    size: int = 0

    def add(self, size: int, count: int = 1) -> None:
        """One of this size was counted, or came live; or so many, of this size together."""
        self.messages += count
        self.size += size

    def take(self, offset: int, size: int) -> None:
        """One of this size waits no longer."""
        if offset <= self.seen or offset > self.end:
            self.messages -= 1
            self.size -= size

    def uncounted(self, offset: int) -> int:
        """How many there may be that are not counted, above this offset."""
        return max(self.end - max(self.seen, offset), 0)


@attrs.frozen(kw_only=True)
class MergedPart:
    """
    What one of two sessions that became one was given of a part: up to the offset `through`, what
    matches one of `filters` (each with the offset behind which it began), but not `left`.
    """

    through: int
    filters: tuple[tuple[str, int], ...]
    left: frozenset[int] = frozenset()

    def has(self, offset: int, topic: str) -> bool:
        """Whether the record was given."""
        if offset > self.through or offset in self.left:
            return False
        return any(start < offset and matches(text, topic) for text, start in self.filters)


@attrs.define(slots=True, eq=False)
class Cursor:
    """
    How far a session that is behind has come in one part: everything up to `offset` is taken.

    `until` is the end of a part that is closed. Nothing may be taken from here before the session
    has passed `after`, and nothing beyond the offset of a stop while it is behind in that part.
    `is_over`: the node has heard that the part has ended, and follows it no more.
    `waiting` is there while the session's client is.
    """

    part: JournalId
    offset: int
    until: int | None = None
    after: LogPosition | None = None
    stops: tuple[LogPosition, ...] = ()
    is_over: bool = False
    waiting: WaitingRecords | None = None

    def has_to_wait(self, behind: Mapping[JournalId, Cursor]) -> bool:
        """Whether another part has to be taken first; `behind`: all cursors of the session."""
        after = self.after
        if after is not None:
            earlier = behind.get(after.part)
            if earlier is not None and earlier.offset < after.offset:
                return True
            self.after = None
        return self.offset >= self.limit(behind)

    def limit(self, behind: Mapping[JournalId, Cursor]) -> int:
        """The offset beyond which another part has to be finished first."""
        if not self.stops:
            return 1 << 62
        self.stops = tuple(stop for stop in self.stops if stop.part in behind)
        return min((stop.offset for stop in self.stops), default=1 << 62)
