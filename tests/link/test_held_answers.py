"""Questions for marks of streams to a zone that the owner has forgotten."""

from __future__ import annotations

from txbroker.link.held_answers import MOST_HELD, PATIENCE, HeldAnswers
from txbroker.v1 import link_pb2, types_pb2


class Owner:
    """An owner that has forgotten some zones; `answered` are the numbers of questions."""

    def __init__(self, *forgotten: str) -> None:
        self.forgotten = set(forgotten)
        self.answered: list[int] = []
        self.asks = HeldAnswers(
            lambda zone: zone in self.forgotten, lambda ask: self.answered.append(ask.request)
        )

    def ask(self, number: int, *zones: str) -> None:
        marks = [types_pb2.Mark(edge="e", incarnation=1, zone=zone, stream=1) for zone in zones]
        self.asks.ask(link_pb2.Ask(request=number, in_doubt=marks))


def test_questions_about_known_zones_are_answered_at_once() -> None:
    owner = Owner("a")
    owner.ask(1)
    owner.ask(2, "", "b")
    assert [1, 2] == owner.answered


def test_others_wait_until_the_zone_is_back() -> None:
    owner = Owner("a")
    owner.ask(1, "b", "a")
    owner.asks.beat()
    assert [] == owner.answered
    owner.forgotten.clear()
    owner.asks.beat()
    owner.asks.beat()
    assert [1] == owner.answered


def test_nobody_waits_for_ever() -> None:
    owner = Owner("a")
    owner.ask(1, "a")
    for _ in range(PATIENCE - 1):
        owner.asks.beat()
    assert [] == owner.answered
    owner.asks.beat()
    assert [1] == owner.answered


def test_few_wait() -> None:
    owner = Owner("a")
    for number in range(MOST_HELD + 2):
        owner.ask(number, "a")
    assert [MOST_HELD, MOST_HELD + 1] == owner.answered


def test_marks_of_streams_to_forgotten_zones_are_not_known() -> None:
    owner = Owner("a")
    keys = [("e", 1, "", 1), ("e", 1, "a", 2)]
    assert keys[:1] == owner.asks.known(keys)
