"""
A federation is one broker: the same deliveries as a model of a single one, whatever the tree.

Hypothesis draws a tree of up to eight nodes, clients at any of them, subscriptions that span zones,
publishes at every QoS with and without retain. The model below is the whole specification of what
clients see. What passes the links is counted: two hops at most, one copy an edge.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import attrs
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from tests.support.cluster import LIVE, PUBLISH, RETAINED, Cluster, on_loop
from tests.support.mqttclient import Client, until

PATIENCE = 30.0
"""Seconds; only a failing test, or one on a machine that does much else, ever waits that long."""

Delivery = tuple[str, bytes, int, bool]
"""Topic, payload, QoS and retain flag as a client gets them."""


# -- the model of one broker


def matches(topic_filter: str, topic: str) -> bool:
    """Section 4.7 of the MQTT standard, in a few lines."""
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False
    wanted, levels = topic_filter.split("/"), topic.split("/")
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place >= len(levels) or level not in ("+", levels[place]):
            return False
    return len(wanted) == len(levels)


class Broker:
    """One broker: subscriptions per client, retained messages, and what each client has got."""

    def __init__(self) -> None:
        self.subscriptions: dict[str, dict[str, int]] = defaultdict(dict)
        self.retained: dict[str, tuple[bytes, int]] = {}
        self.delivered: dict[str, list[Delivery]] = defaultdict(list)

    def subscribe(self, client: str, filters: list[tuple[str, int]]) -> None:
        """Every SUBSCRIBE brings the retained messages, for each of its filters."""
        # Of a filter that stands twice in a packet the last counts, as in a row of packets.
        for topic_filter, qos in dict(filters).items():
            self.subscriptions[client][topic_filter] = qos
            for topic, (payload, sent) in self.retained.items():
                if matches(topic_filter, topic):
                    self.delivered[client].append((topic, payload, min(qos, sent), True))

    def unsubscribe(self, client: str, topic_filter: str) -> None:
        """No more of it."""
        self.subscriptions[client].pop(topic_filter, None)

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool) -> set[str]:
        """One copy a client, at the greatest QoS of its filters; returns who got one."""
        if retain and payload:
            self.retained[topic] = payload, qos
        elif retain:
            self.retained.pop(topic, None)
        receivers = set()
        for client, filters in self.subscriptions.items():
            granted = [q for topic_filter, q in filters.items() if matches(topic_filter, topic)]
            if granted:
                self.delivered[client].append((topic, payload, min(qos, max(granted)), False))
                receivers.add(client)
        return receivers


# -- what hypothesis draws


@attrs.frozen
class Plan:
    """A tree (apex of each node, None for a pure edge; the start order), and what clients do."""

    zones: dict[str, str | None]
    through_root: bool
    clients: tuple[str, ...]  # the node of each
    steps: tuple[tuple[Any, ...], ...]


LEVELS = ("a", "b", "c")
apexes = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=3).map("/".join)
topics = st.one_of(
    st.lists(st.sampled_from((*LEVELS, "x", "")), min_size=1, max_size=5)
    .map("/".join)
    .filter(bool),
    st.sampled_from(["$x", "$x/a", "$x/a/b"]),
)


@st.composite
def filters(draw: st.DrawFn) -> str:
    """Wildcards more often than not; they span zones and overlap."""
    levels = draw(st.lists(st.sampled_from((*LEVELS, "+", "+", "x")), min_size=0, max_size=4))
    if draw(st.booleans()) or not levels:
        levels.append("#")
    if draw(st.integers(0, 9)) == 0:
        levels.insert(0, "$x")
    return "/".join(levels)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A whole run."""
    owned = draw(st.lists(apexes, min_size=0, max_size=6, unique=True))
    edges = draw(st.integers(0, 7 - len(owned)))
    others: list[tuple[str, str | None]] = [(f"n{i}", apex) for i, apex in enumerate(owned)]
    others += [(f"e{i}", None) for i in range(edges)]
    zones = {"root": "", **dict(draw(st.permutations(others)))}
    clients = tuple(draw(st.lists(st.sampled_from(sorted(zones)), min_size=2, max_size=6)))
    who = st.integers(0, len(clients) - 1)
    qos = st.integers(0, 2)
    subscribe = st.tuples(
        st.just("subscribe"), who, st.lists(st.tuples(filters(), qos), min_size=1, max_size=3)
    )
    publish = st.tuples(st.just("publish"), who, topics, qos)
    retain = st.tuples(st.just("retain"), who, topics, qos, st.booleans())
    unsubscribe = st.tuples(st.just("unsubscribe"), who, st.integers(0, 5))
    step = st.one_of(subscribe, publish, publish, publish, retain, unsubscribe)
    steps = draw(st.lists(step, min_size=10, max_size=60))
    return Plan(zones, draw(st.booleans()), clients, tuple(steps))


