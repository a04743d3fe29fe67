"""
Wills on a node whose disk stalls: what waits for it must not make a client that lives look dead.

`tests/faults/disk.c` lets each sync take longer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.faults import disks
from tests.faults.disks import Disk
from tests.support import wire
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient

from .commands import run, wait_until
from .test_wills import wait_told

STALL = 2.0
"""Seconds that a sync takes."""

UNAVAILABLE = 3
"""The return code of a CONNACK: server unavailable."""

AFTER = 3.0
"""Seconds: `will_after`."""

pytestmark = pytest.mark.skipif(disks.compiler() is None, reason="needs a C compiler")


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """Of the node that is slow."""
    return Disk(tmp_path / "disk", tmp_path / "control", disks.build(tmp_path), mount=False)


@pytest.fixture
def root(tmp_path: Path, disk: Disk) -> Iterator[NodeProcess]:
    """A node alone, on that disk."""
    document = topology("root", zone="", data=str(disk.data))
    with NodeProcess(tmp_path, document, env=disk.environment()) as node:
        yield node


@contextmanager
def root_and_slow(
    tmp_path: Path, disk: Disk, **keys: str
) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """A root, and a pure edge on that disk; they know each other."""
    common = {"will_after": f"{AFTER:.0f}s", **keys}
    root = NodeProcess(tmp_path, topology("root", zone="", **common))
    of_slow = {"parent": root.grpc, "data": str(disk.data), **common}
    slow = NodeProcess(tmp_path, topology("slow", **of_slow), env=disk.environment())
    with root, slow:
        slow.wait_event("join.granted", 30.0)
        wait_until(lambda: run("tree", root.grpc).returncode == 0, what="a whole tree")
        yield root, slow


def will_of(payload: bytes, qos: int) -> wire.Will:
    return wire.Will(topic="wills/x", payload=payload, qos=qos)


def watch(node: NodeProcess) -> RawClient:
    watcher = RawClient(node.mqtt, timeout=20.0)
    watcher.connect("watcher")
    watcher.subscribe(("wills/#", 0))
    return watcher


@pytest.mark.parametrize(
    ("attempts", "qos", "clean"), [(1, 0, False), (1, 1, True), (3, 0, True), (3, 1, False)]
)
def test_client_that_gives_up_and_tries_again(
    root: NodeProcess, disk: Disk, attempts: int, qos: int, clean: bool
) -> None:
    """
    Only the last attempt is accepted, and none of its wills is published while it lives; its own is
    when it is lost.
    """
    with RawClient(root.mqtt) as client:
        client.connect("x", clean=False)
        client.disconnect()
    with ExitStack() as tries, watch(root) as watcher:
        disk.slow(STALL)
        open_ones = []
        for number in range(attempts):
            attempt = tries.enter_context(RawClient(root.mqtt))
            attempt.send(wire.connect("x", clean=False, will=will_of(b"%d" % number, qos)))
            assert not attempt.has_input(0.1 if number % 2 else 0.3)
            open_ones.append(attempt)
        with RawClient(root.mqtt, timeout=20.0) as last:
            assert last.connect("x", clean=clean, will=will_of(b"last", qos)) is not clean
            last.ping()
            for attempt in open_ones:
                attempt.expect_closed()
            assert not watcher.has_input(STALL + 0.5)
            last.ping()
            last.reset()
        watcher.expect_publish("wills/x", b"last")
        disk.slow(0)
        watcher.ping()


class Restless:
    """
    A client that roams between a root and a node on the slow disk, with a will each time.

    `due` are the wills of connections that were lost, `allowed` those of connections that were
    accepted and then taken over. A will of any other connection, or a second one, is wrong.
    """

    def __init__(self, rng: Random, nodes: Sequence[NodeProcess], watcher: RawClient) -> None:
        self._rng = rng
        self._nodes = nodes
        self._watcher = watcher
        self._number = 0
        self._early: dict[bytes, RawClient] = {}
        self.due: set[bytes] = set()
        self.allowed: set[bytes] = set()
        self.seen: set[bytes] = set()

    def attempt(self, node: NodeProcess) -> RawClient:
        """A CONNECT whose answer is not awaited."""
        self._number += 1
        client = RawClient(node.mqtt, timeout=60.0)
        will = will_of(b"%d" % self._number, self._rng.randrange(3))
        client.send(wire.connect("x", clean=self._rng.random() < 0.3, will=will))
        return client

    def visit(self, stall: float) -> None:
        """Some attempts at a node, of which the last is accepted, lives for a while, and ends."""
        rng = self._rng
        node = rng.choice(self._nodes)
        with ExitStack() as open_ones:
            for _ in range(rng.randrange(3)):
                client = open_ones.enter_context(self.attempt(node))
                self._early[b"%d" % self._number] = client
                self.look(rng.choice((0.0, 0.015, 0.3)))
            code = UNAVAILABLE
            while code == UNAVAILABLE:  # the node that has the session waits for its disk
                last = open_ones.enter_context(self.attempt(node))
                name = b"%d" % self._number
                while not last.has_input(0.02):
                    self.look(0.0)
                code = last.expect(wire.CONNACK).body[1]
            assert 0 == code
            last.ping()
            for payload, client in self._early.items():
                if client.drop():  # a CONNACK: it was accepted before the next one came
                    self.allowed.add(payload)
            self._early.clear()
            until = time.monotonic() + rng.uniform(0.0, 1.5 * stall)
            while time.monotonic() < until:
                self.look(0.05)
            last.ping()
            if rng.random() < 0.3:
                last.disconnect()
                return
            self.due.add(name)
            last.reset()
        until = time.monotonic() + 60.0
        while name not in self.seen:
            assert time.monotonic() < until, f"{name!r} does not come"
            self.look(0.1)

    def look(self, seconds: float) -> None:
        """Look at the wills that come within some seconds."""
        while self._watcher.has_input(seconds):
            payload = self._watcher.expect_publish("wills/x").payload
            early = self._early.pop(payload, None)
            if early is not None:
                early.expect(wire.CONNACK)
                early.expect_closed()
                self.allowed.add(payload)
            assert payload in self.due | self.allowed, f"{payload!r} lives"
            assert payload not in self.seen, f"{payload!r} comes again"
            self.seen.add(payload)


@pytest.mark.parametrize("seed", range(int(os.environ.get("STALLS", "2"))))
def test_no_will_of_a_client_that_lives_whatever_stalls(
    tmp_path: Path, disk: Disk, seed: int
) -> None:
    """One came 15 ms after CONNACK. Each lost connection's will comes, once; `STALLS`: how many."""
    rng = Random(seed)
    with (
        root_and_slow(tmp_path, disk, roaming_wait="30s") as (root, slow),
        watch(root) as watcher,
    ):
        client = Restless(rng, (root, slow, slow), watcher)
        for _ in range(4):
            stall = rng.choice((0.3, 1.0, 2.5, 5.0))
            disk.slow(stall)
            client.visit(stall)
        disk.slow(0)
        client.look(AFTER + 1.0)
        watcher.ping()


def test_node_whose_disk_stalls_is_alive(tmp_path: Path, disk: Disk) -> None:
    """Its clients are not dead to the others, who keep their wills."""
    with (
        root_and_slow(tmp_path, disk) as (root, slow),
        watch(root) as watcher,
        RawClient(slow.mqtt, timeout=20.0) as lives,
    ):
        lives.connect("x", clean=False, will=will_of(b"early", 1))
        wait_told(root)
        disk.slow(3 * AFTER)
        until = time.monotonic() + 5 * AFTER
        while time.monotonic() < until:  # so that there is always something to sync
            with RawClient(slow.mqtt) as other:
                other.send(wire.connect(f"other-{time.monotonic()}", clean=False))
                assert not watcher.has_input(0.3), watcher.receive()
        lives.ping()
        watcher.ping()
        disk.slow(0)
        slow.pause()  # the root does notice when it has gone
        watcher.expect_publish("wills/x", b"early")
        slow.resume()
