"""
The same promises for filters and sessions that span the zones of several nodes.

Three nodes: root (all topics that no child has), a (zone `a`) and b (zone `b`). A test's topics are
`a/NAME/...`, `b/NAME/...` and `r/NAME/...`, so `+/NAME/#` touches all three owners.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import wire
from tests.support.rawclient import RawClient
from tests.support.wire import PUBACK, PUBCOMP, PUBREC, PUBREL, Publish

from .conftest import Tree
from .harness import Bench, unique
from .statements import statement

HEADS = ("a", "b", "r")


class Wide(Bench):
    """A bench whose topics lie in all three zones."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree.a.mqtt, tree.b.mqtt)
        self.nodes = (tree.a.mqtt, tree.b.mqtt, tree.root.mqtt)

    def names(self, rest: str = "x") -> list[str]:
        """The same topic in each zone."""
        return [f"{head}/{self.base}/{rest}" for head in HEADS]

    def spanning(self, rest: str = "#") -> str:
        """A filter that touches all three owners."""
        return f"+/{self.base}/{rest}"

    def calm(self, sub: RawClient) -> None:
        """Nothing is on its way to `sub` from any zone, published at any node."""
        for at in self.nodes:
            pub = self.client(at=at)
            for name in self.names(unique("calm")):
                sub.subscribe(name)
                pub.publish(name, b"marker")
                # A wide filter sees other clients' markers, and its own twice where it overlaps.
                found = sub.expect_publish(payload=b"marker")
                while found.topic != name:
                    found = sub.expect_publish(payload=b"marker")
                sub.unsubscribe(name)


@pytest.fixture
def wide(tree: Tree) -> Iterator[Wide]:
    """The three nodes of the tree at once."""
    bench = Wide(tree)
    yield bench
    bench.close()


