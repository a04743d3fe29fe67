"""
SHELL: the records of the journals that are kept, and for whom.

Age and size say what the history keeps. The low-water mark of each edge says what must stay beyond
that, as long as `session_limits` allow. That mark is the lowest cursor or open flow of the edge's
sessions (protocol rule 6). Retention stops waiting for an edge that has not been heard of for
longer than sessions live. Retention also stops waiting for a journal that has outgrown its size by
what sessions may hold.

A mark begins when an edge comes, rises as the edge tells, and goes when the edge is forgotten. A
trim deletes whole segments, the oldest first, up to the lowest mark. A part that nobody needs is
dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import attrs

from txbroker.journal.store.journal_parts import JournalPart, Journals
from txbroker.model.counters import Counters
from txbroker.model.invariant import holds, ordered
from txbroker.model.log_position import HOLDERS, JournalHolder, JournalId
from txbroker.model.topics import is_within
from txbroker.runtime.structured_log import get_logger
from txbroker.storage.lived_time import SECOND, EntryAges
from txbroker.storage.tables import LogTable
from txbroker.v1 import state_pb2

log = get_logger()

EDGES = 10_000
"""The most edges with low-water marks; beyond that no further edge gets a link."""

LOOKED_AT = 100
"""The most holders among which the holders of one part are looked up."""

_RECLAIMED = "reclaimed/"  # no node's name has a slash


@attrs.frozen(kw_only=True)
class RetentionPolicy:
    """
    Ages in seconds, sizes in bytes, of one part each. `keeps_history` False: only what an edge
    needs is kept.
    """

    age: float
    size: int
    session_age: float
    session_size: int
    keeps_history: bool = True


@attrs.frozen(kw_only=True)
class HeldPart:
    """
    The records of a part that an edge holds back: about so many bytes, the first written at `since`
    (microseconds UTC). `client_id` alone holds back at least these ("": no session is named). The
    edge has told its marks `silent` seconds ago, as the node has lived.
    """

    edge: str
    client_id: str
    zone: str
    epoch: int
    size: int
    since: int
    silent: float


class Retention:
    """
    The low-water marks of edges, and what they let go; `now`: what the node has lived.

    Invariant: what is stored of an edge is what is known of it; no mark is below 0.
    """

    def __init__(
        self,
        *,
        journals: Journals,
        table: LogTable,
        policy: RetentionPolicy,
        counters: Counters,
        ages: EntryAges,
        now: Callable[[], int],
    ) -> None:
        self.policy = policy
        self._ages = ages
        self._journals = journals
        self._table = table
        self._counters = counters
        self._now = now
        self._kept: dict[str, dict[JournalId, int]] = {}
        self._told: dict[str, int] = {}
        self._unheard: dict[str, set[JournalId]] = {}
        self._holders: dict[str, dict[JournalId, tuple[JournalHolder, ...]]] = {}
        self._told_held: set[JournalId] = set()
        for name, value in table.items():
            stored = state_pb2.StoredKept.FromString(value)
            edge = name.decode()
            self._told[edge] = stored.told
            self._kept[edge] = {
                JournalId(place.part.zone, place.part.epoch): place.offset
                for place in stored.places
            }
            self._unheard[edge] = {JournalId(part.zone, part.epoch) for part in stored.unheard}

    @property
    def edges(self) -> int:
        """Return the number of edges with low-water marks."""
        return len(self._kept)

    def live_edges(self) -> Iterator[str]:
        """Yield the edges with low-water marks whose sessions may still be there."""
        for edge in self._kept:
            if not (edge.startswith(_RECLAIMED) or self._is_forgotten(edge)):
                yield edge

    # from the edges

    def has_room_for(self, edges: Collection[str]) -> bool:
        """True if each edge has low-water marks, or there is room for those of all the others."""
        new = sum(edge not in self._kept for edge in set(edges))
        return not new or len(self._kept) + new <= EDGES

    def has_room_to_reserve(self, apex: str) -> bool:
        """True if there is room for the reservation of a reclaimed apex: it counts as an edge."""
        return self.has_room_for((_RECLAIMED + apex,))

    def start_edge(self, edge: str, part: JournalId, offset: int) -> None:
        """
        Note that the edge needs the part's records above this offset, unless it has a mark already.
        """
        known = self._kept.setdefault(edge, {})
        if part not in known:
            known[part] = offset
            self._save(edge)

    def start_part(self, part: JournalId) -> None:
        """
        Begin a part of a zone: every edge with a mark at an earlier part needs all of it.

        An absent edge has not heard of the part; the mark holds until the edge says otherwise.
        """
        for edge, known in self._kept.items():
            earlier = (one.epoch < part.epoch for one in known if one.zone == part.zone)
            if part not in known and any(earlier):
                known[part] = 0
                self._unheard.setdefault(edge, set()).add(part)
                self._put(edge)  # without a new time: otherwise an absent edge would never expire

    def inherit(self, edge: str, part: JournalId, offset: int) -> None:
        """Merge a mark that the edge gave to an earlier owner of the part, which came here."""
        known = self._kept.setdefault(edge, {})
        known[part] = min(offset, known.get(part, offset))
        self._save(edge)

    def needs(self, apex: str) -> dict[str, dict[JournalId, int]]:
        """Return each edge's marks in the parts of a zone and of zones below it."""
        found = {
            edge: {part: offset for part, offset in places.items() if is_within(part.zone, apex)}
            for edge, places in self._kept.items()
        }
        return {edge: places for edge, places in found.items() if places}

    def set_low_water(self, edge: str, places: dict[JournalId, int]) -> None:
        """
        Store the edge's marks: its sessions need the records above these offsets.

        The edge needs no other part that it has heard of.
        """
        unheard = self._unheard[edge] = {
            part for part in self._unheard.get(edge, ()) if not _has_heard(places, part)
        }
        places = {**places, **dict.fromkeys(unheard, 0)}
        if self._kept.get(edge) != places or self._is_stale(edge):
            self._kept[edge] = places
            self._save(edge)

    def set_holders(
        self, edge: str, holders: Mapping[JournalId, tuple[JournalHolder, ...]]
    ) -> None:
        """Note the edge's sessions that hold back the most records, for operators."""
        self._holders[edge] = dict(holders)

    def reserve(self, apex: str, part: JournalId, offset: int) -> None:
        """
        Reserve the records above this offset of a reclaimed apex for edges that are not known here.

        The reservation lasts as long as sessions live.
        """
        self.inherit(_RECLAIMED + apex, part, offset)

    def forget(self, edge: str) -> None:
        """Forget an edge that is no member any more, or has been away for too long."""
        if self._kept.pop(edge, None) is not None:
            self._told.pop(edge, None)
            self._unheard.pop(edge, None)
            self._holders.pop(edge, None)
            self._table.delete(edge.encode())

    def check(self) -> None:
        """State that marks are kept for the edges that are known, and stored."""
        names = {name.decode() for name, _ in self._table.items()}
        holds(self, 31, "marks are durable", names == self._kept.keys(), names ^ self._kept.keys())
        for edge, places in self._kept.items():
            ordered(self, 31, "0 <= marks", 0, min(places.values(), default=0))
            lost = self._unheard.get(edge, set()) - places.keys()
            holds(self, 31, "what an edge has not heard of stays", not lost, edge, lost)

    # from the node

    def lowest(self, part: JournalId) -> int:
        """Return the offset above which some edge may need records, as far as edges have told."""
        return self._needed(part) or 0

    def held(self, most: int = 3) -> list[HeldPart]:
        """
        Return the holders of the most journal bytes, the largest first, without expired edges.
        """
        found = [
            (part.log.size_above(offset), part, edge, client_id, offset)
            for part in self._journals.parts.values()
            for edge, client_id, offset in self._holders_of(part.key)
            if offset < part.log.written
        ]
        found.sort(key=lambda one: (-one[0], one[2], one[3]))
        return [
            HeldPart(
                edge=edge,
                client_id=client_id,
                zone=part.key.zone,
                epoch=part.key.epoch,
                size=size,
                since=next((batch.time for batch in part.log.batches(offset)), 0),
                silent=max(self._now() - self._told.get(edge, 0), 0) / SECOND,
            )
            for size, part, edge, client_id, offset in found[:most]
        ]

    @property
    def held_size(self) -> int:
        """Return an upper bound of the journal bytes that marks hold back."""
        needed = ((part, self._needed(part.key)) for part in self._journals.parts.values())
        return sum(
            part.log.size_above(offset)
            for part, offset in needed
            if offset is not None and offset < part.log.written
        )

    def trim(
        self, present: JournalId | None, saved: int = 0, held: Collection[JournalId] = ()
    ) -> None:
        """
        Trim and drop records that no limit and no mark keeps. Called now and then.

        `present` is the part that is appended to; `held` parts stay whole. `saved` is the offset of
        the present part's durable checkpoint. Only batches above it hold their changes of retained
        values and marks: without them a start would miss these changes.
        """
        for edge in [edge for edge in self._kept if self._is_forgotten(edge)]:
            self.forget(edge)  # a returning edge begins as a new one
        for part in list(self._journals.parts.values()):
            self._ages.mark(_name(part.key), part.log.written, self.policy.age)
            if part.key in held:
                continue
            self._trim(part, saved if part.key == present else part.next)
            if part.key != present and part.log.first >= part.next:
                continue
            if part.key != present and self._may_go(part):
                self._journals.drop(part.key)
                log.info("journal.dropped", zone=part.key.zone, epoch=part.key.epoch)
        self._ages.retain_only({_name(key) for key in self._journals.parts})

    # internal

    def _trim(self, part: JournalPart, most: int) -> None:
        policy, log_, before = self.policy, part.log, part.log.first
        by_size = 0
        if policy.keeps_history:
            by_size = log_.excess(policy.size)
            through = max(self._ages.through(_name(part.key), policy.age), by_size)
        else:
            through = log_.written
        through = min(through, most)
        needed = self._needed(part.key)
        self._log_held(part, is_held=needed is not None and by_size > needed)
        if needed is not None and through > needed:
            limit = min(log_.excess(policy.size + policy.session_size), most)
            self._overtake(part, max(needed, before - 1), limit)
            through = min(through, max(needed, limit))
        if log_.trim(through) and policy.keeps_history:
            self._counters.add("journal.trimmed", log_.first - before)
            limit_name = "retention.size" if log_.first <= by_size + 1 else "retention.age"
            zone, epoch = part.key
            log.info(
                "journal.trimmed", zone=zone, epoch=epoch, limit=limit_name, through=log_.first - 1
            )

    def _holders_of(self, part: JournalId) -> list[tuple[str, str, int]]:
        """Return edge, client id and offset of each holder of the part."""
        found: list[tuple[str, str, int]] = []
        for edge, places in self._kept.items():
            if part not in places or self._is_forgotten(edge):
                continue
            holders = self._holders.get(edge, {}).get(part, ())
            named = [(edge, holder.client_id, holder.offset) for holder in holders]
            found += named or [(edge, "", places[part])]
        return found

    def _log_held(self, part: JournalPart, *, is_held: bool) -> None:
        """Log once per time that marks make a part exceed its size."""
        key = part.key
        if not is_held or key in self._told_held:
            if not is_held:
                self._told_held.discard(key)
            return
        self._told_held.add(key)
        mine = [one for one in self.held(LOOKED_AT) if (one.zone, one.epoch) == key][:HOLDERS]
        log.warning(
            "journal.held",
            zone=key.zone,
            epoch=key.epoch,
            size=part.log.size,
            limit="retention.size",
            value=self.policy.size,
            holders=[f"{one.edge} {one.client_id}".strip() for one in mine],
            bytes=[one.size for one in mine],
        )

    def _overtake(self, part: JournalPart, after: int, through: int) -> None:
        """Count and log records above `after` that are trimmed although edges wait for them."""
        if through > after:
            self._counters.add("journal.overtaken", through - after)
            zone, epoch = part.key
            limit = "retention.size, session_limits.bytes"
            log.warning(
                "journal.overtaken", zone=zone, epoch=epoch, limit=limit, offsets=through - after
            )

    def _may_go(self, part: JournalPart) -> bool:
        """True if a closed part has no record that history or an edge needs."""
        needed = self._needed(part.key)
        if needed is not None and needed < part.next - 1:
            return False
        old = self._ages.through(_name(part.key), self.policy.age)
        return not self.policy.keeps_history or old >= part.log.written

    def _needed(self, part: JournalId) -> int | None:
        """Return the offset above which edges need all records; None if none is needed."""
        marks = [
            places[part]
            for edge, places in self._kept.items()
            if part in places and not self._is_forgotten(edge)
        ]
        return min(marks, default=None)

    def _is_forgotten(self, edge: str) -> bool:
        return self._now() - self._told.get(edge, 0) > self.policy.session_age * SECOND

    def _is_stale(self, edge: str) -> bool:
        # The time matters for absent edges only, so a save per minute is enough.
        return self._now() - self._told.get(edge, 0) > 60 * SECOND

    def _save(self, edge: str) -> None:
        self._told[edge] = self._now()
        self._put(edge)

    def _put(self, edge: str) -> None:
        stored = state_pb2.StoredKept(told=self._told[edge])
        for part, offset in self._kept[edge].items():
            place = stored.places.add(offset=offset)
            place.part.zone, place.part.epoch = part
        for zone, epoch in self._unheard.get(edge, ()):
            stored.unheard.add(zone=zone, epoch=epoch)
        self._table.put(edge.encode(), stored.SerializeToString())


def _has_heard(places: Collection[JournalId], part: JournalId) -> bool:
    """
    True if an edge that names these parts has heard of the part, or of a later one of the zone.
    """
    return any(one.zone == part.zone and one.epoch >= part.epoch for one in places)


def _name(part: JournalId) -> bytes:
    return f"{part.epoch} {part.zone}".encode()
