"""What a node tells the keepers of its entries: each change once, and all of it when in doubt."""

from __future__ import annotations

import pytest

from tests.support.keeping import MemoryTable
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.entry_replica import EntryReplica
from txbroker.directory.entry_replicator import LISTS, SLICE, EntryReplicator, ReplicatorPorts
from txbroker.directory.entry_table import EntryTable
from txbroker.directory.entry_updates import BATCH
from txbroker.directory.members import Member, Members
from txbroker.directory.node_lifetime import NodeLifetime
from txbroker.directory.reachability import ATTEMPTS
from txbroker.directory.replica_peer import PENDING
from txbroker.directory.requests import Ended, Register, Registered
from txbroker.directory.silent_members import SilentMembers

PULSE = 2.5
"""Seconds."""


def kept(number: int = 1, node: str = "a", incarnation: int = 1) -> DirectoryEntry:
    return DirectoryEntry(
        client_id=f"c{number}", node=node, incarnation=incarnation, persistent=True
    )


class Bench:
    """The registrar of `a`, and a real keeper `b`; every id has both."""

    def __init__(self) -> None:
        self.now = 0.0
        self.members = self._members("a")
        self.here = EntryTable(MemoryTable())
        self.conflicts: list[tuple[DirectoryEntry, bool]] = []
        self.known: list[str] = []
        self.kept: list[str] = []
        self.registrar = EntryReplicator(
            self.members,
            self.here,
            NodeLifetime(number=7, now=lambda: self.now),
            silence=SilentMembers(self.members, 10.0, lambda: self.now),
            ports=ReplicatorPorts(
                on_known=self.known.append,
                on_conflict=lambda entry, ended: self.conflicts.append((entry, ended)),
                kept=lambda: self.kept,
                wake=lambda: None,
            ),
            every=PULSE,
        )
        self.restart_keeper(1)
        self.sent: list[Register] = []

    def _members(self, name: str) -> Members:
        members = Members(name, "", MemoryTable(), is_root=True)
        members.announce(f"{name}:1")
        members.merge(Member(name=n, grpc=f"{n}:1", site="", version=1) for n in ("a", "b"))
        return members

    def join(self, name: str) -> None:
        self.now += 1
        for members in (self.members, self.keeper._members):
            members.merge([Member(name=name, grpc=f"{name}:1", site="", version=1)])

    def restart_keeper(self, life: int) -> None:
        self.keeper = EntryReplica(self._members("b"), EntryTable(MemoryTable()), life)

    def batch(self) -> Register | None:
        return self.registrar.batch("b", self.now)

    def answer(self, batch: Register) -> Registered:
        reply = self.keeper.register("a", batch)
        assert isinstance(reply, Registered)
        self.registrar.answered("b", batch, reply, self.now)
        return reply

    def pump(self) -> list[Register]:
        """Send what is to be sent now; what was sent, signs of life left out."""
        sent: list[Register] = []
        self.now = max(self.now, self.registrar.calm)
        while (batch := self.batch()) is not None or self.registrar.advance():
            if batch is not None:
                self.answer(batch)
                sent.append(batch)
        return sent

    def there(self, number: int = 1) -> DirectoryEntry | None:
        return self.keeper.entries.get(f"c{number}")


def test_the_complete_list_comes_first() -> None:
    """In parts, begun before what is in it is decided; what is not in it has ended there."""
    bench = Bench()
    bench.keeper.entries.store(kept(999))
    for number in range(BATCH + 1):
        bench.registrar.set(kept(number))
    sent = bench.pump()

    assert [0, BATCH, 1] == [len(batch.entries) for batch in sent]
    assert sent[0].first and sent[-1].last
    assert bench.there(BATCH) == kept(BATCH)
    assert bench.there(999) is None
    assert bench.here.get("c0") == kept(0)


def test_then_each_change() -> None:
    """The last state of an id, not its history."""
    bench = Bench()
    bench.pump()
    bench.registrar.set(kept(1))
    bench.registrar.set(kept(1, incarnation=2))
    bench.registrar.set(kept(2))
    bench.registrar.drop("c2")
    (batch,) = bench.pump()

    assert (batch.entries, batch.ended) == (
        (kept(1, incarnation=2),),
        (Ended(client_id="c2", generation=1),),
    )
    assert bench.registrar.is_told("c1")


