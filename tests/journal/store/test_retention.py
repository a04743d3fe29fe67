"""What of a journal is kept, and for whom."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from tests.storage.test_committer import Bench
from tests.support.checking import checking
from tests.support.keeping import MemoryTable
from txbroker.journal.store import retention
from txbroker.journal.store.journal_parts import JournalPart, Journals
from txbroker.journal.store.retention import Retention, RetentionPolicy
from txbroker.model.counters import Counters
from txbroker.model.log_position import JournalHolder, JournalId
from txbroker.mqtt.wire.message import Message
from txbroker.storage.committer import Durability
from txbroker.storage.lived_time import SECOND, EntryAges

checked = checking(Retention)

KEY = JournalId("z", 1)
SEGMENT = 64 * 1024


class Keeping:
    """A zone's journal of 100 records, one each second, about 6 in a segment."""

    def __init__(self, folder: Path, policy: RetentionPolicy) -> None:
        self.counters = Counters()
        self.time = 0
        bench = Bench(folder / "others", Durability.SYNC)
        self.journals = Journals(
            folder / "journal", bench.committer, lambda *_: None, segment_bytes=SEGMENT
        )
        self.part: JournalPart = self.journals.create(KEY, None)
        self.table = MemoryTable()
        self.kept = MemoryTable()
        self.policy = policy
        self.ages = EntryAges(self.table, self.lived)  # type: ignore[arg-type]
        for second in range(100):
            utc = (second + (second % 3) * 10**6) * SECOND  # a clock that steps all the time
            self.part.append(Message("t", bytes(10_000), 1), None, 0, time=utc)
            bench.turn.end()
            while bench.work:
                bench.sync()
            self.ages.mark(b"1 z", self.part.log.written, policy.age)
            self.time += 1
        self.start()

    def start(self) -> None:
        """A process that finds what is kept."""
        self.retention = Retention(
            journals=self.journals,
            table=self.kept,  # type: ignore[arg-type]
            policy=self.policy,
            counters=self.counters,
            ages=self.ages,
            now=self.lived,
        )

    def lived(self) -> int:
        """Microseconds."""
        return self.time * SECOND

    def trim(self) -> int:
        """The first offset that is left."""
        self.retention.trim(KEY, self.part.next)
        return self.part.log.first


POLICY = RetentionPolicy(age=1000.0, size=10**9, session_age=1000.0, session_size=10**9)


@pytest.mark.parametrize(
    ("policy", "lowest", "highest"),
    [
        (POLICY, 1, 1),
        (attrs.evolve(POLICY, age=30.0), 60, 70),
        (attrs.evolve(POLICY, size=400_000), 60, 75),
        (attrs.evolve(POLICY, keeps_history=False), 94, 100),
    ],
    ids=["all", "age", "size", "nothing"],
)
def test_history_within_age_and_size(
    tmp_path: Path, policy: RetentionPolicy, lowest: int, highest: int
) -> None:
    """By whole segments, and the last one stays; each offset that went is counted once."""
    keeping = Keeping(tmp_path, policy)

    first = keeping.trim()

    assert lowest <= first <= highest
    assert first == keeping.trim()
    expected = first - 1 if policy.keeps_history else 0
    assert expected == keeping.counters.snapshot().get("journal.trimmed", 0)


def test_what_sessions_wait_for_stays_within_their_limits(tmp_path: Path) -> None:
    """Then it goes, and is counted once for all who wait."""
    keeping = Keeping(tmp_path, attrs.evolve(POLICY, size=100_000))
    for edge, offset in (("a", 20), ("b", 90)):
        keeping.retention.set_low_water(edge, {KEY: offset})
    kept = keeping.trim()
    keeping.retention.policy = attrs.evolve(POLICY, size=100_000, session_size=400_000)
    first = keeping.trim()
    keeping.trim()

    assert 15 <= kept <= 21
    assert 45 <= first <= 65
    assert first - 21 == keeping.counters.snapshot()["journal.overtaken"]


