"""A play of its seed: a tree whose nodes are of two versions, clients, deaths, moves, upgrades."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import attrs

from tests.support import wire
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from tests.support.wire import PUBCOMP, PUBREC, PUBREL
from tests.system.commands import output, run, wait_until
from txbroker.model.topics import matches

from .clients import PATIENCE, Session, connected
from .older import VERSIONS, environment

ZONES = {"root": "", "a": "a", "ab": "a/b", "abc": "a/b/c", "b": "b"}
PARENTS = {"a": "root", "ab": "a", "abc": "ab", "b": "root", "edge": "root", "far": "ab"}
TREES = (
    ("root", "a", "edge"),
    ("root", "a", "b", "edge"),
    ("root", "a", "ab", "edge"),
    ("root", "a", "ab", "abc", "far"),
)
TOPICS = ("t", "a/t", "a/b/t", "a/b/c/t", "b/t", "a/ä/€", "b", "a//x")
FILTERS = ("#", "a/#", "+/t", "a/b/#", "b/#", "a/+/+")
IDS = ("reader", "läser €", "r" * 250, "a/b c", "\u4e2d\u6587")
SIZES = (0, 1, 60, 3_000, 70_000)


@attrs.define(slots=True, eq=False)
class Writer:
    """A durable session that publishes, and what of it is open: topic and payload by packet id."""

    client_id: str
    open: dict[int, tuple[str, bytes]] = attrs.Factory(dict)
    last_id: int = 0
    is_begun: bool = False

    def next_id(self) -> int:
        """A packet id that is not open."""
        self.last_id = self.last_id % 60_000 + 1
        return self.last_id if self.last_id not in self.open else self.next_id()


class Play:
    """The state of one play; `step` does one thing at random, `finish` looks at everything."""

    def __init__(self, seed: int, folder: Path, stack: ExitStack) -> None:
        self.rng = rng = Random(seed)
        self.is_mixed = rng.random() < 0.5
        self.nodes: dict[str, NodeProcess] = {}
        self.late = ""
        self.sessions = [Session(name) for name in rng.sample(IDS, 3)]
        self.writers = [Writer("writer"), Writer("författare")]
        self.retained: dict[str, bytes] = {}
        self.number = 0
        self.told: list[str] = []
        names = rng.choice(TREES)
        for name in names:
            self.nodes[name] = self._build(name, folder)
            stack.callback(self.nodes[name].close)
        leaves = [name for name in names if name in ZONES and self._is_leaf(name)]
        if rng.random() < 0.7:
            self.late = rng.choice(leaves)

    # the tree

    def begin(self) -> None:
        """Start all nodes but the late one."""
        for name, node in self.nodes.items():
            if name != self.late:
                node.start(timeout=PATIENCE)
        self.settle()

    def settle(self) -> None:
        """Return when all zones of running nodes are served."""
        wanted = {name for name, node in self.nodes.items() if node.running and name in ZONES}

        def whole() -> bool:
            done = run("tree", self.nodes["root"].grpc, "--json")
            rows = json.loads(done.stdout) if done.returncode == 0 else []
            return wanted == {row["node"] for row in rows if row["node"] in ZONES}

        wait_until(whole, PATIENCE, what=f"a whole tree of {sorted(wanted)}")

    def upgrade(self, name: str) -> None:
        """From its next start on the node has this checkout's version."""
        self.nodes[name].env.pop("PYTHONPATH", None)

    def is_older(self, name: str) -> bool:
        """True if the node has an earlier version."""
        return "PYTHONPATH" in self.nodes[name].env

    def _build(self, name: str, folder: Path) -> NodeProcess:
        rng = self.rng
        keys: dict[str, Any] = {
            "durability": rng.choice(("sync", "sync", "interval")),
            "journal": rng.choice(("all", "qos12", "none")),
            "ledger": rng.random() < 0.5,
        }
        if name in PARENTS:
            keys["parent"] = self.nodes[PARENTS[name]].grpc
        if name in ZONES:
            keys["zone"] = ZONES[name]
        is_new = self.is_mixed and rng.random() < 0.5
        env = {} if is_new else environment(rng.choice(VERSIONS))
        return NodeProcess(folder, topology(name, **keys), env=env)

    def _is_leaf(self, name: str) -> bool:
        return name not in {PARENTS.get(other) for other in self.nodes}

    # what happens

    def step(self) -> None:
        """One thing."""
        acts = [self.publish] * 5 + [self.roam] * 4 + [self.half_publish, self.outage, self.will]
        if self.late:
            acts.append(self.move)
        act = self.rng.choice(acts)
        self.told.append(act.__name__)
        act()

    def publish(self) -> None:
        """Some messages of one writer."""
        writer = self.rng.choice(self.writers)
        client = self._begin_writer(writer)
        for _ in range(self.rng.randrange(1, 12)):
            topic, qos = self.rng.choice(TOPICS), self.rng.choice((0, 1, 2, 2))
            retain = qos > 0 and self.rng.random() < 0.3
            payload = (
                b"" if retain and self.rng.random() < 0.2 else self._payload(writer.client_id, qos)
            )
            client.publish(topic, payload, qos=qos, retain=retain)
            self._note(topic, payload, qos)
            if retain:
                self.retained[topic] = payload
        self.retained = {topic: payload for topic, payload in self.retained.items() if payload}
        self.rng.choice((client.drop, client.disconnect))()

    def publish_beside(self) -> None:
        """Messages of a stranger, while a node is away."""
        running = [node for node in self.nodes.values() if node.running]
        client = RawClient(self.rng.choice(running).mqtt, timeout=PATIENCE)
        client.connect(f"stranger{self.number}")
        for _ in range(self.rng.randrange(1, 12)):
            topic, qos = self.rng.choice(TOPICS), self.rng.choice((1, 2))
            payload = self._payload(f"stranger{self.number}", qos)
            client.publish(topic, payload, qos=qos)
            self._note(topic, payload, qos)
        client.disconnect()

    def half_publish(self) -> None:
        """A writer breaks off behind PUBREC."""
        writer = self.rng.choice(self.writers)
        client = self._begin_writer(writer)
        topic, number = self.rng.choice(TOPICS), writer.next_id()
        payload = self._payload("half", 2)
        client.send(wire.publish(topic, payload, qos=2, packet_id=number))
        client.wait_for(PUBREC, number)
        writer.open[number] = topic, payload
        self._note(topic, payload, 2)
        client.drop()

    def will(self) -> None:
        """A client vanishes, and its will is published."""
        topic, payload = self.rng.choice(TOPICS), self._payload("will", 1)[:60_000]
        client = RawClient(self._node().mqtt, timeout=PATIENCE)
        client.connect(f"mortal{self.number}", will=wire.Will(topic=topic, payload=payload, qos=1))
        client.drop()
        self._note(topic, payload, 1)

    def roam(self) -> None:
        """A session turns up at any node, takes some or all, or subscribes to something else."""
        session = self.rng.choice(self.sessions)
        client = self._begin_session(session)
        if self.rng.random() < 0.4:
            session.take(client, self.rng)
        else:
            session.take(client)
            if not session.filters or self.rng.random() < 0.2:
                self._subscribe(session, client)
        self.rng.choice((client.drop, client.disconnect))()

    def outage(self) -> None:
        """A node dies, others publish, and it is back, perhaps upgraded."""
        name = self.rng.choice([name for name, node in self.nodes.items() if node.running])
        node = self.nodes[name]
        self.told.append(f"kill {name}")
        node.kill()
        if self.rng.random() < 0.5:
            self.upgrade(name)
        self.publish_beside()
        node.start(timeout=PATIENCE)
        self.settle()

    def move(self) -> None:
        """The late node takes its zone over, or gives it back."""
        node = self.nodes[self.late]
        self.told.append(self.late)
        if node.running:
            output("retire", node.grpc)
            node.wait(PATIENCE)
        else:
            node.start(timeout=PATIENCE)
            node.wait_event("join.granted", PATIENCE)
        self.settle()

    # the end

    def finish(self) -> None:
        """All nodes are killed, and what they left behind is served by this version."""
        running = [name for name, node in self.nodes.items() if node.running]
        self.rng.shuffle(running)
        dead = running.pop() if len(running) > 2 else ""
        if dead:
            self.nodes[dead].kill()
            self.publish_beside()
        for name in running:
            self.nodes[name].kill()
        for name in self.nodes:
            self.upgrade(name)
        for name in (dead, *running):
            if name:
                self.nodes[name].start(ready=False)
        self.settle()
        for writer in self.writers:
            self._begin_writer(writer).disconnect()
        for session in self.sessions:
            client = self._begin_session(session)
            session.take(client)
            client.disconnect()
            self._check_order(session)
        self._check_retained()

    def _check_order(self, session: Session) -> None:
        """Messages of one writer, topic and QoS come in the order in which they were published."""
        last: dict[tuple[str, bytes, bytes], int] = {}
        for topic, payloads in session.got.items():
            for payload in filter(None, payloads):
                number, writer, qos = payload.split(b" ")[:3]
                before = last.get((topic, writer, qos), -1)
                assert before < int(number), f"{session.client_id}: {topic}: {before}, {number!r}"
                last[topic, writer, qos] = int(number)

    def _check_retained(self) -> None:
        client = RawClient(self._node().mqtt, timeout=PATIENCE)
        client.connect("new")
        client.subscribe(("#", 1))
        got = {m.topic: m.payload for m in client.take(len(self.retained))}
        assert got == self.retained
        client.ping()
        client.disconnect()

    # clients

    def _begin_session(self, session: Session) -> RawClient:
        client, was_there = connected(lambda: self._node().mqtt, session.client_id, clean=False)
        assert was_there == session.is_begun, f"{session.client_id}: session present {was_there}"
        session.is_begun = True
        return client

    def _begin_writer(self, writer: Writer) -> RawClient:
        client, was_there = connected(lambda: self._node().mqtt, writer.client_id, clean=False)
        assert was_there == writer.is_begun, f"{writer.client_id}: session present {was_there}"
        writer.is_begun = True
        for number, (topic, payload) in sorted(writer.open.items()):
            client.send(wire.publish(topic, payload, qos=2, packet_id=number, dup=True))
            client.wait_for(PUBREC, number)
            client.send(wire.ack(PUBREL, number))
            client.wait_for(PUBCOMP, number)
        writer.open.clear()
        return client

    def _subscribe(self, session: Session, client: RawClient) -> None:
        if session.filters:
            client.unsubscribe(*session.filters)
        # A retained message may come anew, behind those that came later.
        self._check_order(session)
        session.got.clear()
        name, qos = self.rng.choice(FILTERS), self.rng.choice((1, 2))
        session.filters = {name: qos}
        client.subscribe((name, qos))
        for topic, payload in self.retained.items():
            if matches(name, topic):
                session.due[topic, payload] += 1
        session.take(client)

    def _node(self) -> NodeProcess:
        return self.rng.choice([node for node in self.nodes.values() if node.running])

    def _payload(self, writer: str, qos: int) -> bytes:
        self.number += 1
        return f"{self.number} {writer} {qos} ".encode() + b"x" * self.rng.choice(SIZES)

    def _note(self, topic: str, payload: bytes, qos: int) -> None:
        for session in self.sessions:
            session.on_published(topic, payload, qos)
