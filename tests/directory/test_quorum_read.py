"""What follows from the answers of keepers, in any order, with any of them missing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.quorum_read import Decision, NoSession, QuorumRead, SessionMayExist
from txbroker.directory.requests import Answer

KEEPERS = ("p", "q", "r")
MAY_EXIST = SessionMayExist.MAY_EXIST


def kept(node: str, incarnation: int) -> DirectoryEntry:
    return DirectoryEntry(client_id="x", node=node, incarnation=incarnation, persistent=True)


def clean(node: str, replaces: int) -> DirectoryEntry:
    return DirectoryEntry(
        client_id="x", node=node, incarnation=1, persistent=False, replaces=replaces
    )


def found(entry: DirectoryEntry, *, settled: bool = True) -> Answer:
    return Answer(settled=settled, entry=entry, generation=entry.generation)


NONE = Answer(settled=True)
CLEAN = NoSession(generation=3, clean=clean("a", 3))
UNSETTLED = Answer(settled=False)
ENDED = Answer(settled=True, generation=6)


def decide(*answers: Answer | None, void: dict[str, int] | None = None) -> Decision:
    lookup = QuorumRead(KEEPERS[: len(answers)], void or {})
    for keeper, answer in zip(KEEPERS, answers, strict=False):
        lookup.add_answer(keeper, answer)
    return lookup.decide()


@pytest.mark.parametrize(
    ("answers", "decision"),
    [
        ((NONE, NONE, None), NoSession(generation=0)),
        ((NONE, ENDED, None), NoSession(generation=6, is_named=True)),
        ((NONE, None, None), MAY_EXIST),
        ((NONE, UNSETTLED, None), MAY_EXIST),
        ((NONE, UNSETTLED, UNSETTLED), MAY_EXIST),
        ((None, None, None), MAY_EXIST),
        ((NONE,), NoSession(generation=0)),
        ((NONE, None), MAY_EXIST),
        ((found(kept("a", 1)), None, None), kept("a", 1)),
        ((found(kept("a", 1)), found(kept("b", 2)), NONE), kept("b", 2)),
        ((found(kept("a", 2), settled=False), None, None), kept("a", 2)),
        ((found(clean("a", 3)), NONE, None), CLEAN),
        ((found(clean("a", 3)), None, None), MAY_EXIST),
        (
            (found(clean("a", 3)), found(kept("b", 3)), None),
            NoSession(generation=3, clean=clean("a", 3)),
        ),
        ((found(clean("a", 3)), found(kept("b", 4)), None), kept("b", 4)),
    ],
)
def test_decisions(answers: tuple[Answer | None, ...], decision: Decision) -> None:
    """The greater entry counts; no session is only concluded from a settled majority."""
    assert decision == decide(*answers)


def test_what_its_node_denies_is_void() -> None:
    """Up to the incarnation that was asked about; what is left counts, with its generation."""
    answers = (found(kept("a", 3)), found(kept("b", 2)), NONE)

    assert decide(*answers, void={"a": 3}) == kept("b", 2)
    assert decide(*answers, void={"a": 3, "b": 2}) == NoSession(generation=3, is_named=True)
    assert decide(*answers, void={"a": 2}) == kept("a", 3)
    assert decide(found(kept("a", 3)), None, None, void={"a": 3}) is MAY_EXIST
    assert decide(found(kept("a", 3), settled=False), NONE, None, void={"a": 3}) is MAY_EXIST


def test_who_discards_sees_kept_ones_behind_clean_ones() -> None:
    """Of those that are not void."""
    decided = []
    for void in ({}, {"b": 3}):
        lookup = QuorumRead(KEEPERS, void, is_of_all=True)
        for keeper, entry in zip(KEEPERS, (clean("a", 3), kept("b", 3)), strict=False):
            lookup.add_answer(keeper, found(entry))
        decided.append(lookup.decide())

    assert [kept("b", 3), NoSession(generation=3, clean=clean("a", 3), is_named=True)] == decided


def test_a_majority_is_not_kept_waiting() -> None:
    """For the third, which may be dead."""
    lookup = QuorumRead(KEEPERS, {})

    assert [False, False, True] == [
        lookup.add_answer("p", UNSETTLED),
        lookup.add_answer("q", NONE),
        lookup.add_answer("r", NONE),
    ]
    assert QuorumRead(KEEPERS[:1], {}).add_answer("p", None)


answers = st.sampled_from([None, NONE, UNSETTLED, ENDED, found(kept("a", 1)), found(clean("b", 2))])


@given(st.lists(answers, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_the_order_of_answers_does_not_matter(given: list[Answer | None], random: object) -> None:
    """All of them, in any order."""
    pairs = list(zip(KEEPERS, given, strict=False))
    shuffled = list(pairs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    decisions = []
    for order in (pairs, shuffled):
        lookup = QuorumRead(KEEPERS[: len(given)], {})
        for keeper, answer in order:
            lookup.add_answer(keeper, answer)
        decisions.append(lookup.decide())

    assert decisions[0] == decisions[1]
