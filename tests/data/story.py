"""
The tree of the data folders, and what its clients did before all nodes were killed.

The data folders contain the nodes' addresses, so the story has a loopback address of its own.

`write` plays the story on nodes of this checkout. Its durable sessions:

- `READER` subscribed to `#` at root, roamed to edge, then to a, and left. A backlog at QoS 1 and 2
  waits for it in each zone, and ten messages for it wait in edge's outbox for zone b.
- `HALF` got two messages at QoS 2 and answered the first with PUBREC only, the second not at all.
- `WRITER` published at QoS 2 at edge and has PUBREC, but did not send PUBREL.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support import wire
from tests.support.nodes import NodeProcess
from tests.support.rawclient import RawClient
from tests.support.wire import PUBLISH, PUBREC, PUBREL

HOST = "127.93.4.1"
FOREVER = "3650d"

READER, HALF, WRITER = "reader", "half", "writer"
HALF_TOPIC, WRITER_TOPIC = "a/half", "a/b/writer"
HALF_IDS = (1, 2)
WRITER_ID = 7

ZONES = {"root": "", "a": "a", "ab": "a/b", "b": "b"}
PARENTS = {"a": "root", "ab": "a", "b": "root", "edge": "root"}
NAMES = (*ZONES, "edge")

RETAINED = {f"{zone}/kept".lstrip("/"): f"kept of {name}".encode() for name, zone in ZONES.items()}
CLEARED = "a/cleared"
BACKLOG = tuple(f"{zone}/q{qos}".lstrip("/") for zone in ZONES.values() for qos in (1, 2))
OUTBOX = ("b/late1", "b/late2")
EACH = 10
"""Messages of each topic of the backlog and the outbox, their payloads 0 to 9."""


def document(name: str) -> dict[str, Any]:
    """The topology of one node."""
    number = NAMES.index(name)
    keys: dict[str, Any] = {"node": name}
    if name in ZONES:
        keys["zone"] = ZONES[name]
    if name in PARENTS:
        keys["parent"] = f"{HOST}:{7001 + NAMES.index(PARENTS[name])}"
    return {
        **keys,
        "mqtt": [f"tcp:0:interface={HOST}"],
        "grpc": f"{HOST}:{7001 + number}",
        "data": f"data-{name}",
        "session_limits": {"age": FOREVER},
        "retention": {"age": FOREVER},
    }


def nodes(directory: Path) -> dict[str, NodeProcess]:
    """The five nodes, not started; their data folders are in `directory`."""
    return {name: NodeProcess(directory, document(name)) for name in NAMES}


def qos_of(topic: str) -> int:
    """The QoS that a topic of `BACKLOG` or `OUTBOX` was published at."""
    return int(topic[-1])


def write(directory: Path) -> None:
    """Play the story in `directory`; all nodes are killed when this returns."""
    tree = nodes(directory)
    with ExitStack() as stack:
        for node in tree.values():
            stack.callback(node.close)
            node.start()
        for name in PARENTS:
            tree[name].wait_event("join.granted", 30.0)
        _play(tree)
        for node in tree.values():
            node.kill()


def _play(tree: dict[str, NodeProcess]) -> None:
    edge = RawClient(tree["edge"].mqtt)
    edge.connect("publisher")
    for topic, payload in RETAINED.items():
        edge.publish(topic, payload, qos=1, retain=True)
    edge.publish(CLEARED, b"gone", qos=1, retain=True)
    edge.publish(CLEARED, b"", qos=1, retain=True)
    _roam(tree)
    half = _subscribe_half(tree["ab"])
    for number in range(EACH):
        for topic in BACKLOG:
            edge.publish(topic, str(number).encode(), qos=qos_of(topic))
    for number in HALF_IDS:
        edge.publish(HALF_TOPIC, str(number).encode(), qos=2)
    _answer_half(half)
    writer = RawClient(tree["edge"].mqtt)
    writer.connect(WRITER, clean=False)
    writer.send(wire.publish(WRITER_TOPIC, b"once", qos=2, packet_id=WRITER_ID))
    writer.wait_for(PUBREC, WRITER_ID)
    tree["b"].kill()
    for number in range(EACH):
        for topic in OUTBOX:
            edge.publish(topic, str(number).encode(), qos=qos_of(topic))
    tree["edge"].wait_event("outbox.opened", zone="b")


def _roam(tree: dict[str, NodeProcess]) -> None:
    for name in ("root", "edge", "a"):
        reader = RawClient(tree[name].mqtt)
        was_there = reader.connect(READER, clean=False)
        assert was_there == (name != "root"), f"session present {was_there} at {name}"
        if not was_there:
            reader.subscribe(("#", 2))
            reader.take(len(RETAINED))
        reader.disconnect()


def _subscribe_half(node: NodeProcess) -> RawClient:
    half = RawClient(node.mqtt)
    half.connect(HALF, clean=False)
    half.subscribe((HALF_TOPIC, 2))
    return half


def _answer_half(half: RawClient) -> None:
    first = wire.parse_publish(half.expect(PUBLISH))
    wire.parse_publish(half.expect(PUBLISH))
    half.send(wire.ack(PUBREC, first.packet_id))
    half.wait_for(PUBREL, first.packet_id)
