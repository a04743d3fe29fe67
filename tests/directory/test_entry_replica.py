"""A keeper says that it knows of no session only when it would know."""

from __future__ import annotations

from typing import Any

import attrs

from tests.support.checking import checking
from tests.support.keeping import MemoryTable
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.entry_replica import EntryReplica
from txbroker.directory.entry_table import EntryTable
from txbroker.directory.members import Member, Members
from txbroker.directory.requests import (
    Answer,
    Answers,
    Claim,
    Claimed,
    Ended,
    Lookup,
    OtherView,
    Register,
    Registered,
)

checked = checking(EntryReplica)

LIFE = 4


def kept(node: str, incarnation: int, client_id: str = "x") -> DirectoryEntry:
    return DirectoryEntry(client_id=client_id, node=node, incarnation=incarnation, persistent=True)


class Bench:
    """The keeper `a`, among these members; not the root unless it is alone."""

    def __init__(self, *others: str, table: MemoryTable | None = None) -> None:
        self.table = table or MemoryTable()
        self.members = Members("a", "", self.table, is_root=not others)
        self.members.announce("a:1")
        self.keeper = EntryReplica(self.members, EntryTable(MemoryTable()), LIFE)
        self.add(*others)

    def add(self, *others: str) -> None:
        if others:
            self.members.merge_list(Member(name=n, grpc="b:1", site="", version=1) for n in others)

    def register(self, source: str, **fields: Any) -> Registered | OtherView:
        batch = Register(
            view=self.members.view, established=True, life=1, keeper_life=LIFE, **fields
        )
        return self.keeper.register(source, batch)

    def list(
        self, source: str, *entries: DirectoryEntry, established: bool = True, sync: int = 1
    ) -> None:
        self.register(source, sync=sync, first=True)
        batch = Register(
            view=self.members.view,
            established=established,
            life=1,
            keeper_life=LIFE,
            sync=sync,
            last=True,
            entries=entries,
        )
        assert isinstance(self.keeper.register(source, batch), Registered)

    @property
    def is_settled(self) -> bool:
        return self.keeper.find("unknown").settled


def test_a_root_that_is_alone_is_settled() -> None:
    """It knows all there is."""
    assert Bench().is_settled


def test_a_node_that_was_told_nothing_is_not() -> None:
    """It may be one of many."""
    bench = Bench("b")
    alone = Bench()
    alone.members.is_joined = False

    assert not bench.is_settled


def test_one_list_of_two_may_be_missing() -> None:
    """Not the only one, and not if no list is worth anything."""
    two, three = Bench("b"), Bench("b", "c")
    three.list("b")
    assert not two.is_settled and three.is_settled
    two.list("b")
    assert two.is_settled

    nobody = Bench("b", "c")
    nobody.list("b", established=False)
    assert not nobody.is_settled
    nobody.list("c", established=False)
    assert nobody.is_settled


def test_a_list_of_another_view_counts_for_nothing() -> None:
    """The members of it may have promised something under the new one."""
    bench = Bench("b", "c", "d")
    bench.list("b")
    assert not bench.is_settled
    bench.add("e")
    bench.list("c")
    assert not bench.is_settled
    bench.list("b")
    bench.list("d")
    assert bench.is_settled


def test_a_removal_asks_for_new_lists() -> None:
    """Ids of the one that went have a new keeper; an addition has none."""
    bench = Bench("b", "c", "d")
    for name in ("b", "c", "d"):
        bench.list(name)
    bench.add("e")
    assert bench.is_settled
    bench.members.remove("e")
    assert not bench.is_settled
    again = Bench(table=bench.table)
    assert not again.is_settled


def test_who_missed_that_a_member_went_and_came_back_says_everything_again() -> None:
    """To them the view is as it was; what they told this keeper before does not count any more."""
    bench = Bench("b", "c", "d")
    bench.list("b")
    told = bench.register("b")
    bench.members.remove("d")
    bench.members.merge([Member(name="d", grpc="b:1", site="", version=3)])
    again = bench.register("b")
    bench.list("b")
    then = bench.register("b")

    found = [one.restart for one in (told, again, then) if isinstance(one, Registered)]
    assert [False, True, False] == found


def test_those_who_see_other_members_get_no_answer() -> None:
    """But the members, so that they can come to agree."""
    bench = Bench("b")
    for answer in (
        bench.keeper.lookup(Lookup(view=b"other", client_ids=("x",))),
        bench.keeper.claim("b", Claim(view=b"other", entry=kept("b", 1))),
        bench.keeper.register(
            "b", Register(view=b"other", established=True, life=1, keeper_life=LIFE)
        ),
    ):
        assert answer == OtherView(view=bench.members.view, members=bench.members.all)
    assert bench.keeper.find("x").entry is None


def test_lookups_are_answered_without_wills() -> None:
    """A will is nobody's concern but the keepers'."""
    bench = Bench("b")
    bench.list("b", kept("b", 3))
    reply = bench.keeper.lookup(Lookup(view=bench.members.view, client_ids=("x", "y")))

    assert reply == Answers(
        answers=(Answer(settled=True, entry=kept("b", 3), generation=3), Answer(settled=True))
    )


def test_a_claim_is_the_claimants() -> None:
    """Whatever its entry says."""
    bench = Bench("b", "c")
    claim = Claim(view=bench.members.view, entry=kept("c", 1))

    assert bench.keeper.claim("b", claim) == Claimed()
    assert bench.keeper.find("x").entry == kept("b", 1)


