"""
The walk to the owners of a topic or filter: it finds them all, and ends whatever nodes say.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txbroker.delegation.resolution import AnswerKind, Resolution, ResolutionError, ZoneAnswer
from txbroker.model.topics import is_below, is_filter_within
from txbroker.model.zone_cut import ZoneCut

from .zone_trees import APEXES, QUESTIONS, ZoneTree, cut_of, zone_trees

NodesAnswers = Callable[[ZoneCut], ZoneAnswer | None]

GONE = ZoneAnswer(kind=AnswerKind.NOT_AUTHORITATIVE, zone=cut_of("x"), ttl=1)


def run(walk: Resolution, ask: NodesAnswers, most: int = 1_000) -> list[list[str]]:
    """Walk to the end; the apexes of each round."""
    rounds = []
    while queries := walk.next_queries():
        rounds.append([cut.apex for cut in queries])
        assert sum(map(len, rounds)) <= most
        for cut in reversed(queries):  # answers come in any order
            walk.accept_answer(cut, ask(cut))
    return rounds


def honest(tree: ZoneTree, start: str, question: str) -> NodesAnswers:
    """What the nodes of a tree say; the first question goes to the node of `start`."""
    return lambda cut: tree.resolve(cut.apex if cut.node else start, question)


def refers(apex: str, *cuts: ZoneCut) -> ZoneAnswer:
    """The answer of a zone that delegates these."""
    return ZoneAnswer(kind=AnswerKind.REFERRAL, zone=cut_of(apex), ttl=1, referrals=cuts)


@given(zone_trees(), QUESTIONS, st.data())
def test_every_owner_is_found_from_any_node(
    tree: ZoneTree, question: str, data: st.DataObject
) -> None:
    """And no other, each of them asked once, each round deeper than the last."""
    start = data.draw(st.sampled_from(sorted(tree.apexes)))
    walk = Resolution(question, "somewhere:1")

    rounds = run(walk, honest(tree, start, question))

    assert walk.is_complete
    assert sorted(tree.owners(question)) == sorted(cut.apex for cut in walk.owners)
    begin = 0 if is_filter_within(question, start) else 1
    for above, below in zip(rounds[begin + 1 :], rounds[begin + 2 :], strict=False):
        assert all(any(is_below(one, other) for other in above) for one in below)
    asked = [apex for level in rounds[begin:] for apex in level]
    assert len(asked) == len(set(asked))


@given(zone_trees(with_away=True), QUESTIONS, st.data())
def test_who_is_away_hides_what_is_below_and_nothing_else(
    tree: ZoneTree, question: str, data: st.DataObject
) -> None:
    """The walk is complete exactly when each owner was found."""
    start = data.draw(st.sampled_from(sorted(tree.apexes - tree.away)))
    walk = Resolution(question, "somewhere:1")
    run(walk, honest(tree, start, question))

    found, owners = {cut.apex for cut in walk.owners}, tree.owners(question)

    def is_reached(apex: str) -> bool:
        way = {apex, *(cut.apex for cut in tree.lineage(apex))}
        if is_filter_within(question, start):
            way = {one for one in way if one == start or is_below(one, start)}
        return not way & tree.away

    assert found == {apex for apex in owners if is_reached(apex)}
    assert not walk.is_complete or found == owners
    assert walk.is_complete or any(told.kind is AnswerKind.UNREACHABLE for _, told in walk.steps)


NAMES = st.sampled_from(["", "x", "y"])
EPOCHS = st.integers(0, 3)
LIES = st.builds(ZoneCut, apex=APEXES, epoch=EPOCHS, node=NAMES, grpc=NAMES)
MOST_LIES = 4
"""Cuts in an answer of a liar."""


@given(QUESTIONS, st.data())
def test_a_walk_ends_whatever_nodes_say(question: str, data: st.DataObject) -> None:
    """Lies about zones asked for are told well, so that walks get far."""

    def lie(asked: ZoneCut) -> ZoneAnswer | None:
        referrals = data.draw(st.lists(LIES, max_size=MOST_LIES))
        return data.draw(
            st.one_of(
                st.none(),
                st.builds(
                    ZoneAnswer,
                    kind=st.sampled_from(list(AnswerKind)[:3]),
                    zone=st.one_of(st.just(asked), LIES),
                    ttl=st.integers(0, 9),
                    is_local=st.booleans(),
                    referrals=st.just(tuple(c for c in referrals if is_below(c.apex, asked.apex))),
                    lineage=st.lists(LIES, max_size=MOST_LIES).map(tuple),
                ),
            )
        )

    # A start a cut of the first answer's lineage, and each apex at most once at each epoch.
    most = 1 + MOST_LIES + 4 * (1 + 3 + 9 + 27 + 81)
    try:
        run(Resolution(question, "liar:1"), lie, most)
    except ResolutionError:
        pass


@pytest.mark.parametrize("apex", ["", "a", "b", "ab"])
def test_a_referral_that_leads_nowhere_deeper_ends_the_walk(apex: str) -> None:
    """At a later step as at the first one."""
    walk = Resolution("a/x", "first:1")
    answers = {"": refers("", cut_of("a")), "a": refers("a", cut_of(apex))}

    with pytest.raises(ResolutionError) as caught:
        run(walk, lambda cut: answers[cut.apex])

    said = f"a:1 serves zone 'a' and refers to zone {apex!r}, which is not below it"
    assert f"{said}; the walk ends here" == str(caught.value)


def test_an_answer_about_another_zone_ends_the_walk() -> None:
    """What it says of that zone was not asked, and may lead up again."""
    walk = Resolution("a/x", "first:1")
    answers = {"": refers("", cut_of("a")), "a": refers("", cut_of("a/x"))}

    with pytest.raises(ResolutionError, match="about zone 'a' and answers about zone ''"):
        run(walk, lambda cut: answers[cut.apex])


def test_a_zone_that_two_owners_refer_to_is_asked_once() -> None:
    """Else each level of such zones doubles the questions."""
    walk = Resolution("#", "first:1")
    answers = {
        "": refers("", cut_of("a"), cut_of("a/b"), cut_of("a/b/c")),
        "a": refers("a", cut_of("a/b"), cut_of("a/b/c")),
        "a/b": refers("a/b", cut_of("a/b/c")),
        "a/b/c": refers("a/b/c"),
    }

    assert [[""], ["a", "a/b", "a/b/c"]] == run(walk, lambda cut: answers[cut.apex])


def test_a_referral_at_a_newer_epoch_is_followed() -> None:
    """The older one was of an owner that is no more."""
    walk = Resolution("#", "first:1")
    newer = attrs.evolve(cut_of("a/b", 2), grpc="new:1")
    answers = {
        "somewhere": refers("", cut_of("a"), cut_of("a/b")),
        "a:1": refers("a", newer),
        "a-b:1": GONE,
        "new:1": attrs.evolve(refers("a/b"), is_local=True),
    }

    run(walk, lambda cut: answers[cut.grpc if cut.node else "somewhere"])

    assert ["a/b"] == [cut.apex for cut in walk.owners]
    assert not walk.is_complete


@pytest.mark.parametrize("stale, is_complete", [(GONE, True), (None, False)], ids=["gone", "away"])
def test_a_climb_passes_over_starts_that_do_not_serve(
    stale: ZoneAnswer | None, is_complete: bool
) -> None:
    """The zone above knows better; one that is away may hide an owner."""
    tree = ZoneTree(frozenset({"", "a", "a/b"}))
    walk = Resolution("a/c", "first:1")
    start, *others = (tree.resolve(apex, "a/c") for apex in ("a/b", "", "a"))
    answers = iter([start, stale, *others])

    assert [[""], ["a"], [""], ["a"]] == run(walk, lambda cut: next(answers))
    assert ["a"] == [cut.apex for cut in walk.owners]
    assert walk.is_complete is is_complete


def test_a_node_that_knows_no_zone_above_is_no_start() -> None:
    """It says what to look at."""
    walk = Resolution("c/x", "first:1")
    alone = ZoneAnswer(kind=AnswerKind.NOT_AUTHORITATIVE, zone=cut_of("c", 0), ttl=1)

    with pytest.raises(ResolutionError) as caught:
        run(walk, lambda cut: alone)

    said = "first:1 knows no zone that covers 'c/x'; has it joined its parent?"
    assert said == str(caught.value)
