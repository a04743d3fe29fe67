"""
The time of day of real nodes steps, while they run and between their lives, and nobody notices.

`tests/faults/clock.c` shifts it for the whole process: Python, Twisted and gRPC's core. The tree is
a root and a child `a` with zone `a`; both clocks step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from tests.faults import clocks, disks
from tests.faults.clocks import Clock
from tests.faults.disks import Disk
from tests.support import wire
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient

from .commands import as_json, run, wait_until

DAY = 86_400.0
STEPS = [120.0, -60.0, 8 * DAY, -8 * DAY]
PAYLOAD = bytes(60_000)
BACKLOG = 60
SMALL = {"size": "16MiB"}
"""Segments of 1 MiB: trim by age takes whole ones."""

WILL = wire.Will(topic="wills/here", payload=b"early", qos=1)

pytestmark = pytest.mark.skipif(disks.compiler() is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is preloaded."""
    return clocks.build(tmp_path_factory.mktemp("clock"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two nodes with a clock each."""

    root: NodeProcess
    a: NodeProcess
    clocks: tuple[Clock, Clock]

    def start(self) -> None:
        self.root.start()
        self.a.start()
        self.a.wait_event("join.granted", 30.0)
        self.wait_whole()

    def wait_whole(self) -> None:
        wait_until(lambda: run("tree", self.root.grpc).returncode == 0, what="a whole tree")

    def step(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.step(seconds)


@pytest.fixture
def pair(tmp_path: Path, library: Path) -> Iterator[Pair]:
    """Not started yet."""
    ours = Clock(tmp_path / "clock-root", library), Clock(tmp_path / "clock-a", library)
    root = NodeProcess(
        tmp_path, topology("root", zone="", retention=SMALL), env=ours[0].environment()
    )
    keys = {"parent": root.grpc, "retention": SMALL}
    a = NodeProcess(tmp_path, topology("a", zone="a", **keys), env=ours[1].environment())
    pair = Pair(root=root, a=a, clocks=ours)
    try:
        yield pair
    finally:
        a.close()
        root.close()


def watch_wills(pair: Pair) -> RawClient:
    watcher = RawClient(pair.root.mqtt)
    watcher.connect("watcher")
    watcher.subscribe(("wills/#", 1))
    return watcher


def leave_backlog(pair: Pair) -> None:
    """A durable session for which much waits in both zones; a retained message in each."""
    with RawClient(pair.a.mqtt) as away:
        away.connect("away", clean=False)
        away.subscribe(("+", 1), ("a/+", 1))
        away.disconnect()
    with RawClient(pair.a.mqtt) as publisher:
        publisher.connect("publisher")
        for number in range(BACKLOG):
            publisher.publish("a/x" if number % 2 else "x", b"%d" % number + PAYLOAD, qos=1)
        for topic in ("a/kept", "kept"):
            publisher.publish(topic, b"kept", qos=1, retain=True)
        publisher.disconnect()


def check_backlog(pair: Pair) -> None:
    """All of it is there, and nothing ended or was trimmed."""
    with RawClient(pair.a.mqtt, timeout=30.0) as away:
        assert away.connect("away", clean=False)
        got = away.take(BACKLOG + 2)
        away.ping()
        away.disconnect()
    numbers = [int(m.payload.split(b"\0")[0]) for m in got if m.payload != b"kept"]
    assert list(range(1, BACKLOG, 2)) == [n for n in numbers if n % 2]
    assert list(range(0, BACKLOG, 2)) == [n for n in numbers if not n % 2]
    with RawClient(pair.root.mqtt) as new:
        new.connect("new")
        new.subscribe(("#", 1))
        assert {"a/kept", "kept"} == {message.topic for message in new.take(2)}
    for node in (pair.root, pair.a):
        for event in ("session.expired", "journal.trimmed", "journal.overtaken", "journal.dropped"):
            assert not node.has_event(event), node.tail()


def wait_for_upkeep(node: NodeProcess, count: int) -> None:
    """Until the node has looked for what is too old: it does with each set of values in $SYS."""
    with RawClient(node.mqtt, timeout=30.0) as client:
        client.connect("upkeep")
        client.subscribe("$SYS/broker/uptime")
        for _ in range(count):
            client.expect_publish()


def assert_answers(client: RawClient, packet: bytes, kind: int) -> None:
    client.send(packet)
    client.expect(kind)


@pytest.mark.parametrize("step", STEPS)
def test_nodes_that_run(pair: Pair, step: float) -> None:
    """
    Clients stay, no will is published, links live; who is silent is closed in time, what waits for
    a zone that is away waits no longer, and nothing is too old.
    """
    pair.start()
    watcher = watch_wills(pair)
    leave_backlog(pair)
    begun = time.monotonic()
    with watcher, RawClient(pair.a.mqtt) as here, RawClient(pair.a.mqtt) as silent:
        here.connect("here", keep_alive=60, will=WILL)
        silent.connect("silent", keep_alive=4)
        marks = pair.root.mark(), pair.a.mark()
        pair.step(step)

        silent.expect_closed(30.0)
        assert time.monotonic() - begun > 5.9
        with RawClient(pair.a.mqtt) as later:
            later.connect("later", keep_alive=1)
            later.expect_closed(30.0)
        here.ping()
        assert_answers(here, wire.publish("x/y", b"", qos=1, packet_id=9), wire.PUBACK)
        wait_for_upkeep(pair.a, 2)
        for node, mark in zip((pair.root, pair.a), marks, strict=True):
            for event in ("link.closed", "child.disconnected", "join.disconnected"):
                assert not node.has_event(event, after=mark), node.tail()
        assert all(row["alive"] for row in as_json("tree", pair.root.grpc))
        watcher.ping()

        pair.root.pause()  # the next is alone; it finds out by heartbeats that time out
        here.send(wire.subscribe(7, ("x/#", 1)))
        here.wait_for(wire.SUBACK, 7)
        pair.a.wait_event("link.closed", 30.0, after=marks[1])
        here.ping()
        pair.root.resume()
        pair.wait_whole()
    check_backlog(pair)


@pytest.mark.parametrize("step", STEPS)
def test_nodes_that_start(pair: Pair, step: float) -> None:
    """A board without a battery, before NTP, and again when its clock is right."""
    pair.start()
    leave_backlog(pair)
    for there, is_killed in ((step, True), (-step, False)):
        for node in (pair.a, pair.root):
            if is_killed:
                node.kill()
            else:
                node.terminate()
        pair.step(there)
        pair.start()
        with RawClient(pair.a.mqtt) as here, watch_wills(pair) as watcher:
            here.connect("here", will=WILL)
            wait_for_upkeep(pair.a, 1)
            here.ping()
            watcher.ping()
    check_backlog(pair)


@pytest.mark.parametrize("step", [-60.0, 120.0])
def test_interval_syncs(tmp_path: Path, library: Path, step: float) -> None:
    """What was acknowledged outlives a loss of power that comes some intervals later."""
    clock = Clock(tmp_path / "clock", library)
    preloaded = disks.build(tmp_path)
    disk = Disk(tmp_path / "disk", tmp_path / "control", preloaded, mount=False)
    both = {**clock.environment(), **disk.environment(), "LD_PRELOAD": f"{library}:{preloaded}"}
    keys = {"durability": "interval", "sync_interval": "200ms", "data": str(disk.data)}
    with NodeProcess(tmp_path, topology("n", zone="", **keys), env=both) as node:
        with RawClient(node.mqtt) as client:
            client.connect("c", clean=False)
            client.subscribe(("t", 1))
            client.disconnect()
        clock.step(step)
        with RawClient(node.mqtt) as client:
            client.connect("publisher")
            for number in range(20):
                client.publish("t", b"%d" % number, qos=1)
            time.sleep(5.0)  # of 200 ms each: what is shown is that they do not wait for the clock
        node.kill()
        disk.lose_power(Random(0))
        node.start()
        with RawClient(node.mqtt) as client:
            assert client.connect("c", clean=False)
            assert [b"%d" % n for n in range(20)] == [m.payload for m in client.take(20)]