def test_what_got_no_answer_is_said_again() -> None:
    """After a pause, with what came meanwhile; one call at a time."""
    bench = Bench()
    bench.pump()
    bench.registrar.set(kept(1))
    batch = bench.batch()
    assert batch is not None and bench.batch() is None
    assert not bench.registrar.is_told("c1")
    bench.registrar.failed("b", batch, bench.now)
    bench.registrar.set(kept(2))
    assert bench.batch() is None
    assert bench.registrar.is_cut_off("c1")
    bench.now += 10
    (again,) = bench.pump()

    assert (kept(1), kept(2)) == again.entries
    assert batch.number < again.number
    assert isinstance(bench.keeper.register("a", batch), Registered)
    assert bench.there(2) == kept(2)
    assert not bench.registrar.is_cut_off("c1")


@pytest.mark.parametrize("is_begun_anew", [False, True])
def test_what_ended_without_an_answer_has_ended_whatever_ends_below(is_begun_anew: bool) -> None:
    """A keeper asks about an earlier move, or a clean session came and went meanwhile."""
    bench = Bench()
    bench.registrar.set(kept(1, incarnation=5))
    bench.pump()
    bench.registrar.drop("c1")
    if is_begun_anew:
        bench.registrar.set(
            DirectoryEntry(client_id="c1", node="a", incarnation=1, persistent=False)
        )
    batch = bench.batch()
    assert batch is not None
    if is_begun_anew:
        bench.registrar.drop("c1")
    else:
        bench.registrar.deny(kept(1, incarnation=3))
    bench.registrar.failed("b", batch, bench.now)
    bench.now += 1.0
    bench.pump()

    assert bench.there(1) is None


def test_a_part_of_a_list_that_got_no_answer_has_a_number_of_its_own() -> None:
    """The keeper would take it for the late one."""
    bench = Bench()
    bench.registrar.set(kept(1))
    numbers = []
    while (batch := bench.batch()) is not None:
        numbers.append(batch.number)
        if len(numbers) == 2:
            bench.registrar.failed("b", batch, bench.now)
            bench.now += 10
        else:
            bench.answer(batch)

    assert numbers == sorted(set(numbers)) and len(numbers) == 3
    assert bench.there() == kept(1)


def test_a_keeper_in_a_new_life_gets_the_complete_list() -> None:
    """It is noticed by its answer, or when it speaks itself."""
    for is_heard in (True, False):
        bench = Bench()
        bench.registrar.set(kept(1))
        bench.pump()
        bench.restart_keeper(2)
        bench.now += 10
        if is_heard:
            bench.registrar.met("b", 2)
        sent = bench.pump()

        assert sent[-1].last
        assert bench.there() == kept(1)


def fail_once(bench: Bench) -> bool:
    """True if a batch is sent now; nobody answers it."""
    batch = bench.batch()
    if batch is not None:
        bench.registrar.failed("b", batch, bench.now)
    return batch is not None


def test_attempts_do_not_follow_the_messages_of_a_busy_member() -> None:
    """A busy member tells much and answers late; these attempts would keep it busy."""
    bench = Bench()
    bench.registrar.set(kept(1))
    bench.pump()
    bench.registrar.set(kept(2))
    attempts = 0
    for _ in range(100):
        bench.now += 0.05
        bench.registrar.met("b", 1)
        attempts += fail_once(bench)

    assert 5 <= attempts <= 10


def test_a_member_that_was_away_is_told_at_once() -> None:
    """Its first message says that it is back."""
    bench = Bench()
    bench.registrar.set(kept(1))
    bench.pump()
    bench.registrar.set(kept(2))
    for _ in range(10):
        bench.now += 1.0
        fail_once(bench)
    bench.now += 0.01
    assert not fail_once(bench)
    bench.registrar.met("b", 1)

    assert fail_once(bench)