@pytest.mark.parametrize("edge", [None, "a"])
def test_nothing_goes_that_no_durable_checkpoint_covers(tmp_path: Path, edge: str | None) -> None:
    """It alone says what it did to retained values and marks, whoever needs it besides."""
    keeping = Keeping(tmp_path, attrs.evolve(POLICY, size=100_000, session_size=100_000))
    if edge is not None:
        keeping.retention.set_low_water(edge, {KEY: 100})

    keeping.retention.trim(KEY, saved=30)

    assert 20 <= keeping.part.log.first <= 31
    assert 60 <= keeping.trim()


def test_marks_of_a_part_that_comes_in_are_the_lower_of_two(tmp_path: Path) -> None:
    """The edge may have told this node already, and not the one that had the part; or both."""
    keeping = Keeping(tmp_path, attrs.evolve(POLICY, size=100_000))
    keeping.retention.set_low_water("a", {KEY: 50})
    keeping.retention.inherit("a", KEY, 20)
    keeping.retention.inherit("a", KEY, 40)

    assert {"a": {KEY: 20}} == keeping.retention.needs(KEY.zone)


def test_an_edge_that_was_forgotten_is_not_known_after_a_start(tmp_path: Path) -> None:
    """The next process would hold records back for it, which nobody reads."""
    keeping = Keeping(tmp_path, POLICY)
    keeping.retention.set_low_water("a", {KEY: 20})
    keeping.retention.set_low_water("b", {KEY: 30})
    keeping.retention.forget("a")
    keeping.retention.check()

    keeping.start()

    assert {"b": {KEY: 30}} == keeping.retention.needs(KEY.zone)


def test_an_edge_that_is_away_for_too_long_is_not_waited_for(tmp_path: Path) -> None:
    """Its sessions have ended by then."""
    keeping = Keeping(tmp_path, attrs.evolve(POLICY, size=100_000, session_age=50.0))
    keeping.retention.set_low_water("a", {KEY: 20})
    before = keeping.trim()
    keeping.time += 51

    assert before <= 21 < keeping.trim()
    assert "journal.overtaken" not in keeping.counters.snapshot()


