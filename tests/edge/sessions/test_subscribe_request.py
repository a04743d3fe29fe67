"""From SUBSCRIBE to SUBACK: who is waited for, what is held, what is interrupted."""

from __future__ import annotations

import pytest

from tests.support.edge_bench import Client, EdgeBench
from txbroker.edge.sessions import delivery as delivery_module
from txbroker.edge.sessions import subscribe_request as module
from txbroker.edge.sessions.edge import ATTEMPTS
from txbroker.mqtt.session import match as match_module
from txbroker.mqtt.session.cursor import Subscription
from txbroker.mqtt.wire.message import Message


def connected(*apexes: str) -> tuple[EdgeBench, Client]:
    bench = EdgeBench(*apexes)
    bench.online("", *apexes)
    for apex in apexes:
        bench.online(apex)
    return bench, Client(bench, "c")


def test_suback_leaves_when_every_zone_has_answered() -> None:
    """Not before, whatever their order (rule 8)."""
    bench, client = connected("a")
    client.subscribe("#", "b")
    answers = []
    for apex, topic_filter in (("a", "#"), ("", "b"), ("", "#")):
        answers.append(client.got())
        bench.answer(apex, topic_filter)

    assert ([[], [], []], ["Suback"]) == (answers, client.got())


def test_retained_messages_come_before_live_ones() -> None:
    """Live messages count from the answer of their zone on (rule 9)."""
    bench, client = connected("a")
    client.subscribe("+/x")
    bench.deliver("a", "a/x", "older than the answer")
    bench.answer("a", "+/x", "a/x=retained")
    bench.deliver("a", "a/x", "live", 2)
    bench.deliver("", "b/x", "other zone, not answered yet")
    bench.answer("", "+/x", "b/x=root")
    bench.deliver("", "b/x", "root live", 2)

    told = client.got()
    assert ["Suback", "r:retained", "r:root"] == told[:3]
    assert {"live", "root live"} == set(told[3:])


def test_subscription_takes_the_lower_qos() -> None:
    """Of the message and of what was granted [MQTT-3.8.4-6]."""
    bench, client = connected()
    client.subscribe("x", qos=0)
    bench.answer("", "x", "x=retained")
    bench.deliver("", "x", "live")

    assert [None, None] == [packet.packet_id for packet in client.events[1:]]  # type: ignore
    assert ["Suback", "r:retained", "live"] == client.got()


def test_suback_leaves_after_a_while_without_the_zones_that_do_not_answer() -> None:
    """They stay pending and count from their answer on; an operator hears of both (rule 8)."""
    bench, client = connected("a")
    client.subscribe("#")
    bench.answer("", "#", "x=retained")
    bench.clock.advance(1.9)
    before = client.got()
    bench.clock.advance(0.1)
    bench.deliver("a", "a/x", "not yet")
    after = client.got()
    bench.answer("a", "#", "a/x=late")
    bench.deliver("a", "a/x", "live", 2)

    assert ([], ["Suback", "r:retained"]) == (before, after)
    assert ["r:late", "live"] == client.got()
    assert bench.reporter.events == [
        ("interest.pending", "#", "a", "c"),
        ("interest.confirmed", "#", "c"),
    ]


def test_zone_that_is_away_for_long_is_not_waited_for_again() -> None:
    """Nobody pays the wait twice for the same unreachable zone."""
    bench, client = connected("a")
    bench.lose("a")
    for _ in range(ATTEMPTS):
        bench.edge.on_failed(bench.route("a"))
    bench.clock.advance(2.0)
    client.subscribe("a/x")

    assert ["Suback"] == client.got()
    bench.online("a")
    bench.answer("a", "a/x", "a/x=late")
    assert ["r:late"] == client.got()


def test_renewed_subscription_is_not_interrupted() -> None:
    """The same filter again: retained messages are sent again, live ones go on [MQTT-3.8.4-3]."""
    bench, client = connected()
    client.subscribe("x")
    bench.answer("", "x")
    client.got()
    client.subscribe("x", qos=0)
    bench.deliver("", "x", "meanwhile")
    meanwhile = client.got()
    bench.answer("", "x", "x=retained")
    bench.deliver("", "x", "after", 2)

    assert (["meanwhile"], ["Suback", "r:retained", "after"]) == (meanwhile, client.got())
    assert 0 == client.session.subscriptions["x"].qos