def test_what_others_tell_during_a_list_does_not_end_with_it() -> None:
    """A session that arrives while its new node sends its list, and one that it claims."""
    bench = Bench("b", "c")
    bench.list("c")
    bench.register("b", sync=1, first=True)
    bench.register("c", entries=(kept("b", 2),))
    bench.keeper.claim("b", Claim(view=bench.members.view, entry=kept("b", 1, "y")))
    bench.register("b", sync=1, last=True)

    assert bench.keeper.find("x").entry == kept("b", 2)
    assert bench.keeper.find("y").entry == kept("b", 1, "y")
    bench.list("b", sync=2)
    assert bench.keeper.find("x").entry is None


def test_late_claim_of_an_earlier_session_renews_nothing() -> None:
    """The session of a later claim has ended with the node's process: only its list tells that."""
    bench = Bench("b")
    bench.list("b")
    bench.register("b", entries=(kept("b", 2),))
    bench.register("b", sync=2, first=True)
    claim = Claim(view=bench.members.view, entry=kept("b", 1))
    assert Claimed(conflict=kept("b", 2)) == bench.keeper.claim("b", claim)
    bench.register("b", sync=2, last=True)

    assert bench.keeper.find("x").entry is None


def test_late_word_of_a_member_that_was_removed_counts_for_nothing() -> None:
    """Its sessions went with it, and it will never deny them."""
    bench = Bench("b", "c")
    for name in ("b", "c"):
        bench.list(name)
    bench.members.remove("c")
    bench.list("b", sync=2)
    bench.register("b", entries=(kept("c", 3),), relayed=(kept("c", 3, "y"),))

    assert (bench.keeper.find("x").entry, bench.keeper.find("y").entry) == (None, None)


def test_a_keeper_in_a_new_life_asks_for_the_whole_list() -> None:
    """It has forgotten connections, and where a list was."""
    bench = Bench("b")
    bench.register("b", sync=1, first=True)
    other = attrs.evolve(
        Register(view=bench.members.view, established=True, life=1, keeper_life=LIFE - 1),
        entries=(kept("b", 1),),
    )

    for reply in (
        bench.keeper.register("b", other),
        bench.register("b", sync=2, last=True),
    ):
        assert isinstance(reply, Registered) and reply.restart
    assert bench.keeper.find("x").entry is None


def test_a_claim_is_asked_about_until_its_session_is_registered() -> None:
    """It may come when its node has given it up. A late one undoes nothing that is registered."""
    bench = Bench("b")
    bench.list("b")
    claim = Claim(view=bench.members.view, entry=kept("b", 1))
    bench.keeper.claim("b", claim)
    assert bench.keeper.entries.hearsay("b", 9) == (kept("b", 1),)

    bench.register("b", entries=(kept("b", 1),))
    bench.keeper.claim("b", claim)
    assert bench.keeper.entries.hearsay("b", 9) == ()


def test_a_claim_of_the_node_itself_is_asked_about_too() -> None:
    """The node may be no keeper any more when it withdraws the claim."""
    bench = Bench("b")
    bench.keeper.claim("a", Claim(view=bench.members.view, entry=kept("a", 1)))
    assert bench.keeper.entries.hearsay("a", 9) == (kept("a", 1),)

    bench.keeper.entries.store(kept("a", 1))
    assert bench.keeper.entries.hearsay("a", 9) == ()


def test_a_batch_that_comes_after_a_later_one_says_nothing() -> None:
    """Its session has ended since. One that comes twice is answered twice."""
    bench = Bench("b", "c")
    bench.list("b")
    ended = Ended(client_id="x", generation=1)
    bench.register("b", number=4, ended=(ended,))
    late = bench.register("b", number=3, entries=(kept("b", 1),))
    assert isinstance(late, Registered) and not late.restart
    assert bench.keeper.find("x").entry is None

    for _ in range(2):
        bench.register("b", number=5, entries=(kept("b", 2),))
        assert bench.keeper.find("x").entry == kept("b", 2)
    assert isinstance(bench.register("c", number=1, sync=1, first=True), Registered)


def test_a_list_with_a_lower_number_is_believed_until_a_greater_one_comes() -> None:
    """
    A node that lost its disk numbers anew: what the keeper knew of it is asked about. If the list
    only came late, the node sends all again. What a late list names is asked about, too: the node
    may send nothing more.
    """
    bench = Bench("b", "c")
    bench.register("b", number=7, sync=1, first=True)
    bench.register("b", number=8, sync=1, entries=(kept("b", 1),), last=True)
    bench.register("b", number=2, sync=1, first=True)
    bench.register("b", number=3, sync=1, entries=(kept("b", 1, "y"),), last=True)
    assert bench.keeper.entries.hearsay("b", 9) == (kept("b", 1), kept("b", 1, "y"))
    assert bench.keeper.find("y").entry == kept("b", 1, "y")

    reply = bench.register("b", number=9)
    assert isinstance(reply, Registered) and reply.restart
    bench.register("b", number=10, sync=9, first=True)
    bench.register("b", number=11, sync=9, last=True)
    assert (bench.keeper.find("x").entry, bench.keeper.find("y").entry) == (None, None)
    assert bench.register("b", number=12) == Registered(life=LIFE, settled=True)