# -- a run


class Run:
    """The plan on a real cluster, beside the model."""

    def __init__(self, cluster: Cluster, plan: Plan) -> None:
        self.cluster = cluster
        self.plan = plan
        self.model = Broker()
        self.clients: list[Client] = []
        self.number = 0
        self.receivers: dict[bytes, tuple[int, str, set[str]]] = {}
        self.unacknowledged: set[tuple[int, str]] = set()
        self.pending: list[Any] = []

    async def run(self) -> None:
        """Every step, then the comparison."""
        for number, node in enumerate(self.plan.clients):
            self.clients.append(await self.cluster.client(node, f"client{number}"))
        for kind, who, *rest in self.plan.steps:
            if kind == "publish":
                self.publish(who, *rest, retain=False, payload=True)
                continue
            # Concurrent publishers have no order among each other; here the model needs one.
            await self.barrier()
            if kind == "subscribe":
                await self.clients[who].subscribe(*rest[0])
                self.model.subscribe(f"client{who}", rest[0])
            elif kind == "retain":
                topic, qos, payload = rest
                self.publish(who, topic, qos, retain=True, payload=payload)
                await self.barrier()
            else:
                await self.unsubscribe(who, rest[0])
        await self.barrier()
        await self.drain()
        self.compare()
        self.count_copies()

    def publish(self, who: int, topic: str, qos: int, *, retain: bool, payload: bool) -> None:
        """Send it and go on."""
        self.number += 1
        data = f"{who}:{self.number}".encode() if payload else b""
        receivers = self.model.publish(topic, data, qos, retain)
        if data:
            self.receivers[data] = who, topic, receivers
        self.pending.append(self.clients[who].start(topic, data, qos, retain=retain))
        if not qos:
            self.unacknowledged.add((who, topic))

    async def unsubscribe(self, who: int, choice: int) -> None:
        """One of the filters that the client has, or one that it has not."""
        have = sorted(self.model.subscriptions[f"client{who}"])
        topic_filter = have[choice % len(have)] if have else "never/had"
        await self.clients[who].unsubscribe(topic_filter)
        self.model.unsubscribe(f"client{who}", topic_filter)

    async def barrier(self) -> None:
        """All owners have all publishes, all clients all deliveries."""
        for who, topic in sorted(self.unacknowledged):
            # In the same zone, behind the QoS 0 publish.
            self.publish(who, f"{topic}/~", 1, retain=False, payload=True)
        self.unacknowledged.clear()
        pending, self.pending = self.pending, []
        for acknowledged in pending:
            await asyncio.wait_for(acknowledged, PATIENCE)
        # On a busy machine a zone may pass for away: what was published is safe at the edge then,
        # and is still to come to those who subscribe before its owner has it.
        await until(self.cluster.is_drained, PATIENCE)
        for number, client in enumerate(self.clients):
            expected = self.model.delivered[f"client{number}"]
            try:
                await until(lambda c=client, e=expected: len(c.received) >= len(e), PATIENCE)
            except AssertionError:
                self.compare()
                raise

    async def drain(self) -> None:
        """Whatever is still on its way to a client arrives: nothing should."""
        # An owner's answer to a subscription travels behind its earlier deliveries.
        for node in self.cluster.nodes:
            last = await self.cluster.client(node)
            await last.subscribe(("#", 0), ("$x/#", 0))
        for client in self.clients:
            await client.ping()

    def compare(self) -> None:
        """The same deliveries; order per publisher, topic and QoS."""
        for number, client in enumerate(self.clients):
            got = [(p.topic, p.payload, p.qos, p.retain) for p in client.received]
            expected = Counter(self.model.delivered[f"client{number}"])
            found = Counter(got)
            assert expected == found, (
                f"client{number} at {self.plan.clients[number]}:"
                f" missing {expected - found}, too many {found - expected}"
            )
            rows: dict[tuple[bytes, str, int], list[int]] = defaultdict(list)
            for topic, payload, qos, retain in got:
                if payload and not retain:
                    publisher, _, place = payload.partition(b":")
                    rows[publisher, topic, qos].append(int(place))
            for key, places in rows.items():
                assert places == sorted(places), f"client{number}: {key} in the order {places}"

    def count_copies(self) -> None:
        """Up to the owner once, down once to each edge that has a subscriber, and nowhere else."""
        up: Counter[bytes] = Counter()
        down: dict[bytes, Counter[str]] = defaultdict(Counter)
        for passed in self.cluster.tap.passed:
            assert passed.kind in (PUBLISH, LIVE, RETAINED)
            assert passed.up == (passed.kind == PUBLISH)
            if passed.kind == PUBLISH:
                up[passed.payload] += 1
            elif passed.kind == LIVE:
                down[passed.payload][passed.edge] += 1
        for payload, (who, topic, receivers) in self.receivers.items():
            owner = self.owner_of(topic)
            edges = {self.plan.clients[int(name[6:])] for name in receivers} - {owner}
            assert down[payload] == Counter(edges), f"{payload!r} on {topic}, owner {owner}"
            assert up[payload] == (self.plan.clients[who] != owner), f"{payload!r} on {topic}"

    def owner_of(self, topic: str) -> str:
        """The node of the deepest zone that covers the topic."""
        owners = {apex: node for node, apex in self.plan.zones.items() if apex is not None}
        found = [a for a in owners if not a or topic == a or topic.startswith(a + "/")]
        return owners[max(found, key=len)]