def test_attempts_of_a_large_site_are_few() -> None:
    """Of all its members together, while nobody answers."""
    bench = Bench()
    names = [f"n{number}" for number in range(49)]
    for name in names:
        bench.join(name)
    bench.now = bench.registrar.calm
    made = 0
    for _ in range(6_000):
        bench.now += 0.01
        for name in ("b", *names):
            batch = bench.registrar.batch(name, bench.now)
            if batch is not None:
                made += bench.now > bench.registrar.calm + 30
                bench.registrar.failed(name, batch, bench.now)

    assert made / 30 <= ATTEMPTS / 50


def test_a_late_answer_counts() -> None:
    """Until then the keeper is one that does not answer, and nothing is sent twice."""
    bench = Bench()
    batch = bench.batch()
    assert batch is not None
    bench.now += 1.0
    bench.registrar.late("b", batch, bench.now - 1.0)
    assert bench.registrar.is_deaf("c1")
    bench.now += 3.0
    assert bench.batch() is None
    bench.answer(batch)
    assert not bench.registrar.is_deaf("c1")
    bench.pump()

    assert bench.registrar.is_settled


@pytest.mark.parametrize("is_heard", [False, True])
def test_who_is_late_with_a_list_keeps_others_from_theirs_if_it_lives(is_heard: bool) -> None:
    """A busy machine is given no more lists than it takes; a dead member holds up nobody."""
    bench = Bench()
    names = ["b", *(f"n{number}" for number in range(LISTS))]
    for name in names[1:]:
        bench.join(name)
    bench.now = began = bench.registrar.calm
    batches = {name: bench.registrar.batch(name, bench.now) for name in names}
    (last,) = [name for name, batch in batches.items() if batch is None]
    late = next(name for name in names if name != last)
    batch = batches[late]
    assert batch is not None
    bench.now += 1.0
    if is_heard:
        bench.registrar._silence.record_contact(late)
    bench.registrar.late(late, batch, began)

    assert (bench.registrar.batch(last, bench.now) is None) is is_heard


def test_one_more_is_no_news_to_those_who_keep_what_they_kept() -> None:
    """Nothing is said to them; the newcomer gets a list."""
    bench = Bench()
    bench.registrar.set(kept(1))
    bench.pump()
    news = [Member(name="c", grpc="c:1", site="", version=1)]
    bench.members.merge(news)
    bench.keeper._members.merge(news)
    assert bench.registrar.batch("c", bench.now) is None, "others may come as well"
    assert [] == bench.pump()
    begun = bench.registrar.batch("c", bench.now)

    assert begun is not None and begun.first


def bench_of_hundred() -> Bench:
    """Four members, and a hundred kept sessions that their keepers have heard of."""
    bench = Bench()
    for name in ("c", "d"):
        bench.join(name)
    for number in range(100):
        bench.registrar.set(kept(number))
    bench.pump()
    return bench


def test_only_ids_with_other_keepers_are_news() -> None:
    """To the keeper that they have now, and to the one that they had; a list is not begun anew."""
    bench = bench_of_hundred()
    before = {number: bench.members.keepers(f"c{number}") for number in range(100)}
    bench.join("e")
    sent = bench.pump()
    lost = {n for n in before if "b" in before[n] and "b" not in bench.members.keepers(f"c{n}")}

    assert lost and not any(batch.entries or batch.first for batch in sent)
    assert {f"c{n}" for n in lost} == {one.client_id for batch in sent for one in batch.ended}
    assert all((bench.there(n) is None) == (n in lost or "b" not in before[n]) for n in before)

    for members in (bench.members, bench.keeper._members):
        members.remove("e")
    sent = bench.pump()
    back = {entry.client_id for batch in sent for entry in batch.entries}
    assert {f"c{n}" for n in lost} == back
    assert [True] == [batch.last for batch in sent if batch.catching_up][-1:]
    assert not bench.registrar.is_moving


