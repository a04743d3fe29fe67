"""
SHELL: what of the journals is kept, and for whom.

Age and size say what the history keeps; the low-water mark of each edge (the lowest cursor or open
flow of its sessions, protocol rule 6) says what must stay beyond that, as long as `session_limits`
allow: an edge that has not been heard of for longer than sessions live, or a journal that has
outgrown its size by what sessions may hold, is waited for no longer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import attrs

from txbroker.counters import Counters
from txbroker.place import PartKey
from txbroker.store.journals import Journals, Part
from txbroker.store.lived import SECOND, Ages
from txbroker.store.tables import Table
from txbroker.telemetry import get_logger
from txbroker.topics import is_within
from txbroker.v1 import state_pb2

log = get_logger()

_RECLAIMED = "reclaimed/"  # no node's name has a slash


@attrs.frozen(kw_only=True)
class Policy:
    """
    Ages in seconds, sizes in bytes, of one part each. `keeps_history` False: only what an edge
    needs is kept.
    """

    age: float
    size: int
    session_age: float
    session_size: int
    keeps_history: bool = True


class Retention:
    """The low-water marks of edges, and what they let go; `now`: what the node has lived."""

    def __init__(
        self,
        *,
        journals: Journals,
        table: Table,
        policy: Policy,
        counters: Counters,
        ages: Ages,
        now: Callable[[], int],
    ) -> None:
        self.policy = policy
        self._ages = ages
        self._journals = journals
        self._table = table
        self._counters = counters
        self._now = now
        self._kept: dict[str, dict[PartKey, int]] = {}
        self._told: dict[str, int] = {}
        for name, value in table.items():
            stored = state_pb2.StoredKept.FromString(value)
            edge = name.decode()
            self._told[edge] = stored.told
            self._kept[edge] = {
                PartKey(place.part.zone, place.part.epoch): place.offset for place in stored.places
            }

    # from the edges

    def begin(self, edge: str, part: PartKey, offset: int) -> None:
        """The edge is here, and needs nothing up to this offset unless it has said otherwise."""
        known = self._kept.setdefault(edge, {})
        if part not in known:
            known[part] = offset
            self._save(edge)

    def inherit(self, edge: str, part: PartKey, offset: int) -> None:
        """The part came here, from an owner to which the edge had said so; or here, or both."""
        known = self._kept.setdefault(edge, {})
        known[part] = min(offset, known.get(part, offset))
        self._save(edge)

    def needs(self, apex: str) -> dict[str, dict[PartKey, int]]:
        """By edge: what it needs of the parts of a zone, and of zones below it."""
        found = {
            edge: {part: offset for part, offset in places.items() if is_within(part.zone, apex)}
            for edge, places in self._kept.items()
        }
        return {edge: places for edge, places in found.items() if places}

    def keep(self, edge: str, places: dict[PartKey, int]) -> None:
        """The edge's sessions need what is above these offsets, and no other part."""
        if self._kept.get(edge) != places or self._is_stale(edge):
            self._kept[edge] = dict(places)
            self._save(edge)

    def reserve(self, apex: str, part: PartKey, offset: int) -> None:
        """
        An apex was reclaimed: edges that are not known here may come, as long as sessions live, and
        need what lies above this offset.
        """
        self.keep(_RECLAIMED + apex, {part: offset})

    def forget(self, edge: str) -> None:
        """The edge is a member of the tree no longer."""
        if self._kept.pop(edge, None) is not None:
            self._told.pop(edge)
            self._table.delete(edge.encode())

    # from the node

    def lowest(self, part: PartKey) -> int:
        """What lies above this offset some edge may need, as far as edges have told."""
        return self._needed(part) or 0

    def trim(self, present: PartKey | None, saved: int = 0, held: Collection[PartKey] = ()) -> None:
        """
        Now and then: let go of what nobody needs; `present` is the part that is appended to, `held`
        are those that stay whole.

        `saved` is the offset of the present part's durable checkpoint. A batch above that offset
        alone says what it did to retained values and marks: without it a start would miss them.
        """
        for part in list(self._journals.parts.values()):
            self._ages.note(_name(part.key), part.log.written, self.policy.age)
            if part.key in held:
                continue
            self._trim(part, saved if part.key == present else part.next)
            if part.key != present and part.log.first >= part.next:
                continue
            if part.key != present and self._may_go(part):
                self._journals.drop(part.key)
                log.info("journal.dropped", zone=part.key.zone, epoch=part.key.epoch)
        self._ages.keep_only({_name(key) for key in self._journals.parts})

    # internal

    def _trim(self, part: Part, most: int) -> None:
        policy, log_, before = self.policy, part.log, part.log.first
        by_size = 0
        if policy.keeps_history:
            by_size = log_.excess(policy.size)
            through = max(self._ages.through(_name(part.key), policy.age), by_size)
        else:
            through = log_.written
        through = min(through, most)
        needed = self._needed(part.key)
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

    def _overtake(self, part: Part, after: int, through: int) -> None:
        """Edges wait for records that are above `after` and go all the same."""
        if through > after:
            self._counters.add("journal.overtaken", through - after)
            zone, epoch = part.key
            limit = "retention.size, session_limits.bytes"
            log.warning(
                "journal.overtaken", zone=zone, epoch=epoch, limit=limit, offsets=through - after
            )

    def _may_go(self, part: Part) -> bool:
        """Whether a closed part has nothing that history or an edge would want."""
        needed = self._needed(part.key)
        if needed is not None and needed < part.next - 1:
            return False
        old = self._ages.through(_name(part.key), self.policy.age)
        return not self.policy.keeps_history or old >= part.log.written

    def _needed(self, part: PartKey) -> int | None:
        """Everything above this offset is needed by an edge; None: nothing is."""
        marks = [
            places[part]
            for edge, places in self._kept.items()
            if part in places and not self._is_forgotten(edge)
        ]
        return min(marks, default=None)

    def _is_forgotten(self, edge: str) -> bool:
        return self._now() - self._told.get(edge, 0) > self.policy.session_age * SECOND

    def _is_stale(self, edge: str) -> bool:
        # The time counts for edges that are away; once in a while is enough.
        return self._now() - self._told.get(edge, 0) > 60 * SECOND

    def _save(self, edge: str) -> None:
        self._told[edge] = self._now()
        stored = state_pb2.StoredKept(told=self._told[edge])
        for part, offset in self._kept[edge].items():
            place = stored.places.add(offset=offset)
            place.part.zone, place.part.epoch = part
        self._table.put(edge.encode(), stored.SerializeToString())


def _name(part: PartKey) -> bytes:
    return f"{part.epoch} {part.zone}".encode()
