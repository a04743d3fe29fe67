"""
Wills on a node whose disk stalls: what waits for it must not make a client that lives look dead.

`tests/faults/disk.c` lets each sync take longer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

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


def test_node_whose_disk_stalls_is_alive(tmp_path: Path, disk: Disk) -> None:
    """Its clients are not dead to the others, who keep their wills."""
    common = {"will_after": f"{AFTER:.0f}s"}
    root = NodeProcess(tmp_path, topology("root", zone="", **common))
    keys = {"parent": root.grpc, "data": str(disk.data), **common}
    slow = NodeProcess(tmp_path, topology("slow", **keys), env=disk.environment())
    with root, slow:
        slow.wait_event("join.granted", 30.0)
        wait_until(lambda: run("tree", root.grpc).returncode == 0, what="a whole tree")
        with watch(root) as watcher, RawClient(slow.mqtt, timeout=20.0) as lives:
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
