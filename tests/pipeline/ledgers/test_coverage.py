"""From where to where subscriptions held, by what ledgers say."""

from __future__ import annotations

from txbroker.model.epoch_transition import FOREVER, EpochTransition
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.pipeline.ledgers.coverage import END, Coverage, SubscriptionEvent, covered

ROOT = JournalId("", 1)
CHILD, AGAIN = JournalId("a", 1), JournalId("a", 2)


def start(offset: int, part: JournalId = ROOT, *, qos: int = 1, time: int = 0) -> SubscriptionEvent:
    return SubscriptionEvent(part=part, offset=offset, qos=qos, time=time)


def end(offset: int, part: JournalId = ROOT, *, time: int = 0) -> SubscriptionEvent:
    return SubscriptionEvent(part=part, offset=offset, qos=None, time=time)


def cut(offset: int, part: JournalId = CHILD) -> EpochTransition:
    return EpochTransition(apex="a", left=LogPosition(ROOT, offset), entered=LogPosition(part, 0))


def came_back(last: int, offset: int, part: JournalId = CHILD) -> EpochTransition:
    return EpochTransition(
        apex="a", left=LogPosition(part, last), entered=LogPosition(ROOT, offset)
    )


def spans(
    topic_filter: str, events: list[SubscriptionEvent], *transitions: EpochTransition
) -> set[tuple[JournalId, int, int, str]]:
    """(part, since, until, within) of each."""
    return {
        (span.part, span.since, span.until, span.within)
        for span in covered(topic_filter, events, transitions)
    }


def test_a_subscription_holds_from_start_to_end() -> None:
    """In one part; a later one of the same filter is another time."""
    assert {(ROOT, 3, 7, ""), (ROOT, 9, END, "")} == spans("x", [start(3), end(7), start(9)])


def test_the_later_word_counts_at_one_offset() -> None:
    """Somebody who leaves and comes back between two messages stays."""
    assert {(ROOT, 3, END, "")} == spans("x", [start(3), end(3, time=1), start(3, time=2)])
    assert set() == spans("x", [start(3), end(3, time=1)])


def test_what_is_said_again_changes_nothing() -> None:
    """Nodes state now and then what holds."""
    assert {(ROOT, 3, 8, ""), (ROOT, 8, END, "")} == spans("x", [start(3), start(8)])


def test_nothing_is_owed_at_qos_0() -> None:
    """Neither from the beginning nor after a change."""
    found = covered("x", [start(1), start(5, qos=0), start(9, qos=2)], ())

    assert [Coverage(part=ROOT, since=1, until=5, qos=1, time=0)] == [
        span for span in found if span.since == 1
    ]
    assert {1, 9} == {span.since for span in found}


def test_a_subscription_goes_along_when_a_zone_is_cut() -> None:
    """With the topics of that zone, if it held as they left."""
    assert (CHILD, 0, END, "a") in spans("#", [start(3)], cut(10))
    assert (CHILD, 0, END, "a") in spans("a/+", [start(10)], cut(10))
    for events in ([start(3), end(9)], [start(3), end(10)], [start(11)]):
        assert not any(part == CHILD for part, *_ in spans("#", events, cut(10)))
    assert not any(part == CHILD for part, *_ in spans("b", [start(3)], cut(10)))


def test_a_subscription_ends_where_the_zone_is_by_then() -> None:
    """It ends in both parts, also at the very beginning of the new one."""
    found = spans("#", [start(3), end(20), end(5, CHILD)], cut(10))
    at_once = spans("#", [start(3), end(20), end(0, CHILD)], cut(10))

    assert {(ROOT, 3, 20, ""), (CHILD, 0, 5, "a")} == found
    assert {(ROOT, 3, 20, "")} == at_once


def test_a_subscription_comes_back_with_a_zone() -> None:
    """For the topics of that zone alone: of others nobody had confirmed anything."""
    found = spans("a/#", [start(4, CHILD)], came_back(30, 12))
    reclaimed = spans("a/#", [start(4, CHILD)], came_back(FOREVER, 12))

    assert {(CHILD, 4, END, ""), (ROOT, 12, END, "a")} == found == reclaimed


def test_a_subscription_that_ended_does_not_come_again() -> None:
    """Not when its zone comes back, nor when it goes out at another epoch."""
    transitions = (cut(10), came_back(30, 12), cut(50, AGAIN))
    whole = spans("a/#", [start(3)], *transitions)
    ended = spans("a/#", [start(3), end(40)], *transitions)

    assert {(AGAIN, 0, END, "a"), (ROOT, 12, END, "a"), (CHILD, 0, END, "a")} < whole
    assert not any(part == AGAIN for part, *_ in ended)
    assert (ROOT, 12, 40, "a") in ended


def test_an_older_epoch_says_nothing_of_a_newer_one() -> None:
    """Without the passages between them."""
    assert {(CHILD, 1, END, "")} == spans("a", [start(1, CHILD)], cut(50, AGAIN))


def test_a_zone_within_the_zone_that_came_back_goes_out_with_less() -> None:
    """What a passage brought is for its topics; a cut within takes its share."""
    inner = JournalId("a/b", 1)
    transitions = (
        came_back(30, 12),
        EpochTransition(apex="a/b", left=LogPosition(ROOT, 20), entered=LogPosition(inner, 0)),
        EpochTransition(
            apex="c", left=LogPosition(ROOT, 20), entered=LogPosition(JournalId("c", 1), 0)
        ),
    )
    found = spans("#", [start(4, CHILD)], *transitions)

    assert (inner, 0, END, "a/b") in found
    assert not any(part.zone == "c" for part, *_ in found)