def test_newer_subscribe_takes_the_filter_over() -> None:
    """The earlier one does not wait for it any more; each has its SUBACK, in order."""
    bench, client = connected("a")
    client.subscribe("a/x")
    client.subscribe("a/x")
    first = client.got()
    request = min(bench.route("a").interest.requests)
    bench.edge.interests.on_answer(bench.route("a"), request, 0, [Message("a/x", b"old", 1, True)])
    early = client.got()
    bench.answer("a", "a/x", "a/x=new")
    bench.deliver("a", "a/x", "live")

    assert (["Suback"], [], ["Suback", "r:new", "live"]) == (first, early, client.got())


def test_unsubscribe_ends_an_open_subscribe() -> None:
    """The rest of it is still waited for."""
    bench, client = connected()
    client.subscribe("x", "y")
    client.unsubscribe("x", "never had")
    bench.answer("", "x", "x=nobody's")
    before = client.got()
    bench.answer("", "y", "y=1")
    bench.deliver("", "x", "no")

    assert (["Unsuback"], ["Suback", "r:1"]) == (before, client.got())
    assert ("", "remove", "x") in bench.take()


def test_sys_is_answered_by_the_node_itself() -> None:
    """No zone is asked (rule 26)."""
    bench, client = connected()
    bench.edge.sys.set("$SYS/a", "1")
    bench.take()
    client.subscribe("$SYS/#")
    bench.edge.sys.set("$SYS/a", "1")
    bench.edge.sys.set("$SYS/a", "2")
    bench.edge.sys.set("$SYS/a", None)

    assert (["Suback", "r:1", "2", ""], []) == (client.got(), bench.take())


def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SUBACK leaves early rather than hold more retained messages."""
    monkeypatch.setattr(module, "HELD_LIMIT", 3)
    bench, client = connected("a")
    client.subscribe("#")
    bench.answer("", "#", *(f"x=r{n}" for n in range(5)))

    assert ["Suback", "r:r0", "r:r1", "r:r2", "r:r3", "r:r4"] == client.got()


def test_live_messages_that_are_held_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of QoS 0, which no journal has, of a zone that has answered while another has not."""
    for each in (module, delivery_module):
        monkeypatch.setattr(each, "HELD_LIMIT", 3)
    bench, client = connected("a")
    client.subscribe("#")
    bench.answer("", "#")
    for number in range(5):
        bench.deliver("", "x", str(number), qos=0)

    assert ["Suback", "0", "1", "2", "3", "4"] == client.got()


def test_session_that_ends_leaves_nothing_open() -> None:
    """Late answers find nobody, and no alarm is left."""
    bench, client = connected("a")
    client.subscribe("#")
    client.leave()
    bench.answer("a", "#", "a/x=1")
    bench.clock.advance(10)

    assert ([], [], []) == (client.got(), bench.clock.alarms, bench.reporter.events)
    assert {} == bench.edge.clients.sessions


def test_answers_reach_the_session_when_its_client_is_away() -> None:
    """A persistent session keeps QoS 1; the SUBACK is lost with its connection."""
    bench = EdgeBench()
    bench.online("")
    client = Client(bench, "c", clean=False)
    client.subscribe("x")
    client.leave()
    bench.answer("", "x", "x=retained")
    bench.deliver("", "x", "live")
    again = Client(bench, "c", clean=False)

    assert (True, ["r:retained", "live"]) == (again.present, again.got())


def test_clean_session_ends_what_was_subscribed() -> None:
    """Nothing of the earlier session is left [MQTT-3.1.2-6]."""
    bench = EdgeBench()
    bench.online("")
    client = Client(bench, "c", clean=False)
    client.subscribe("x")
    client.leave()
    bench.take()
    again = Client(bench, "c")

    assert (False, {}) == (again.present, again.session.subscriptions)
    assert [("", "remove", "x")] == bench.take()


def test_of_thousands_that_match_one_is_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    For all messages of a run that the same subscriptions match, also while a SUBACK is waited for:
    a thousand publishes to topics that were never seen stopped a node for 12 s.
    """
    bench, client = connected("a")
    client.subscribe("x/+", "x/#", "+/+", "#", "+/#", "other", qos=0)
    for topic_filter in ("x/+", "x/#"):
        bench.answer("", topic_filter)
    looked_at: list[object] = []
    rank = match_module.rank

    def counted(subscription: Subscription) -> tuple[bool, int]:
        looked_at.append(subscription)
        return rank(subscription)

    monkeypatch.setattr(match_module, "rank", counted)
    run = bench.make_run(Message(f"x/{n}", b"held", 0, False, "p") for n in range(100))
    bench.edge.on_runs(bench.route(""), [run])
    assert 2 == len(looked_at)
    for topic_filter in ("+/+", "#", "+/#", "other"):
        bench.answer("", topic_filter)
    for topic_filter in ("+/+", "#", "+/#"):
        bench.answer("a", topic_filter)
    assert ["Suback", *["held"] * 100] == client.got()
