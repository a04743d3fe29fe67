"""
A consumer that does not read: the others get everything, memory stays bounded, drops are counted.

Real nodes, publisher and subscribers on two of them; the slow one never reads its socket.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import TIMEOUT, RawClient

from .strangers import resident

COUNT = 30_000
PAYLOAD = b"x" * 1_000
AT_ONCE = {0: 100, 1: 500}
"""Messages that are published in one write, by QoS; at QoS 1 the window."""

AHEAD = 200
"""
Messages that the publisher is ahead of a subscriber at QoS 0: fewer bytes than its output may have.

Else a subscriber that a busy machine lets wait for longer than publishers wait loses some, by rule.
"""

MEMORY_LIMIT = 120 * 1024 * 1024
"""Bytes a node may grow by; what is published is less than this by itself only at QoS 0."""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """The owner of the topics (root), and an edge that has joined it."""
    root = NodeProcess(tmp_path, topology("root", zone=""))
    edge = NodeProcess(tmp_path, topology("edge", zone="elsewhere", parent=root.grpc))
    with root, edge:
        edge.wait_event("join.granted")
        yield root, edge


def flood(publisher: RawClient, qos: int, room: threading.Semaphore | None = None) -> None:
    """Publish COUNT messages, each when there is room for it; at QoS 1 with a window."""
    at_once = AT_ONCE[qos]
    for start in range(0, COUNT, at_once):
        numbers = range(start, start + at_once)
        if room is not None and not all(room.acquire(timeout=TIMEOUT) for _ in numbers):
            return  # the subscriber tells what it misses
        publisher.send(
            *(
                wire.publish(
                    "t", b"%d " % n + PAYLOAD, qos=qos, packet_id=n % at_once + 1 if qos else None
                )
                for n in numbers
            )
        )
        for _ in numbers if qos else ():
            publisher.expect(wire.PUBACK)


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("where", ["owner", "edge"])
def test_others_are_not_held_up(
    nodes: tuple[NodeProcess, NodeProcess], qos: int, where: str
) -> None:
    """The healthy subscriber gets every message in order beside one that never reads."""
    root, edge = nodes
    at = root if where == "owner" else edge
    with RawClient(at.mqtt) as stuck, RawClient(at.mqtt) as healthy, RawClient(root.mqtt) as pub:
        for client, name in ((stuck, "stuck"), (healthy, "healthy"), (pub, "pub")):
            client.connect(name)
        stuck.subscribe(("t", qos))
        healthy.subscribe(("t", qos))
        before = {node.name: resident(node) for node in nodes}
        room = None if qos else threading.Semaphore(AHEAD)
        sender = threading.Thread(target=flood, args=(pub, qos, room))
        sender.start()
        numbers = []
        while len(numbers) < COUNT:
            message = healthy.expect_publish()
            if room is None:
                healthy.acknowledge(message)
            else:
                room.release()
            numbers.append(int(message.payload.split()[0]))
        sender.join()

        assert list(range(COUNT)) == numbers
        for node in nodes:
            assert resident(node) - before[node.name] < MEMORY_LIMIT, node.name


def test_drops_are_counted(nodes: tuple[NodeProcess, NodeProcess]) -> None:
    """What a stuck subscriber lost shows in `$SYS`, and it is served again once it reads."""
    root, _ = nodes
    with RawClient(root.mqtt) as stuck, RawClient(root.mqtt) as pub:
        stuck.connect("stuck")
        pub.connect("pub")
        stuck.subscribe(("t", 0))
        flood(pub, 0)
        topic = "$SYS/txbroker/count/session.dropped.qos0"
        with RawClient(root.mqtt, timeout=30) as reader:  # set every 10 s
            reader.connect("reader")
            reader.subscribe((topic, 0))
            assert int(reader.expect_publish().payload) > 0
        stuck.send(wire.PING)
        while stuck.receive().kind != wire.PINGRESP:
            pass
        pub.publish("t", b"end")
        assert stuck.expect_publish().payload == b"end"


class Busy:
    """
    A node under load, and an innocent client of it: how long each of its messages took (`found`),
    and how many the load's publisher had acknowledged meanwhile (`count`).
    """

    def __init__(self, node: NodeProcess, ended: threading.Event) -> None:
        self.found: list[float] = []
        self.count = 0
        self._node = node
        self._ended = ended
        self._threads = [threading.Thread(target=run) for run in (self._load, self._live)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Wait for both."""
        for thread in self._threads:
            thread.join()
        self.found.sort()

    def _load(self) -> None:
        with RawClient(self._node.mqtt) as pub:
            pub.connect("load")
            while not self._ended.is_set():
                numbers = range(1, 101)
                pub.send(*(wire.publish("t", PAYLOAD, qos=1, packet_id=n) for n in numbers))
                for _ in numbers:
                    pub.expect(wire.PUBACK)
                self.count += 100

    def _live(self) -> None:
        with RawClient(self._node.mqtt) as innocent:
            innocent.connect("innocent")
            innocent.subscribe(("quiet", 0))
            while not self._ended.wait(0.005):
                begun = time.monotonic()
                innocent.publish("quiet")
                innocent.expect_publish()
                self.found.append(time.monotonic() - begun)


def test_strangers_that_never_read_come_in_numbers(tmp_path: Path) -> None:
    """
    Four a second: the node waits for all of them together, not for each of them in turn. What a
    busy machine adds to that shows at the other node, whose load is the same.
    """
    with (
        NodeProcess(tmp_path / "root", topology("root", zone="")) as root,
        NodeProcess(tmp_path / "other", topology("other", zone="")) as other,
    ):
        here, there = _stuck_for_a_while(root, other)

    # One wait of 0.3 s after the other held everybody: a p50 of 30 ms, and 50 messages a second.
    usual = there.found
    assert here.found[len(here.found) // 2] < 0.02 + 2 * usual[len(usual) // 2]
    assert here.found[len(here.found) * 8 // 10] < 0.1 + 2 * usual[len(usual) * 8 // 10]
    assert here.count > there.count / 10


def _stuck_for_a_while(root: NodeProcess, other: NodeProcess) -> tuple[Busy, Busy]:
    ended = threading.Event()
    stuck: list[RawClient] = []
    here, there = Busy(root, ended), Busy(other, ended)
    try:
        for number in range(24):
            stuck.append(RawClient(root.mqtt))
            stuck[-1].connect(f"stuck {number}")
            stuck[-1].subscribe(("t", 0))
            time.sleep(0.25)  # what strangers do, not what is waited for
    finally:
        ended.set()
        here.end()
        there.end()
        for client in stuck:
            client.close()
    return here, there