def test_edges_are_bounded_in_number_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No mark goes to make room for another; one whose edge is gone for too long does."""
    monkeypatch.setattr(retention, "EDGES", 2)
    keeping = Keeping(tmp_path, attrs.evolve(POLICY, session_age=50.0))
    kept = keeping.retention
    kept.set_low_water("a", {KEY: 20})
    keeping.time += 30
    kept.set_low_water("b", {KEY: 30})
    assert [True, True, False] == [kept.has_room_for(edges) for edges in ("a", "ba", "bc")]
    assert not kept.has_room_to_reserve("z")

    keeping.time += 21
    keeping.trim()

    assert ({"b": {KEY: 30}}, 1, True) == (kept.needs(""), kept.edges, kept.has_room_for("c"))
    assert [True, False] == [kept.has_room_for(edges) for edges in ("bc", "cd")]
    assert kept.has_room_to_reserve("z")


def test_how_long_an_edge_has_not_been_heard(tmp_path: Path) -> None:
    """Beside what it holds back, and its sessions as it named them last."""
    keeping = Keeping(tmp_path, POLICY)
    keeping.retention.set_low_water("a", {KEY: 20})
    keeping.retention.set_holders("a", {KEY: (JournalHolder("panel", 20),)})
    keeping.time += 300

    (held,) = keeping.retention.held()

    assert ("a", "panel", 300.0) == (held.edge, held.client_id, held.silent)
    assert held.size > 0


def test_journal_is_kept_from_where_a_zone_was_reclaimed(tmp_path: Path) -> None:
    """For edges that nobody knows of yet, as long as sessions may live."""
    keeping = Keeping(tmp_path, attrs.evolve(POLICY, age=5.0, session_age=60.0))
    keeping.retention.reserve("z/dead", KEY, 40)
    kept = keeping.trim()
    keeping.time += 61
    later = keeping.trim()

    assert 30 < kept <= 41
    assert later > 90


NEXT = JournalId("z", 2)


@pytest.mark.parametrize("offset", [20, 100], ids=["needs some", "needs nothing"])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_edges_of_an_earlier_part_need_all_of_one_that_begins(
    tmp_path: Path, offset: int, is_restarted: bool
) -> None:
    """Until they name it, or a later one: marks from before say nothing of what is in it."""
    keeping = Keeping(tmp_path, POLICY)
    kept = keeping.retention
    kept.set_low_water("a", {KEY: offset})
    kept.set_low_water("elsewhere", {JournalId("y", 1): 5})
    kept.reserve("z/dead", KEY, 40)
    kept.start_part(NEXT)
    if is_restarted:
        keeping.start()
        kept = keeping.retention
    kept.start_edge("a", NEXT, 70)
    kept.set_low_water("a", {KEY: 100})
    unheard = kept.needs("")
    kept.set_low_water("a", {KEY: 100, NEXT: 30})
    kept.set_low_water("a", {KEY: 100})

    reserved = {KEY: 40, NEXT: 0}
    elsewhere = {JournalId("y", 1): 5}
    assert {"a": {KEY: 100, NEXT: 0}, "elsewhere": elsewhere, "reclaimed/z/dead": reserved} == (
        unheard
    )
    assert {KEY: 100} == kept.needs("")["a"]


def test_an_edge_that_names_a_later_part_has_heard_of_the_earlier_ones(tmp_path: Path) -> None:
    """A node is restored twice while the edge is away."""
    keeping = Keeping(tmp_path, POLICY)
    kept = keeping.retention
    kept.set_low_water("a", {KEY: 20})
    kept.start_part(NEXT)
    kept.start_part(JournalId("z", 3))
    away = kept.needs("")
    kept.set_low_water("a", {JournalId("z", 3): 0})

    assert {"a": {KEY: 20, NEXT: 0, JournalId("z", 3): 0}} == away
    assert {"a": {JournalId("z", 3): 0}} == kept.needs("")


def test_a_part_that_begins_makes_no_edge_younger(tmp_path: Path) -> None:
    """A node that is restored each day would keep what dead edges needed for ever."""
    keeping = Keeping(tmp_path, attrs.evolve(POLICY, session_age=50.0))
    keeping.retention.set_low_water("a", {KEY: 20})
    keeping.time += 30
    keeping.retention.start_part(NEXT)
    keeping.start()
    keeping.time += 21
    keeping.trim()

    assert {} == keeping.retention.needs("")


def test_an_apex_that_is_reclaimed_again_keeps_what_was_reserved(tmp_path: Path) -> None:
    """An edge that was away all the time needs what lies above the first of the offsets."""
    keeping = Keeping(tmp_path, POLICY)
    for offset in (40, 90):
        keeping.retention.reserve("z/dead", KEY, offset)

    assert {"reclaimed/z/dead": {KEY: 40}} == keeping.retention.needs("")


def test_what_an_earlier_version_wrote_is_as_old_as_the_first_look(tmp_path: Path) -> None:
    """Its batches have the time of day, which may have been any."""
    keeping = Keeping(tmp_path, attrs.evolve(POLICY, age=30.0))
    keeping.ages.retain_only(set())
    before = keeping.trim()
    keeping.time += 29
    within = keeping.trim()
    keeping.time += 2

    assert (1, 1) == (before, within)
    assert 90 < keeping.trim()


def test_ages_are_forgotten_with_their_part(tmp_path: Path) -> None:
    """A closed part goes as a whole when all of it is old; nothing of it stays in the table."""
    keeping = Keeping(tmp_path, attrs.evolve(POLICY, age=30.0))
    keeping.retention.trim(None)
    keeping.time += 31
    keeping.retention.trim(None)

    assert {} == keeping.journals.parts
    assert [] == list(keeping.table.items())
