"""The order of answers to what a client publishes again."""

from __future__ import annotations

from txbroker.mqtt.session.ack_order import AckOrder
from txbroker.mqtt.session.inbound_publish import InboundPublish


def test_new_publish_waits_behind_a_repeat_that_waits() -> None:
    """Also where what that waits for turns out to be another zone's, and is answered later."""
    first, repeat, new = (InboundPublish(packet_id, 2) for packet_id in (1, 2, 3))
    turns = AckOrder([2])
    turns.enter(first, "x", "", is_repeat=False)
    turns.enter(repeat, "x", "", is_repeat=True)
    turns.enter(new, "x", "", is_repeat=False)

    assert [False, True, True] == [turns.must_wait(flow) for flow in (first, repeat, new)]
    assert repeat is turns.end(first)
    assert new is turns.end(repeat)
    assert turns.end(new) is None
    assert turns.is_over


def test_topic_keeps_its_place_when_its_zone_is_found() -> None:
    """A repeat waits in the zone above, in which its topic was when it came."""
    other, repeat, new = (InboundPublish(packet_id, 1) for packet_id in (1, 2, 3))
    turns = AckOrder([2])
    turns.enter(other, "a/x", "a", is_repeat=False)
    turns.enter(repeat, "a/b/y", "a", is_repeat=True)
    turns.enter(new, "a/b/y", "a/b", is_repeat=False)

    assert turns.must_wait(new)
    assert repeat is turns.end(other)
    assert new is turns.end(repeat)


def test_new_publish_has_its_turn_by_itself() -> None:
    """What is taken in the order in which it came needs no turns."""
    first, new = InboundPublish(1, 1), InboundPublish(2, 1)
    turns = AckOrder([])
    turns.enter(first, "x", "", is_repeat=False)
    turns.enter(new, "x", "", is_repeat=False)

    assert not turns.must_wait(new)


def test_topics_are_forgotten_when_all_of_them_is_answered() -> None:
    """However many a connection brings while one repeat is still to come."""
    turns = AckOrder([1])
    before = InboundPublish(2, 1)
    turns.enter(before, "x", "", is_repeat=False)
    for number in range(1_000):
        repeat, new = InboundPublish(3, 1), InboundPublish(4, 1)
        turns.enter(repeat, f"t/{number}", "", is_repeat=True)
        turns.enter(new, f"t/{number}", f"t/{number}", is_repeat=False)
        assert turns.must_wait(repeat) and turns.must_wait(new)
        assert repeat is turns.end(before) and new is turns.end(repeat)
        before = new

    assert not turns.is_over
    assert 1 == len(turns._zones) == len(turns._topics)
    assert turns.end(before) is None
    assert not turns._zones and not turns._topics
