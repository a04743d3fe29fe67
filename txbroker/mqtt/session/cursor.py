"""Subscriptions of a session, and its cursors in the journals of the zones (protocol rule 6)."""

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
from txbroker.mqtt.wire.subscription_options import AS_PUBLISHED, NO_LOCAL

_NONE_PENDING: Final[frozenset[str]] = frozenset()
_NO_STARTS: Final[Mapping[JournalId, int]] = MappingProxyType({})


@attrs.define(slots=True, eq=False, weakref_slot=False)
class Subscription:
    """
    A filter of a session with its granted QoS.

    - `pending`: the apexes of zones that have not confirmed; messages of these zones do not count.
    - `starts`: the offsets at which zones confirmed; the subscription gets only later records
      (protocol rule 9).
    - `options`: the bits of its options byte that delivery needs (`DELIVERY_BITS`).
    - `identifier`: the subscription identifier of the client, 0 for none.
    - `held`: messages that no journal has, with their RETAIN, until the SUBACK has left; None: the
      SUBACK has left.
    - `is_fresh`: the session had no such filter before that SUBACK.
    - `target`: the live route to the client, while the client is connected.
    - `changed`: the unsaved filters of a durable session, to which each change adds this filter.
    """

    topic_filter: str
    qos: int
    pending: frozenset[str] = _NONE_PENDING
    starts: Mapping[JournalId, int] = _NO_STARTS
    options: int = 0
    identifier: int = 0
    held: list[tuple[Message, bool]] | None = None
    is_fresh: bool = False
    target: Target | None = None
    changed: dict[str, None] | None = None

    @property
    def is_held(self) -> bool:
        """True if the subscription's messages wait for the SUBACK."""
        return self.held is not None and self.is_fresh

    @property
    def is_special(self) -> bool:
        """True if its deliveries depend on more than topic and QoS."""
        return bool(self.options or self.identifier)

    @property
    def is_as_published(self) -> bool:
        """True if live messages keep the RETAIN flag of their publisher."""
        return bool(self.options & AS_PUBLISHED)

    def grant(self, qos: int, options: int = 0, identifier: int = 0) -> None:
        """Set another QoS and other options, as the client requested [MQTT-3.8.4-3]."""
        self.qos = qos
        self.options = options
        self.identifier = identifier
        self._on_changed()

    def await_zone(self, apex: str) -> None:
        """Add a zone that was asked and has not confirmed."""
        self.pending |= {apex}
        self._on_changed()

    def confirm(self, apexes: Iterable[str]) -> None:
        """Remove confirmed zones from `pending`."""
        # All subscriptions share one empty set: each result of an operation would cost 200 bytes.
        self.pending = self.pending.difference(apexes) or _NONE_PENDING
        self._on_changed()

    def exclude(self, part: JournalId, offset: int) -> None:
        """Exclude the records of the part up to this offset."""
        self.starts = _shared_starts(tuple(self.starts.items()), part, offset)
        self._on_changed()

    def forget_part(self, part: JournalId) -> None:
        """Forget a part from which no record will come again."""
        self.starts = {known: offset for known, offset in self.starts.items() if known != part}
        self._on_changed()

    def collect(self, *, is_fresh: bool) -> None:
        """Collect the messages that no journal has, since a SUBSCRIBE came."""
        self.held = []
        self.is_fresh = is_fresh
        self._update_target()

    def release(self) -> list[tuple[Message, bool]]:
        """Return the collected messages: the SUBACK has left."""
        held, self.held, self.is_fresh = self.held, None, False
        self._update_target()
        return held or []

    def aim(self, target: Target | None) -> None:
        """Set the live route to the client; None: the client has left."""
        self.target = target
        if target is not None:
            self._update_target()

    def _on_changed(self) -> None:
        if self.changed is not None:
            self.changed[self.topic_filter] = None
        self._update_target()

    def _update_target(self) -> None:
        target = self.target
        if target is not None:
            target.qos = self.qos
            is_held = self.is_fresh and self.held is not None
            # A run has no retained messages, so it is the same to `AS_PUBLISHED`.
            is_special = self.options & NO_LOCAL or self.identifier
            target.is_plain = not (self.pending or is_held or is_special)


@lru_cache(maxsize=16)
def _shared_starts(
    starts: tuple[tuple[JournalId, int], ...], part: JournalId, offset: int
) -> Mapping[JournalId, int]:
    """Return the starts with one more; subscriptions of about the same time share one mapping."""
    return {**dict(starts), part: offset}


@attrs.define(slots=True, eq=False)
class WaitingRecords:
    """
    The records that wait behind a cursor, as far as they are counted.

    `messages` of `size` bytes wait up to the offset `seen` and above `end`. Records between the two
    are not counted yet. These records take at most `rest` bytes of the journal (None: unknown).
    `is_asked`: the count was requested once more, since the first answer was too old.
    """

    seen: int
    end: int
    rest: int | None = None
    is_asked: bool = False
    messages: int = 0
    size: int = 0

    def add(self, size: int, count: int = 1) -> None:
        """Count `count` records with `size` bytes in total, found or live."""
        self.messages += count
        self.size += size

    def subtract(self, offset: int, size: int, count: int = 1) -> None:
        """Subtract records, all of them counted or not, that do not wait any more."""
        if offset <= self.seen or offset > self.end:
            self.messages -= count
            self.size -= size

    def uncounted(self, offset: int) -> int:
        """Return the upper bound of uncounted records above this offset."""
        return max(self.end - max(self.seen, offset), 0)


@attrs.frozen(kw_only=True)
class MergedPart:
    """
    The records of a part that one of two merged sessions took, or a session behind lost ones.

    The session took records up to offset `through` that match one of `filters`, except at the
    offsets `left`. Each filter has the offset behind which it began.
    """

    through: int
    filters: tuple[tuple[str, int], ...]
    left: frozenset[int] = frozenset()

    def has(self, offset: int, topic: str) -> bool:
        """True if the session took the record."""
        if offset > self.through or offset in self.left:
            return False
        return any(start < offset and matches(text, topic) for text, start in self.filters)


@attrs.define(slots=True, eq=False)
class Cursor:
    """
    The progress of a session that is behind in one part: all records up to `offset` are taken.

    - `until`: the end of a closed part.
    - `after`: the position that the session must pass before it reads this part.
    - `stops`: offsets that the cursor must not pass while the session is behind in the stop's part.
    - `is_over`: the part has ended, and the node does not follow it any more.
    - `waiting`: the records behind the cursor, while the session's client is connected.
    """

    part: JournalId
    offset: int
    until: int | None = None
    after: LogPosition | None = None
    stops: tuple[LogPosition, ...] = ()
    is_over: bool = False
    waiting: WaitingRecords | None = None

    def must_wait(self, behind: Mapping[JournalId, Cursor]) -> bool:
        """True if another part must be read first; `behind`: all cursors of the session."""
        after = self.after
        if after is not None:
            earlier = behind.get(after.part)
            if earlier is not None and earlier.offset < after.offset:
                return True
            self.after = None
        return self.offset >= self.limit(behind)

    def limit(self, behind: Mapping[JournalId, Cursor]) -> int:
        """Return the offset beyond which another part must be finished first."""
        if not self.stops:
            return 1 << 62
        self.stops = tuple(stop for stop in self.stops if stop.part in behind)
        return min((stop.offset for stop in self.stops), default=1 << 62)
