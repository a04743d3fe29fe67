"""A SUBSCRIBE that the node's own zone answers at once: as by all the steps, or by all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.edge.local.test_local_link import OwnBench
from tests.support.edge_bench import Client


def retained(bench: OwnBench, topic: str, payload: str) -> None:
    """The zone has a retained message of QoS 1."""
    from txbroker.mqtt.wire.message import Message

    bench.authority.publish(Message(topic, payload.encode(), 1, True))


def seen(bench: OwnBench, client: Client) -> dict[str, Any]:
    """What there is of a client's subscriptions, in all the places that know them."""
    route, peer = bench.route(""), bench.authority.peers.get("edge")
    assert peer is not None
    subscriptions = client.session.subscriptions
    return {
        "subscriptions": {f: (s.qos, s.pending, dict(s.starts)) for f, s in subscriptions.items()},
        "plain": [s.target is not None and s.target.is_plain for s in subscriptions.values()],
        "direct": client.sink.packet_writer.is_direct,
        "route": set(route.interest.filters),
        "peer": set(peer.filters),
        "requests": len(route.interest.requests),
        "on their way": bench.edge.interests.of(client.session),
        "got": client.got(),
    }


def both_ways(act: Callable[[OwnBench, Client], None]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is seen after `act`, at once where that is possible, and by all the steps."""
    found = []
    for is_long in (False, True):
        bench = OwnBench()
        bench.open()
        retained(bench, "a/x", "kept")
        if is_long:
            bench.edge.interests.wire(lambda _: None)
        client = Client(bench, "c")
        act(bench, client)
        found.append(seen(bench, client))
    return found[0], found[1]


def one(bench: OwnBench, client: Client) -> None:
    client.subscribe("a/+", qos=1)
    client.publish("a/x", "live")


def at_qos0(bench: OwnBench, client: Client) -> None:
    client.subscribe("a/#", qos=0)
    client.publish("a/y", "live", qos=0)


def two(bench: OwnBench, client: Client) -> None:
    client.subscribe("a/x")
    client.subscribe("a/#")
    client.publish("a/x", "live")


def again(bench: OwnBench, client: Client) -> None:
    client.subscribe("a/x", qos=0)
    client.subscribe("a/x", qos=2)
    client.publish("a/x", "live")


def and_unsubscribe(bench: OwnBench, client: Client) -> None:
    client.subscribe("a/x")
    client.unsubscribe("a/x")
    client.publish("a/x", "live")


def several_in_one(bench: OwnBench, client: Client) -> None:
    client.subscribe("a/x", "b")
    client.publish("b", "live")


def of_the_node_itself(bench: OwnBench, client: Client) -> None:
    client.subscribe("$SYS/broker/x")


def shared_by_another(bench: OwnBench, client: Client) -> None:
    Client(bench, "other").subscribe("a/+")
    client.subscribe("a/+")
    client.publish("a/x", "live")


@pytest.mark.parametrize(
    "act",
    [one, at_qos0, two, again, and_unsubscribe, several_in_one, of_the_node_itself,
     shared_by_another],
)  # fmt: skip
def test_it_comes_to_the_same(act: Callable[[OwnBench, Client], None]) -> None:
    at_once, by_steps = both_ways(act)
    assert by_steps == at_once


def test_a_filter_of_a_subtree_that_is_handed_over_waits() -> None:
    """The next owner would not hear of it (protocol rule 12)."""
    bench = OwnBench()
    bench.open()
    source = bench.authority.subtrees.prepare("a")
    bench.authority.subtrees.fence(source)
    client = Client(bench, "c")
    client.subscribe("a/x")
    assert [] == client.got()
    bench.authority.subtrees.roll_back(source)
    assert ["Suback"] == client.got()


def test_it_waits_for_what_was_taken_before() -> None:
    """The answer's place is behind what is not durable yet (protocol rule 9)."""
    bench = OwnBench()
    bench.journal._lazy = True
    bench.open()
    publisher, client = Client(bench, "p"), Client(bench, "c")
    publisher.publish("a/x", "earlier")
    client.subscribe("a/x")
    assert [] == client.got()
    bench.journal.sync()
    assert ["Suback"] == client.got()


def test_other_zones_are_asked() -> None:
    """The node's own has nothing to say of what is another's, and not all of what is both's."""
    bench = OwnBench("", "a")
    bench.open()
    bench.delegate("a")
    for topic_filter, is_answered in (("a/x", False), ("#", False), ("b", True)):
        client = Client(bench, topic_filter)
        client.subscribe(topic_filter)
        assert (["Suback"] if is_answered else []) == client.got()


def test_a_kept_session_is_kept_first() -> None:
    """Its SUBACK says that the subscription survives a crash."""
    bench = OwnBench()
    bench.open()
    client = Client(bench, "c", clean=False)
    client.subscribe("a")
    assert not client.events
    assert ["Suback"] == client.got()