@statement("MQTT-4.5.0-1", "MQTT-3.8.4-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_one_filter_over_all_zones(wide: Wide, qos: int) -> None:
    """From every node into every zone to a subscriber at every node: each message once."""
    subs = [wide.subscriber((wide.spanning("x"), qos), at=at) for at in wide.nodes]
    expected = []
    for position, at in enumerate(wide.nodes):
        pub = wide.client(at=at)
        for name in wide.names():
            pub.publish(name, b"%d" % position, qos=qos)
            expected.append((name, b"%d" % position))
    for sub in subs:
        got = [(m.topic, m.payload) for m in sub.take(9)]
        assert sorted(got) == sorted(expected)
        wide.calm(sub)


@statement("MQTT-4.5.0-1", "MQTT-3.3.2-3")
def test_hash_sees_everything(wide: Wide) -> None:
    """# at each node: what is published into any zone comes once."""
    subs = [wide.subscriber(("#", 1), at=at) for at in wide.nodes]
    pub = wide.publisher()
    for name in wide.names():
        pub.publish(name, b"p", qos=1)
    for sub in subs:
        seen: list[str] = []
        while len(seen) < 3:
            (message,) = sub.take(1)
            if not message.retain:  # older tests' retained messages come first
                seen.append(message.topic)
        assert sorted(seen) == sorted(wide.names())


@statement("MQTT-3.3.1-6", "MQTT-3.3.1-8")
def test_retained_messages_of_all_zones(wide: Wide) -> None:
    """One new subscription brings those of every zone, flagged, to that client only."""
    bystanders = [wide.subscriber((wide.spanning(), 1), at=at) for at in wide.nodes]
    for at, name in zip(wide.nodes, wide.names(), strict=True):
        wide.client(at=at).publish(name, name.encode(), qos=1, retain=True)
    for sub in bystanders:
        assert {m.retain for m in sub.take(3)} == {False}
    for at in wide.nodes:
        sub = wide.subscriber((wide.spanning(), 1), at=at)
        got = sub.take(3)
        assert sorted(m.topic for m in got) == sorted(wide.names())
        assert all(m.retain and m.payload == m.topic.encode() for m in got)
    for sub in bystanders:
        wide.calm(sub)


@statement("MQTT-3.3.1-10", "MQTT-3.3.1-11")
def test_retained_messages_cleared_from_elsewhere(wide: Wide) -> None:
    """Any client at any node clears any topic."""
    for name in wide.names():
        wide.publisher().publish(name, b"kept", qos=1, retain=True)
    for at, name in zip(reversed(wide.nodes), wide.names(), strict=True):
        wide.client(at=at).publish(name, b"", qos=1, retain=True)
    for at in wide.nodes:
        wide.calm(wide.subscriber((wide.spanning("x"), 1), at=at))


def _first_live(sub: RawClient) -> Publish:
    """The first message that is not retained: a wide filter brings other tests' leavings."""
    while (message := sub.take(1)[0]).retain:
        pass
    return message


@statement("MQTT-4.5.0-1", "MQTT-3.3.2-3")
def test_apex_topics(wide: Wide) -> None:
    """The apex belongs to its zone: a/# and + match it, a/+ and names that only begin so do not."""
    sub = wide.subscriber(("a/#", 1), ("+", 1))
    near = wide.subscriber(("a/+", 1))
    other = wide.subscriber((f"a{wide.base}/#", 1))
    text = unique().encode()
    pub = wide.client(at=wide.nodes[2])
    pub.publish("a", text, qos=1)
    pub.publish(f"a{wide.base}/x", text, qos=1)
    message = _first_live(sub)
    assert (message.topic, message.payload) == ("a", text)
    other.acknowledge(other.expect_publish(f"a{wide.base}/x", text))
    pub.publish(f"a/{wide.base}", text, qos=1)
    assert _first_live(near).topic == f"a/{wide.base}"


@statement("MQTT-4.6.0-6")
def test_order_in_every_zone(wide: Wide) -> None:
    """One stream that jumps between the zones: in order on each topic."""
    sub = wide.subscriber((wide.spanning(), 1))
    pub = wide.publisher()
    names = wide.names()
    ids = range(1, 301)
    pub.send(*[wire.publish(names[n % 3], b"%d" % n, qos=1, packet_id=n) for n in ids])
    got = sub.take(300)
    for name in names:
        numbers = [int(m.payload) for m in got if m.topic == name]
        assert numbers == [n for n in ids if names[n % 3] == name]


@statement("MQTT-4.6.0-2", "MQTT-4.6.0-3")
@pytest.mark.parametrize("qos", [1, 2])
def test_acknowledgements_in_order_for_each_zone(wide: Wide, qos: int) -> None:
    """All are acknowledged, those of one zone in the order they were sent."""
    pub = wide.publisher()
    names = wide.names()
    ids = range(1, 151)
    pub.send(*[wire.publish(names[n % 3], b"p", qos=qos, packet_id=n) for n in ids])
    got = [pub.expect(PUBACK if qos == 1 else PUBREC).packet_id for _ in ids]
    for zone in range(3):
        assert [n for n in got if n % 3 == zone] == [n for n in ids if n % 3 == zone]


@statement("MQTT-3.10.4-2")
def test_unsubscribe_ends_it_in_every_zone(wide: Wide) -> None:
    """For this client; another one at the same node with the same filter goes on."""
    sub, other = (wide.subscriber((wide.spanning("x"), 1)) for _ in range(2))
    sub.unsubscribe(wide.spanning("x"))
    for at in wide.nodes:
        pub = wide.client(at=at)
        for name in wide.names():
            pub.publish(name, b"p", qos=1)
    assert len(other.take(9)) == 9
    wide.calm(sub)
    wide.calm(other)


@statement("MQTT-3.3.5-1")
def test_overlap_of_spanning_and_local_filters(wide: Wide) -> None:
    """The highest QoS holds where both match, the spanning filter's elsewhere."""
    a, b, r = wide.names()
    sub = wide.subscriber((wide.spanning("x"), 0), (a, 2), (b, 1))
    pub = wide.publisher()
    for name, best in ((a, 2), (b, 1), (r, 0)):
        pub.publish(name, b"p", qos=2)
        (message,) = sub.take(1)
        while message.qos != best:
            (message,) = sub.take(1)
        assert message.topic == name


@statement("MQTT-3.1.2-5", "MQTT-3.1.2-4")
def test_session_that_is_away_collects_from_every_zone(wide: Wide) -> None:
    """QoS 1 and 2 from all nodes into all zones, in order on each topic, none twice."""
    client = wide.client(clean=False)
    client.subscribe((wide.spanning(), 2))
    client.disconnect()
    for position, at in enumerate(wide.nodes):
        pub = wide.client(at=at)
        for number in range(10):
            for name in wide.names(str(position)):
                pub.publish(name, b"%d" % number, qos=1 + position % 2)
    client = wide.resume(str(client.client_id))
    got = client.take(90)
    for position in range(3):
        for name in wide.names(str(position)):
            assert [int(m.payload) for m in got if m.topic == name] == list(range(10))
    wide.calm(client)


@statement("MQTT-4.4.0-1", "MQTT-4.6.0-1")
def test_redelivery_of_messages_from_every_zone(wide: Wide) -> None:
    """All again with their identifiers, in the order of the first time."""
    client = wide.client(clean=False)
    client.subscribe((wide.spanning(), 1))
    pub = wide.publisher()
    for number in range(5):
        for name in wide.names():
            pub.publish(name, b"%d" % number, qos=1)
    first = [client.expect_publish(dup=False) for _ in range(15)]
    client.drop()
    client = wide.resume(str(client.client_id))
    again = [client.expect_publish(dup=True) for _ in range(15)]
    assert [(m.topic, m.payload, m.packet_id) for m in again] == [
        (m.topic, m.payload, m.packet_id) for m in first
    ]
    for message in again:
        client.acknowledge(message)
    wide.calm(client)


@statement("MQTT-4.3.3-2")
def test_qos_2_once_in_every_zone(wide: Wide) -> None:
    """Repeats before PUBREL, identifiers spread over the zones: each delivered once."""
    sub = wide.subscriber((wide.spanning(), 2))
    pub = wide.publisher()
    for number in range(1, 31):
        name = wide.names()[number % 3]
        for dup in (False, True):
            pub.send(wire.publish(name, b"%d" % number, qos=2, packet_id=number, dup=dup))
    for number in range(1, 31):
        pub.wait_for(PUBREC, number)
        pub.wait_for(PUBREC, number)
        pub.send(wire.ack(PUBREL, number))
        pub.wait_for(PUBCOMP, number)
    assert sorted(int(m.payload) for m in sub.take(30)) == list(range(1, 31))
    wide.calm(sub)


def test_subscribers_come_and_go(wide: Wide) -> None:
    """The last to leave a filter at a node ends it there only; the next to come starts it again."""
    names = wide.names()
    for turn in range(5):
        subs = [wide.subscriber((wide.spanning("x"), 1), at=at) for at in wide.nodes * 2]
        pub = wide.client(at=wide.nodes[turn % 3])
        for name in names:
            pub.publish(name, b"%d" % turn, qos=1)
        for sub in subs:
            assert sorted((m.topic, m.payload) for m in sub.take(3)) == [
                (name, b"%d" % turn) for name in sorted(names)
            ]
        subs[0].unsubscribe(wide.spanning("x"))
        subs[1].drop()
        subs[2].disconnect()
        pub.publish(names[turn % 3], b"still", qos=1)
        for sub in subs[3:]:
            sub.acknowledge(sub.expect_publish(names[turn % 3], b"still"))
            sub.disconnect()