@pytest.mark.parametrize("way", ["drop", "give_away"])
def test_what_ends_before_a_change_is_worked_off_has_ended_where_it_was_kept(way: str) -> None:
    """The keepers of before are told, though nothing is here any more when it is looked at."""
    bench = bench_of_hundred()
    before = [number for number in range(100) if bench.there(number) is not None]
    bench.join("e")
    for number in range(100):
        if way == "drop":
            bench.registrar.drop(f"c{number}")
        else:
            bench.registrar.register_move(kept(number, "e", 2))
    bench.pump()
    lost = [number for number in before if "b" not in bench.members.keepers(f"c{number}")]

    assert lost and [None] * len(lost) == [bench.there(number) for number in lost]


def test_what_went_to_a_node_that_was_removed_is_not_told() -> None:
    """Nobody would ever deny it."""
    bench = Bench()
    bench.pump()
    bench.registrar.register_move(kept(1, "b", 2))
    bench.registrar.register_move(kept(2, "c", 2))
    bench.registrar.forget_node("b")

    assert ["c2"] == list(bench.registrar.gone)
    assert bench.registrar.is_known("c1")


def test_a_change_is_worked_off_in_slices() -> None:
    """What is asked for meanwhile is brought up to date first."""
    bench = Bench()
    for name in ("c", "d", "e"):
        bench.join(name)
    for number in range(3 * SLICE):
        bench.registrar.set(kept(number))
    bench.pump()
    bench.join("f")
    assert bench.registrar.is_moving
    slices = 0
    while bench.registrar.advance():
        slices += 1

    assert 3 <= slices <= 5
    for number in range(3 * SLICE):
        assert bench.registrar._placement.keepers(f"c{number}") == bench.members.keepers(
            f"c{number}"
        )


def test_who_went_while_a_change_is_worked_off_is_worked_off_too() -> None:
    """And the last word is said when all has been said."""
    bench = Bench()
    for name in ("c", "d", "e", "f"):
        bench.join(name)
    for number in range(3 * SLICE):
        bench.registrar.set(kept(number))
    bench.pump()
    for name in ("e", "f"):
        for members in (bench.members, bench.keeper._members):
            members.remove(name)
        bench.registrar.advance()
    batch = bench.batch()
    assert batch is not None and batch.catching_up and not batch.last
    bench.answer(batch)
    sent = bench.pump()

    assert sent[-1].catching_up and sent[-1].last
    assert all(
        bench.there(number) == kept(number)
        for number in range(3 * SLICE)
        if "b" in bench.members.keepers(f"c{number}")
    )


def test_too_much_news_become_a_list() -> None:
    """Memory is bounded while a keeper is away."""
    bench = Bench()
    bench.pump()
    batch = bench.batch()
    for number in range(PENDING + 1):
        bench.registrar.set(kept(number))
        bench.registrar.drop(f"c{number}")
    assert batch is None
    sent = bench.pump()

    assert sent[0].first and sent[-1].last
    assert not any(batch.ended for batch in sent)


def test_what_ends_while_it_is_listed_has_ended() -> None:
    """And what begins meanwhile is told after the list."""
    bench = Bench()
    for number in range(3):
        bench.registrar.set(kept(number))
    first = bench.batch()
    assert first is not None and first.first
    bench.answer(first)
    listing = bench.batch()
    assert listing is not None
    bench.registrar.drop("c0")
    bench.registrar.set(kept(7))
    bench.answer(listing)
    bench.pump()

    assert [None, kept(1), kept(2)] == [bench.there(number) for number in range(3)]
    assert bench.there(7) == kept(7)


def test_ids_that_are_on_their_way_are_kept() -> None:
    """There is an entry for them before there is anything to say."""
    bench = Bench()
    bench.keeper.entries.store(kept(1))
    bench.kept.append("c1")
    bench.pump()

    assert bench.there() == kept(1)


def test_signs_of_life_while_something_is_kept_there() -> None:
    """One in a while; none where nothing is."""
    bench = Bench()
    bench.pump()
    bench.now += 10
    assert bench.batch() is None
    bench.registrar.set(kept(1))
    bench.pump()
    assert bench.batch() is None
    bench.now += PULSE
    (sign,) = bench.pump()

    assert not (sign.entries or sign.ended or sign.sync)


