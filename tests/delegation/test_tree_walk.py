"""
The walk over the nodes of a tree: everybody is asked once, and each zone has one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
from hypothesis import given
from hypothesis import strategies as st

from txbroker.delegation.delegation_table import Delegation
from txbroker.delegation.resolution import start_at
from txbroker.delegation.tree_walk import NodeAnswer, TreeWalk
from txbroker.model.zone_cut import ZoneCut

from .zone_trees import APEXES, ZoneTree, cut_of, zone_trees


def around(node: NodeAnswer) -> Iterable[ZoneCut]:
    """All zones that a node tells of."""
    return (*node.lineage, *node.below, *node.edges, *node.reclaimed)


def run(
    start: ZoneCut, ask: Callable[[ZoneCut], NodeAnswer | None]
) -> tuple[TreeWalk, list[ZoneCut]]:
    """Walk to the end; the walk, and whom it asked."""
    walk, asked = TreeWalk([start], around), list[ZoneCut]()
    while queries := walk.next_queries():
        asked += queries
        for cut in queries:
            walk.accept_answer(cut, ask(cut))
    return walk, asked


@given(zone_trees(with_away=True), st.data())
def test_every_node_is_asked_once_from_any_node(tree: ZoneTree, data: st.DataObject) -> None:
    """The nodes that gave no answer are told apart."""
    start = data.draw(st.sampled_from(sorted(tree.apexes - tree.away)))

    walk, asked = run(cut_of(start), lambda cut: tree.status(cut.apex))

    assert sorted(tree.apexes) == sorted(cut.apex for cut in asked)
    assert sorted(tree.away) == sorted(cut.apex for cut in walk.missing())
    assert tree.apexes - tree.away == {node.own.apex for node in walk.answers.values()}


@given(zone_trees(with_away=True), st.data())
def test_each_zone_has_one_place(tree: ZoneTree, data: st.DataObject) -> None:
    """Below the node above it, in order of the tree, whoever of them is away."""
    top = data.draw(st.sampled_from(sorted(tree.apexes - tree.away)))
    walk, _ = run(cut_of(top), lambda cut: tree.status(cut.apex))

    places = walk.places(cut_of(top))

    expected = sorted([top, *(cut.apex for cut in tree.below(top))], key=lambda a: a.split("/"))
    assert expected == [place.zone for place in places]
    for place in places:
        apex = place.zone or ""
        assert cut_of(apex) == place.cut
        assert place.is_alive == (apex not in tree.away) == (place.answer is not None)
        assert place.parent == (tree.lineage(apex)[-1].node if apex else None)


CUTS = st.builds(
    ZoneCut,
    apex=APEXES,
    epoch=st.integers(0, 2),
    node=st.sampled_from(["", "x", "y", "z"]),
    grpc=st.sampled_from(["p:1", "q:1"]),
)
CHILDREN = st.builds(Delegation, cut=CUTS, below=st.lists(CUTS, max_size=3).map(tuple))
ANSWERS = st.builds(
    NodeAnswer,
    own=CUTS,
    owns_zone=st.booleans(),
    serves=st.booleans(),
    lineage=st.lists(CUTS, max_size=3).map(tuple),
    zones=st.lists(CHILDREN, max_size=3).map(tuple),
    edges=st.lists(CUTS, max_size=2).map(tuple),
)


@given(st.data())
def test_a_walk_ends_whatever_nodes_say(data: st.DataObject) -> None:
    """A name is asked once at an address; each zone has a place at the most."""
    walk, asked = run(start_at("p:1"), lambda cut: data.draw(st.one_of(st.none(), ANSWERS)))

    assert len(asked) == len({(cut.node, cut.grpc) for cut in asked}) <= 8
    for node in list(walk.answers.values()):
        zones = [place.zone for place in walk.places(node.own) if place.zone is not None]
        assert len(zones) == len(set(zones))


def test_another_node_at_the_address_is_no_answer() -> None:
    """Nor is what it tells of others taken for true."""
    stranger = NodeAnswer(own=attrs.evolve(cut_of("z"), node="stranger"), lineage=(cut_of("y"),))
    tree = ZoneTree(frozenset({"", "a", "a/b"}))

    walk, asked = run(
        start_at("root:1"), lambda cut: stranger if cut.apex == "a" else tree.status(cut.apex)
    )

    assert ["a"] == [cut.apex for cut in walk.missing()]
    assert ["", "a", "a/b"] == [cut.apex for cut in asked]
    alive = {place.zone: place.is_alive for place in walk.places(cut_of(""))}
    assert {"": True, "a": False, "a/b": True} == alive


def test_a_node_without_its_zone_is_not_believed_about_it() -> None:
    """It answers, and the word of the zone above stands, with the epoch that is known there."""
    tree = ZoneTree(frozenset({"", "a", "a/b"}))
    waiting = NodeAnswer(own=cut_of("a", 9), serves=False, edges=(cut_of("edge"),))

    walk, _ = run(cut_of(""), lambda c: waiting if c.apex == "a" else tree.status(c.apex))

    _, place, below = walk.places(cut_of(""))
    assert ("a", 1, False) == (place.zone, place.cut.epoch, place.is_alive)
    assert place.answer is waiting
    assert ("a/b", True, "n-a") == (below.zone, below.is_alive, below.parent)


def test_an_epoch_is_that_of_the_owner() -> None:
    """Its parent's word may be older."""
    newer = NodeAnswer(own=cut_of("a", 9))
    tree = ZoneTree(frozenset({"", "a"}))
    walk, _ = run(cut_of(""), lambda c: newer if c.apex == "a" else tree.status(c.apex))

    assert [1, 9] == [place.cut.epoch for place in walk.places(cut_of(""))]


def test_pure_edges_come_last() -> None:
    """Each with the node that it joined."""
    edge = ZoneCut(apex="", epoch=0, node="e", grpc="e:1")
    tree = ZoneTree(frozenset({"", "a"}))

    def ask(cut: ZoneCut) -> NodeAnswer | None:
        if cut.node == "e":
            return NodeAnswer(own=edge, owns_zone=False, serves=False)
        answer = tree.status(cut.apex)
        return attrs.evolve(answer, edges=(edge,)) if answer and cut.apex == "a" else answer

    walk, _ = run(cut_of(""), ask)

    places = [(p.zone, p.cut.node, p.parent, p.is_alive) for p in walk.places(cut_of(""))]
    assert ("a", "n-a", "n-root", True) == places[1]
    assert [(None, "e", "n-a", True)] == places[2:]
    assert [(None, "e", None, True)] == [
        (p.zone, p.cut.node, p.parent, p.is_alive) for p in run(edge, ask)[0].places(edge)
    ]
