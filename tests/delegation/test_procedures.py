"""
Crash and message loss between any two steps of a join, a handover and a hand-back.

Whatever happens at whichever moment: one node serves a topic at a time, an epoch has one owner, no
acknowledged publish is lost, and when the faults are over the node that shall have the zone has it.
"""

from __future__ import annotations

import itertools
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.delegation.simulated_tree import Fault, Tree
from tests.delegation.simulated_zone import Disk
from tests.support.recorders import cut
from txbroker.delegation.grant_state import KnownParent, KnownRoot, Strays
from txbroker.delegation.join_child import ParentStrange
from txbroker.delegation.join_messages import AnsweringNode, JoinGranted, ParentAnswer
from txbroker.delegation.join_rules import JoinRefused
from txbroker.delegation.peer_checks import AHEAD
from txbroker.delegation.procedure import ReceiveMessage, SendMessage
from txbroker.model.errors import PeerError
from txbroker.model.log_position import JournalId

KINDS = ("kill", "break", "full", "crowd")
NODES = ("root", "child")
HEALED = 60.0
"""Seconds in which a tree heals: some steps have ten seconds for an answer that was lost."""


def check_joined(tree: Tree) -> None:
    """The child serves the zone, and what was acknowledged is there."""
    root, child = tree.root, tree.child
    assert child.zone.accepts("z/x") and not root.zone.accepts("z/x")
    delegated = root.node_grant.table.get("z")
    assert delegated is not None and delegated.cut.epoch == child.zone.epoch
    assert not tree.lost() and len(tree.acknowledged) > 10
    assert child.node_grant.absorbing is None
    committed = [fields for name, fields in root.log if name == "handover.committed"]
    assert [fields["epoch"] for fields in committed] in ([], [child.zone.epoch])


def check_returned(tree: Tree) -> None:
    """The root serves the zone, and what was acknowledged is there; the child has ended."""
    root, child = tree.root, tree.child
    assert not child.is_up and (child.disk.state.fenced or not child.disk.state.serving)
    assert root.zone.accepts("z/x") and root.node_grant.table.get("z") is None
    assert not tree.lost() and len(tree.acknowledged) > 10
    assert root.node_grant.absorbing is None


def join(*faults: Fault, seed: int) -> Tree:
    """Start the tree."""
    tree = Tree(seed, *faults)
    tree.start()
    return tree


def retire(*faults: Fault, seed: int) -> Tree:
    """Let the child retire after it has joined."""
    tree = join(seed=seed)
    tree.clock.run(2.0)
    check_joined(tree)
    tree.arm(faults)
    tree.retire_child()
    return tree


FLOWS = {
    "join": (join, check_joined, {"root SendMessage", "child SaveReceivedZone", "root saved"}),
    "retire": (retire, check_returned, {"child SendMessage", "root AwaitStored", "root saved"}),
}
"""Of each flow: how it begins, how it must end, and some moments that it has to pass."""


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_each_moment(kind: str, node: str, flow: str) -> None:
    """A fault before the parent's commit rolls back, one after the commit rolls forward."""
    begin, check, expected = FLOWS[flow]
    places = set()
    for at in itertools.count(1):
        # All trees have one history up to the fault, so no moment is left out.
        tree = begin(Fault(kind, node, at), seed=1)
        tree.clock.run(HEALED)
        check(tree)
        if not tree.struck:
            break
        places.add(tree.struck[0].place)
    assert expected <= places


def test_zone_is_served_on_after_a_handover_that_was_rolled_back() -> None:
    """By the parent, until the child asks again."""
    rolled_back = 0
    for at in range(1, 40):
        tree = join(Fault("break", "child", at), seed=1)
        while tree.clock.now < 1.0 and "handover.rolled_back" not in dict(tree.root.log):
            tree.clock.run(0.001)
        if "handover.rolled_back" in dict(tree.root.log):
            rolled_back += 1
            assert tree.root.zone.accepts("z/x")
    assert rolled_back > 1


@pytest.mark.parametrize("flow", FLOWS)
def test_parent_that_has_lost_its_own_zone_commits_nothing(flow: str) -> None:
    """At whichever moment it loses that; its disk may be about to take the commit."""
    begin, _, _ = FLOWS[flow]
    for at in itertools.count(1):
        tree = begin(Fault("lose", "root", at), seed=1)
        tree.clock.run(HEALED)
        if not tree.struck:
            break
        is_committing = tree.struck[0].place.startswith("root save")
        if tree.was_delegated is not None and not is_committing:
            is_delegated = tree.root.node_grant.table.get("z") is not None
            assert is_delegated == tree.was_delegated, tree.struck[0].place


def test_what_a_parent_took_for_a_zone_that_it_had_forgotten_is_handed_on() -> None:
    """It has lost its disk, and its child comes after the first publish."""
    tree = join(seed=1)
    tree.clock.run(2.0)
    check_joined(tree)
    root, child = tree.root, tree.child
    tree.look = lambda: None  # type: ignore[method-assign]  # two nodes serve the zone meanwhile
    root.stop()
    root.disk = Disk(root)
    root.start()
    root.zone.publish("z/x", 1, lambda _: None)
    tree.clock.run(HEALED)

    assert child.zone.accepts("z/x") and not root.zone.accepts("z/x")
    assert [Strays(apex="z", after=0, through=root.zone.offset)] == root.collected
    assert root.zone.retained.get("z/x") is None


