"""A zone's journal in memory (`ZoneJournal`): durable at once, or when the test says `sync`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import attrs

from tests.support.stored import GivenRecords
from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import EdgeCatchUp, EdgePeer
from txbroker.core import Router
from txbroker.core import Run as CoreRun
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.journal.zone_journal import JournalChunk, Record, ZoneState
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.publish_run import PublishRun
from txbroker.mqtt.wire.message import Message


class MemoryJournal:
    """
    Records in a list; with `lazy` nothing is durable before `sync`.

    Claims that are told are durable at once. Retained messages are not kept at all. An epoch that
    was open before goes on: a new authority over the same journal is a restart.
    """

    def __init__(self, *, lazy: bool = False) -> None:
        self.records: list[Record] = []
        self.first = 1
        self.offset = 0
        self.durable = 0
        self.predecessor: LogPosition | None = None
        self.stores_qos0 = True
        self.noted: list[str] = []
        self.state = ZoneState()
        self.touched_filters: set[str] = set()
        self.authority: Authority | None = None
        self._lazy = lazy
        self._epoch = 0
        self._origins: list[tuple[int, MarkKey, int]] = []
        self._ends: dict[int, int] = {}

    def end(self, offset: int) -> int:
        """Up to where all is durable at once with an offset: a run is written as a whole."""
        return self._ends.get(offset, offset)

    def sync(self, through: int | None = None) -> None:
        """Everything is durable now, or what is up to an offset."""
        self.durable = self.offset if through is None else self.end(through)
        assert self.authority is not None
        self.authority.on_durable(self.durable)

    def crash(self) -> None:
        """The process died: what was not durable is gone."""
        self.offset = self.durable
        self._ends = {at: end for at, end in self._ends.items() if end <= self.durable}
        self.records = [record for record in self.records if record.offset <= self.durable]
        self._origins = [origin for origin in self._origins if origin[0] <= self.durable]

    def trim(self, through: int) -> None:
        """Keep only what is above this offset."""
        self.first = through + 1
        self.records = [record for record in self.records if record.offset > through]

    def open(self, epoch: int, predecessor: LogPosition | None) -> ZoneState:
        if epoch != self._epoch:
            self._epoch = epoch
            self.records.clear()
            self._origins.clear()
            self._ends.clear()
            self.first, self.offset, self.durable = 1, 0, 0
            self.predecessor = predecessor
            self.state = ZoneState()
        marks = {key: sequence for _, key, sequence in self._origins}
        return attrs.evolve(self.state, marks={**self.state.marks, **marks})

    def has_room_for(self, edges: Collection[str]) -> bool:
        return True

    def has_room_to_reserve(self, apex: str) -> bool:
        return True

    def forget_edge(self, edge: str) -> None:
        pass

    def append(self, message: Message, key: MarkKey | None, sequence: int) -> int:
        self.offset += 1
        self.records.append(Record(self.offset, message))
        if key is not None:
            self._origins.append((self.offset, key, sequence))
        if not self._lazy:
            self.durable = self.offset
        return self.offset

    def append_run(self, run: PublishRun, key: MarkKey | None, sequence: int) -> int:
        first = self.offset + 1
        assert isinstance(run, CoreRun)
        for index in range(run.count):
            self.append(run.message(index), None, 0)
        if key is not None:
            self._origins.append((self.offset, key, sequence))
        self._ends.update(dict.fromkeys(range(first, self.offset + 1), self.offset))
        return first

    def append_qos0(self, runs: Sequence[PublishRun]) -> int:
        if not self.stores_qos0:
            return 0
        for run in runs:
            self.append_run(run, None, 0)
        return self.offset

    def read(self, after: int, through: int) -> JournalChunk:
        due = [r for r in self.records if after < r.offset <= through and r.message.qos]
        records = due[:3]
        end = through if len(due) <= 3 else records[-1].offset
        return JournalChunk(records=GivenRecords(records), through=end, first=self.first)

    def mark_retained_changed(self, topics: Iterable[str]) -> None:
        self.noted.extend(topics)

    def touched(self) -> set[str]:
        return set(self.touched_filters)

    def store_touched(self, filters: Iterable[str]) -> None:
        self.touched_filters.update(filters)

    def store_unclaimed(self, edges: Iterable[str]) -> None:
        self.noted.extend(edges)
        self._keep_claims()

    def reserve_reclaimed(self, apex: str, offset: int) -> None:
        self.noted.append(f"reclaimed {apex} {offset}")

    def add_edge(self, edge: str, offset: int) -> None:
        self.noted.append(f"{edge} from {offset}")

    def set_low_water(
        self, edge: str, places: dict[JournalId, int], holders: object = None
    ) -> None:
        self.noted.extend(f"{edge} {part.zone} {offset}" for part, offset in places.items())

    def when_kept(self, action: Callable[[], None]) -> None:
        action()

    def store_absorbed(self, apex: str, marks: dict[MarkKey, int]) -> None:
        self.noted.append(f"absorbed {apex}")
        self._keep_claims()

    def store_marks(self, marks: Mapping[MarkKey, int]) -> None:
        self.noted.append(f"{len(marks)} marks")

    def _keep_claims(self) -> None:
        assert self.authority is not None
        self.state = attrs.evolve(self.state, unclaimed=tuple(self.authority.unclaimed()))


def caught_up(authority: Authority, accepted: tuple[EdgePeer, EdgeCatchUp] | None) -> list[Record]:
    """All records of a catch-up, read as a link does."""
    assert accepted is not None
    peer, catch_up = accepted
    found: list[Record] = []
    after, until = catch_up.after, authority.delivered
    while after is not None and after < until:
        chunk, records = authority.reception.backlog(peer, catch_up, after, until)
        found += records
        after = chunk.through
    return found


def authority_of(
    apex: str, table: DelegationTable, *, lazy: bool = False
) -> tuple[Authority, MemoryJournal]:
    """An authority with a journal in memory."""
    journal = MemoryJournal(lazy=lazy)
    return authority_over(journal, apex, table), journal


def authority_over(journal: MemoryJournal, apex: str, table: DelegationTable) -> Authority:
    """An authority over a journal that is there: a process that starts."""
    journal.authority = Authority(apex, table, journal, Router(lambda: None))
    return journal.authority
