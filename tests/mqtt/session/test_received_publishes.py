"""Publishes that come from the client of a session."""

from __future__ import annotations

import pytest

from tests.mqtt.session.session_bench import attached, sent
from tests.support.checking import checking
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.packets import Puback, Pubcomp, Publish, Pubrec

checked = checking(Session)


def test_publish_is_acknowledged_when_it_is_taken() -> None:
    """PUBACK at QoS 1, PUBREC at QoS 2, PUBCOMP for its PUBREL."""
    bench = attached()
    one = bench.session.receiver.accept(sent("1", 5))
    two = bench.session.receiver.accept(sent("2", 6, 2))
    assert one is not None and two is not None
    before = bench.take()
    bench.session.receiver.on_accepted(two)
    bench.session.receiver.on_accepted(one)
    bench.session.receiver.on_pubrel(6)

    assert ([], [Pubrec(6), Puback(5), Pubcomp(6)]) == (before, bench.take())


def test_repeated_qos2_is_forwarded_once() -> None:
    """Until its PUBREL; each PUBLISH of it gets its own PUBREC [MQTT-4.3.3-2]."""
    bench = attached()
    flow = bench.session.receiver.accept(sent("1", 6, 2))
    assert flow is not None
    repeats = [bench.session.receiver.accept(sent("1", 6, 2, dup=True)) for _ in range(2)]
    bench.session.receiver.on_accepted(flow)
    owed = bench.take()
    repeats.append(bench.session.receiver.accept(sent("1", 6, 2)))
    late = bench.take()
    bench.session.receiver.on_pubrel(6)
    fresh = bench.session.receiver.accept(sent("2", 6, 2))

    assert [None] * 3 == repeats
    assert ([Pubrec(6)] * 3, [Pubrec(6)]) == (owed, late)
    assert fresh is not None and fresh is not flow


def test_repeated_qos1_is_answered_with_the_first() -> None:
    """While that is on its way; afterwards the identifier is free."""
    bench = attached()
    flow = bench.session.receiver.accept(sent("1", 5))
    assert flow is not None
    repeat = bench.session.receiver.accept(sent("1", 5, dup=True))
    bench.session.receiver.on_accepted(flow)
    answers = bench.take()
    again = bench.session.receiver.accept(sent("1", 5, dup=True))

    assert repeat is None
    assert [Puback(5)] * 2 == answers
    assert again is not None


def test_identifier_that_is_used_anew_is_a_new_publish() -> None:
    """QoS 1 without DUP is no repeat; the old flow's answer would be taken for its own."""
    bench = attached()
    old = bench.session.receiver.accept(sent("1", 5))
    new = bench.session.receiver.accept(sent("2", 5))
    assert old is not None and new is not None
    bench.session.receiver.on_accepted(old)
    before = bench.take()
    bench.session.receiver.on_accepted(new)

    assert ([], [Puback(5)]) == (before, bench.take())


def test_acknowledgements_are_owed_to_the_present_connection_only() -> None:
    """What a lost connection sent is answered when the client sends it again."""
    bench = attached()
    one = bench.session.receiver.accept(sent("1", 5))
    two = bench.session.receiver.accept(sent("2", 6, 2))
    assert one is not None and two is not None
    bench.session.detach()
    bench.session.receiver.on_accepted(one)
    on_connect = bench.attach()
    repeats = [
        bench.session.receiver.accept(sent(*args, dup=True)) for args in (("1", 5), ("2", 6, 2))
    ]
    at_once = bench.take()
    bench.session.receiver.on_accepted(two)

    assert ([], [None, None]) == (on_connect, repeats)
    assert ([Puback(5)], [Pubrec(6)]) == (at_once, bench.take())


@pytest.mark.parametrize("qos", [1, 2])
def test_publish_that_comes_again_is_answered_after_what_came_before_it(qos: int) -> None:
    """
    The first one's answer was lost, so it is new; the others were on their way, or taken
    [MQTT-4.6.0-2, MQTT-4.6.0-3].
    """
    bench = attached()
    old = [bench.session.receiver.accept(sent(str(i), i, qos)) for i in (6, 7, 8)]
    bench.attach()
    first = bench.session.receiver.accept(sent("5", 5, qos))
    for packet_id in (6, 7, 8):
        bench.session.receiver.accept(sent(str(packet_id), packet_id, qos, dup=True))
    last = bench.session.receiver.accept(sent("9", 9, qos))
    for flow in (old[0], old[1]):
        assert flow is not None
        bench.session.receiver.on_accepted(flow)
    before = bench.take()
    assert first is not None and old[2] is not None and last is not None
    bench.session.receiver.on_accepted(first)
    two = bench.take()
    bench.session.receiver.on_accepted(old[2])
    bench.session.receiver.on_accepted(last)

    answer = Puback if qos == 1 else Pubrec
    assert ([], [answer(5), answer(6), answer(7)]) == (before, two)
    assert [answer(8), answer(9)] == bench.take()


def test_publish_that_was_taken_meanwhile_is_answered_in_its_turn() -> None:
    """It waits for one of its zone only, and for none that the client has given up."""
    bench = attached()
    for packet_id, topic in ((6, "a/x"), (7, "b/x"), (8, "a/y")):
        flow = bench.session.receiver.accept(Publish(topic, b"", 1, False, False, packet_id))
        assert flow is not None
        bench.session.detach()
        bench.session.receiver.on_accepted(flow)
        bench.attach()
    bench.session.receiver.accept(Publish("a/z", b"", 1, False, False, 5))
    for packet_id, topic in ((6, "a/x"), (7, "b/x"), (8, "a/y")):
        bench.session.receiver.accept(Publish(topic, b"", 1, False, True, packet_id))
    elsewhere = bench.take()
    bench.session.receiver.accept(Publish("b/y", b"", 1, False, False, 5))

    assert ([Puback(7)], [Puback(6), Puback(8)]) == (elsewhere, bench.take())


def test_pubrel_is_always_answered() -> None:
    """Also for an identifier that is not open."""
    bench = attached()
    bench.session.receiver.on_pubrel(77)

    assert [Pubcomp(77)] == bench.take()


def test_publishes_come_in_runs_again_once_all_repeats_are_answered() -> None:
    """The order of acknowledgements ends with the flows of the earlier connection."""
    bench = attached()
    receiver = bench.session.receiver
    flow = receiver.accept(Publish("t", b"1", 1, False, False, 7))
    assert flow is not None and bench.session.may_gather
    bench.attach()
    assert not bench.session.may_gather
    receiver.accept(Publish("t", b"1", 1, False, True, 7))
    receiver.on_accepted(flow)

    assert [Puback(7)] == bench.take()
    assert bench.session.may_gather and not receiver.sent


def test_publishes_of_an_earlier_connection_count_once_they_are_sent_again() -> None:
    """One that is released meanwhile makes no room beyond the client's receive maximum."""
    bench = attached()
    receiver = bench.session.receiver
    for packet_id in (6, 7):
        receiver.accept(Publish("t", b"1", 2, False, False, packet_id))
    bench.attach()
    counts = [receiver.sent]
    receiver.accept(Publish("t", b"1", 2, False, True, 6))
    counts.append(receiver.sent)
    receiver.on_pubrel(7)
    counts.append(receiver.sent)
    receiver.accept(Publish("t", b"2", 2, False, False, 8))
    counts.append(receiver.sent)

    assert [0, 1, 1, 2] == counts