async def run_plan(plan: Plan) -> None:
    note(f"{plan.zones} {plan.clients}")
    parents = {name: "root" for name in plan.zones if name != "root"} if plan.through_root else {}
    with tempfile.TemporaryDirectory() as directory:
        async with Cluster(Path(directory), plan.zones, parents=parents) as cluster:
            await Run(cluster, plan).run()


@settings(
    max_examples=int(os.environ.get("TXBROKER_EXAMPLES", "40")),
    deadline=None,
    phases=(Phase.explicit, Phase.generate),  # each run is real time: no shrinking
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(plan=plans())
@on_loop
async def test_a_federation_is_one_broker(plan: Plan) -> None:
    """See the module's text."""
    await run_plan(plan)


# -- walks


CHAIN: dict[str, str | None] = {
    "root": "",
    "n1": "a",
    "n2": "a/b",
    "n3": "a/b/c",
    "n4": "a/b/c/d",
    "edge": None,
}


@on_loop
async def test_walk_is_no_longer_than_the_topic_is_deep(tmp_path: Path) -> None:
    """A cold publish asks the root, then one strictly deeper zone after the other."""
    for topic in ("x", "a/x", "a/b/c/x", "a/b/c/d/e/f", "a/b/c/d"):
        async with Cluster(tmp_path, CHAIN) as cluster:
            client = await cluster.client("edge")
            del cluster.asked[:]
            await client.publish(topic, b"1", 1)
            levels = topic.count("/") + 1

            assert 1 <= len(cluster.asked) <= levels + 1, cluster.asked
            depths = [question.count("/") + bool(question) for _, question in cluster.asked]
            assert depths == sorted(set(depths)), cluster.asked

            del cluster.asked[:]
            await client.publish(topic, b"2", 1)
            assert not cluster.asked
            assert not cluster.tap.frames.get("refusal")


@on_loop
async def test_publish_after_suback_arrives_from_cold_nodes(tmp_path: Path) -> None:
    """The first thing that a node does is a subscription over all zones, or a publish into one."""
    zones = {**CHAIN, "far": None, "z": "z"}
    topics = ["x", "a/x", "a/b/x", "a/b/c/x", "a/b/c/d/x", "z/x"]
    for topic_filter in ("#", "+/#", "a/+/#", "+/b/c/#", "a/b/c/d/x"):
        async with Cluster(tmp_path, zones) as cluster:
            sub = await cluster.client("edge")
            pub = await cluster.client("far")
            await sub.subscribe((topic_filter, 1))
            for topic in topics:
                await pub.publish(topic, topic.encode(), 1)
            expected = [topic.encode() for topic in topics if matches(topic_filter, topic)]
            await sub.wait_for(len(expected))

            assert sorted(sub.payloads()) == sorted(expected)