@pytest.mark.parametrize(
    ("who", "is_parent"),
    [
        (AnsweringNode(node="other", zone="y", identity="other", life="1"), False),
        (AnsweringNode(node="other", zone="", identity="other", life="1"), False),
        (AnsweringNode(node="root", zone="", identity="lost disk", life="1"), True),
        (AnsweringNode(node="root", zone="", identity="root", life="1"), True),
        (None, False),
    ],
)
def test_a_refusal_counts_from_the_parent_alone(who: AnsweringNode | None, is_parent: bool) -> None:
    """Nodes may exchange their addresses: a stranger's would fence a healthy zone."""
    tree = join(seed=1)
    tree.clock.run(2.0)
    child = tree.child
    known = KnownParent(grpc="root:1", node="root", zone="", identity="root")
    child.node_grant.record_parent(known)
    refused = JoinRefused(reason="not mine")
    steps = child.child_half.ask("root:1")
    assert isinstance(next(steps), SendMessage)
    assert isinstance(steps.send(None), ReceiveMessage)
    with pytest.raises(StopIteration) as end:
        steps.send(ParentAnswer(answer=refused, who=who))

    strange = ParentStrange(peer="" if who is None else who.node)
    assert end.value.value == (refused if is_parent else strange)


def test_a_copy_that_had_confirmed_its_handover_goes_on_behind_its_later_life() -> None:
    """
    The copy was made before the grant, so it never held the epoch at which its later life served.

    The zone below, which that life delegated, stays another node's. Edges that followed that life
    find the epoch behind it, at the parent as at the child.
    """
    tree = join(seed=1)
    root, child = tree.root, tree.child
    while child.disk.received is None:
        tree.clock.run(0.01)
    copied, received = child.disk.state, child.disk.received
    tree.clock.run(2.0)
    before = child.zone.epoch
    below = cut("z/y", 1, "below")
    child.node_grant.table.commit(below)
    child.node_grant.save()
    assert root.node_grant.table.store_cuts_below("z", before, [below])
    child.stop()
    child.disk.state = attrs.evolve(copied, restored=True)
    child.disk.received, child.disk.absorbed = received, ""
    child.start()
    tree.clock.run(HEALED)
    lost, now = JournalId("z", before), JournalId("z", child.zone.epoch)
    passages = [
        {(p.left.part, p.entered.part) for p in node.node_grant.table.passages()}
        for node in (root, child)
    ]

    assert (0, False) == (copied.epoch, copied.serving)
    assert now.epoch > before and child.zone.accepts("z/x") and not child.zone.accepts("z/y")
    assert [(lost, now) in some for some in passages] == [True, True]


FAR = AHEAD + 9
"""An epoch that is too far above all that the child knows."""

GRANTS: dict[str, dict[str, Any]] = {
    "zone beside in the lineage": {"lineage": (cut(""), cut("y"))},
    "epoch of the lineage": {"lineage": (cut("", FAR),)},
    "end of a zone beside": {"ended": {"y": 1}},
    "epoch of an end": {"ended": {"": FAR}},
    "cut beside": {"below": (cut("y"),)},
    "epoch of a cut": {"below": (cut("z/x", FAR),)},
    "epoch of the zone": {"epoch": FAR},
    "epoch of the root": {"root": KnownRoot(zone="", epoch=FAR, identity="i")},
}


@pytest.mark.parametrize("lie", GRANTS)
def test_a_grant_is_checked_before_it_is_saved(lie: str) -> None:
    """
    What it tells of the tree stays for good: a lie would lead the child to a sibling, say.

    The child's data is a copy, so that any later epoch may be its own.
    """
    tree = join(seed=1)
    tree.clock.run(2.0)
    child = tree.child
    child.stop()
    child.disk.state = attrs.evolve(child.disk.state, restored=True)
    child.start()
    before = child.disk.state
    steps = child.child_half.ask("root:1")
    assert isinstance(next(steps), SendMessage)
    assert isinstance(steps.send(None), ReceiveMessage)
    granted: dict[str, Any] = {"epoch": before.epoch + 1, "lineage": (cut(""),), **GRANTS[lie]}
    who = AnsweringNode(node="root", zone="", identity="root", life="1")
    with pytest.raises(PeerError):
        steps.send(ParentAnswer(answer=JoinGranted(**granted), who=who))

    assert before == child.disk.state


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(sorted(FLOWS)),
    st.integers(0, 2**32),
    st.lists(
        st.builds(Fault, st.sampled_from(KINDS), st.sampled_from(NODES), st.integers(1, 60)),
        max_size=6,
    ),
)
def test_several_faults(flow: str, seed: int, faults: list[Fault]) -> None:
    """A node may die again while another fault heals."""
    begin, check, _ = FLOWS[flow]
    tree = begin(*faults, seed=seed)
    tree.clock.run(5 * HEALED)
    check(tree)
