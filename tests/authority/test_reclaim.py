"""A subtree that was taken from a dead node: what edges get of it that nobody here has heard of."""

from __future__ import annotations

import attrs

from tests.support.journal import MemoryJournal, authority_of, authority_over, caught_up
from tests.support.recorders import EdgeRecorder, cut, payloads
from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import EdgeGreeting, EdgePeer, ReturnedZone
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.mqtt.wire.message import Message

HELLO = EdgeGreeting(edge="e", incarnation=1, filters=("y", "#"), stream=1)


class Parent:
    """The root zone, whose part `z` is another node's at epoch 3, with two records of its own."""

    def __init__(self) -> None:
        self.table = DelegationTable("")
        self.table.commit(cut("z", 3))
        self.authority: Authority
        self.journal: MemoryJournal
        self.authority, self.journal = authority_of("", self.table)
        self.authority.open(1)
        self.say("y", "y")

    def say(self, *topics: str) -> None:
        """A message for each topic, that says its offset."""
        for topic in topics:
            payload = str(self.authority.offset + 1).encode()
            self.authority.publish(Message(topic, payload, 1))

    def reclaim(self) -> None:
        self.table.reclaim("z", self.authority.delivered)
        self.authority.subtrees.reclaim("z", 3)

    def restart(self) -> None:
        self.authority = authority_over(self.journal, "", self.table)
        self.authority.open(1)

    def connect(self, hello: EdgeGreeting) -> tuple[EdgePeer, EdgeRecorder, list[str]]:
        """As a link does; with what the edge catches up with."""
        back = self.authority.reception.returned(hello)
        inherited = tuple(one.apex for one in back if one.is_inherited)
        port = EdgeRecorder()
        accepted = self.authority.reception.connect(attrs.evolve(hello, returned=inherited), port)
        found = payloads(r.message for r in caught_up(self.authority, accepted))
        assert accepted is not None
        return accepted[0], port, found

    def claim(self, peer: EdgePeer) -> list[str]:
        """The edge has heard of it."""
        claimed = self.authority.reception.sync(peer, ["#"], {"z": None})
        return payloads(r.message for r in caught_up(self.authority, (peer, claimed)))


TOLD = [ReturnedZone(apex="z", epoch=3, offset=2, is_inherited=False)]


def test_edge_that_is_here_is_told_and_gets_all_when_it_claims() -> None:
    """Its filters for the subtree come with the claim, and so do messages from before it."""
    parent = Parent()
    peer, port, _ = parent.connect(HELLO)
    parent.reclaim()
    parent.say("z/a", "y", "z/b")

    assert [("gone", "z", 3, 2), ("deliver", 4, "4")] == port.events
    assert ["3", "5"] == parent.claim(peer)
    parent.say("z/a")
    assert ("deliver", 6, "6") == port.events[-1]


def test_edge_that_nobody_knew_is_told_when_it_comes() -> None:
    """Nothing of the subtree comes before it claims; what it resumes of the rest does."""
    parent = Parent()
    parent.reclaim()
    parent.say("z/a", "y", "z/b")
    told = parent.authority.reception.returned(HELLO)
    peer, port, resumed = parent.connect(attrs.evolve(HELLO, position=1))
    parent.say("z/a", "y")

    assert (TOLD, ["2", "4"], [("deliver", 7, "7")]) == (told, resumed, port.events)
    assert ["3", "5", "6"] == parent.claim(peer)
    assert [] == parent.authority.reception.returned(HELLO)


def test_edge_that_has_heard_elsewhere_catches_up_at_once() -> None:
    """It asked who serves the zone, and claims with its Hello; since when, it is told."""
    parent = Parent()
    parent.reclaim()
    parent.say("z/a", "y")
    hello = attrs.evolve(HELLO, claims={"z": None})

    assert TOLD == parent.authority.reception.returned(hello)
    assert ["3"] == parent.connect(hello)[2]


def test_who_has_claimed_is_remembered_over_a_restart() -> None:
    """Others are told by the next process, too."""
    parent = Parent()
    parent.reclaim()
    peer, _, _ = parent.connect(HELLO)
    parent.claim(peer)
    parent.authority.reception.on_claimed(peer, ["z"])
    parent.restart()
    newer = attrs.evolve(HELLO, incarnation=2)

    assert [] == parent.authority.reception.returned(newer)
    assert TOLD == parent.authority.reception.returned(attrs.evolve(HELLO, edge="f"))


def test_edge_that_dies_before_it_is_done_is_told_again() -> None:
    """As nobody knows what of it was safe there."""
    parent = Parent()
    parent.reclaim()
    peer, _, _ = parent.connect(HELLO)
    parent.claim(peer)
    parent.connect(attrs.evolve(HELLO, incarnation=2))

    assert TOLD == parent.authority.reception.returned(attrs.evolve(HELLO, incarnation=2))


def test_nobody_is_told_when_the_subtree_is_delegated_again() -> None:
    """Nor is anything withheld of what comes back with its edges after that."""
    parent = Parent()
    parent.reclaim()
    parent.table.commit(cut("z", 5))

    assert [] == parent.authority.reception.returned(HELLO)
    peer, _, _ = parent.connect(HELLO)
    assert {} == peer.unclaimed


def test_journal_is_kept_for_edges_that_nobody_knows() -> None:
    """From where the subtree came back."""
    parent = Parent()
    parent.reclaim()

    assert "reclaimed z 2" in parent.journal.noted
