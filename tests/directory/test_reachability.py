"""Who does not answer, and how long this node waits for an answer."""

from __future__ import annotations

import pytest

from txbroker.directory.reachability import ATTEMPTS, LONGEST, REMEMBERED, SHORTEST, Reachability


class Bench:
    """The record of a node, and calls that take some time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.reach = Reachability(lambda: self.now)

    def answer(self, name: str, seconds: float) -> None:
        began = self.now
        self.now += seconds
        self.reach.answered(name, began)


def test_a_member_that_answers_late_is_waited_for() -> None:
    """Longer than its answers take, and never beyond the bound."""
    bench = Bench()
    assert bench.reach.patience("b") == SHORTEST
    bench.answer("b", 0.01)
    assert bench.reach.patience("b") == SHORTEST
    for _ in range(20):
        bench.answer("b", 2.0)
    assert 2.0 < bench.reach.patience("b") < 4.0
    for _ in range(20):
        bench.answer("b", 30.0)
    assert bench.reach.patience("b") == LONGEST


def test_a_member_that_has_not_answered_is_as_slow_as_the_others() -> None:
    """And one that answers in time is not, whatever the others do."""
    bench = Bench()
    for _ in range(10):
        bench.answer("b", 3.0)
        bench.answer("c", 0.01)
    assert bench.reach.patience("c") == SHORTEST
    assert bench.reach.patience("d") > SHORTEST


def test_a_member_is_slow_for_a_while_only() -> None:
    """Without calls since then, nobody knows how slow it is."""
    bench = Bench()
    bench.answer("b", 5.0)
    assert bench.reach.patience("b") > SHORTEST
    bench.now += REMEMBERED
    assert bench.reach.patience("b") == SHORTEST


@pytest.mark.parametrize(
    ("waited", "others", "is_early"), [(1.0, 3.0, True), (1.0, 0.01, False), (0.01, 3.0, False)]
)
def test_a_call_was_given_up_early_if_others_answer_later(
    waited: float, others: float, is_early: bool
) -> None:
    """A call that was refused at once was not."""
    bench = Bench()
    bench.answer("b", others)
    began = bench.now
    bench.now += waited

    assert bench.reach.is_early(began, SHORTEST) is is_early


def test_a_node_that_is_no_member_is_forgotten() -> None:
    """How slow it was, too."""
    bench = Bench()
    bench.answer("b", 5.0)
    bench.answer("c", 0.01)
    bench.reach.forget_unknown(lambda name: name == "c")
    for _ in range(30):
        bench.answer("c", 0.01)

    assert bench.reach.patience("b") == SHORTEST


def test_a_late_answer_is_awaited_longer_in_a_large_site() -> None:
    """Its calls would be repeated too often; a small site has the next message sent soon."""
    bench = Bench()
    assert bench.reach.longest_wait("b", 5) == 2 * SHORTEST
    assert bench.reach.longest_wait("b", 30) == 30**2 / ATTEMPTS
    assert bench.reach.longest_wait("b", 1_000) == LONGEST
    for _ in range(20):
        bench.answer("b", 2.0)
    assert bench.reach.longest_wait("b", 5) == 2 * bench.reach.patience("b") > 4.0