def test_what_was_given_away_is_told_until_a_majority_knows() -> None:
    """Here, both of two keepers; one that knows better knows."""
    bench = Bench()
    bench.pump()
    bench.registrar.set(kept(1))
    bench.registrar.register_move(kept(1, "c", 2))
    assert not bench.known and not bench.registrar.is_known("c1")
    bench.keeper.entries.store(kept(1, "d", 3))
    bench.pump()

    assert ["c1"] == bench.known
    assert bench.registrar.is_known("c1")
    assert bench.here.get("c1") == kept(1, "c", 2)


def test_a_session_that_came_back_is_its_own_again() -> None:
    """What it was given away as is not told any more."""
    bench = Bench()
    bench.registrar.register_move(kept(1, "c", 2))
    bench.registrar.set(kept(1, "a", 3))
    bench.pump()

    assert bench.there() == kept(1, "a", 3)


def test_conflicts_here_are_told_at_once() -> None:
    """This node is a keeper like the others."""
    bench = Bench()
    bench.here.store(kept(1, "z", 5))
    bench.registrar.set(kept(1))

    assert [(kept(1, "z", 5), False)] == bench.conflicts


def test_conflicts_there_are_in_the_answer() -> None:
    """With those of sessions that have ended apart."""
    bench = Bench()
    bench.pump()
    bench.keeper.entries.store(kept(1, "z", 5))
    bench.keeper.entries.store(kept(2, "y", 4))
    bench.keeper.entries.store(kept(2, "z", 5))
    bench.keeper.entries.end("c2", "z", 5)
    for number in (1, 2):
        bench.registrar.set(kept(number))
    batch = bench.batch()
    assert batch is not None
    reply = bench.answer(batch)

    assert ((kept(1, "z", 5),), (kept(2, "z", 5),)) == (reply.conflicts, reply.past)


def test_a_keeper_without_room_is_asked_again_later() -> None:
    """What found none is not forgotten."""
    bench = Bench()
    bench.pump()
    bench.keeper.entries._limit = 0
    bench.registrar.set(kept(1))
    bench.pump()
    assert not bench.registrar.is_told("c1")
    bench.keeper.entries._limit = 10
    bench.now += 10
    bench.pump()

    assert bench.there() == kept(1)


def test_relays_for_a_keeper_that_needs_them() -> None:
    """What is kept here for others goes along with the list of one that is not settled."""
    bench = Bench()
    bench.here.store(kept(1, "dead", 4))
    bench.here.store(DirectoryEntry(client_id="c2", node="dead", incarnation=1, persistent=False))
    bench.keeper._members.is_settled = False
    sent = bench.pump()

    assert [(kept(1, "dead", 4),)] == [batch.relayed for batch in sent if batch.relayed]
    assert bench.there() == kept(1, "dead", 4)


def test_after_a_start_what_is_kept_here_agrees() -> None:
    """Entries of sessions that are gone go, what is arriving stays."""
    bench = Bench()
    for number in (1, 2, 3):
        bench.here.store(kept(number))
    bench.kept.append("c2")
    bench.registrar.own["c3"] = kept(3)
    bench.registrar.start()

    assert [None, kept(2), kept(3)] == [bench.here.get(f"c{n}") for n in (1, 2, 3)]


def test_who_is_not_reached_before_a_move_is_forgotten_hears_of_the_end() -> None:
    """Of what was here before."""
    bench = Bench()
    bench.registrar.set(kept(1))
    bench.pump()
    bench.registrar.register_move(kept(1, "c", 2))
    bench.registrar.forget("c1")
    bench.pump()

    assert bench.there() is None


def test_what_is_denied_came_behind_a_move() -> None:
    """It came back, and has ended: where it went before is no answer to that."""
    bench = Bench()
    bench.pump()
    bench.registrar.register_move(kept(1, "c", 2))
    bench.keeper.entries.store(kept(1, "a", 3), is_hearsay=True)
    bench.registrar.deny(kept(1, "a", 3))
    bench.pump()

    assert bench.there() is None
