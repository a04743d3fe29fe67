"""
Data folders that earlier versions wrote are served: nothing is lost, nothing comes twice.

What stands in them is told in tests/data/story.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.data
from tests.data import LEVEL_5, story, unpack
from tests.support import wire
from tests.support.nodes import NodeProcess
from tests.support.rawclient import RawClient
from tests.support.wire import PUBCOMP, PUBLISH, PUBREC, PUBREL
from tests.upgrade.older import VERSIONS

from .commands import as_json, wait_until

ARCHIVES = [
    archive
    for archive in sorted(Path(tests.data.__file__).parent.glob("*.tar.xz"))
    if not archive.name.endswith(LEVEL_5)
]

Tree = dict[str, NodeProcess]


def name_of(archive: Path) -> str:
    """The version that wrote it."""
    return archive.name.removesuffix(".tar.xz")


def test_each_version_has_its_folders() -> None:
    """What is written for a release is served, and played with its nodes, from then on."""
    assert sorted(map(name_of, ARCHIVES)) == sorted(VERSIONS)


@pytest.fixture(params=ARCHIVES, ids=name_of)
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tree]:
    """Five nodes of this version with the data of an earlier one."""
    unpack(request.param, tmp_path)
    nodes = story.nodes(tmp_path)
    try:
        for node in nodes.values():
            node.start(ready=False)
        for name in story.PARENTS:
            nodes[name].wait_event("join.granted", 30.0)
        yield nodes
    finally:
        for node in nodes.values():
            node.close()


def test_nothing_is_lost_or_doubled(tree: Tree) -> None:
    """Zones, retained messages, backlogs, the outbox and half exchanges are what they were."""
    wait_until(lambda: all(row["alive"] for row in rows(tree)), what="a whole tree")
    assert {(row["zone"], row["node"]) for row in rows(tree)} == {
        (zone, name) for name, zone in story.ZONES.items()
    }
    # An unpacked folder is a copy, which serves at a new epoch; those without identity cannot tell.
    is_copy = tree["root"].has_event("node.restored")
    epochs = {row["epoch"] for row in rows(tree)}
    assert 1 not in epochs if is_copy else epochs == {1}
    check_half(tree)
    check_writer(tree)
    check_backlog(tree)
    check_retained(tree)


def rows(tree: Tree) -> list[dict[str, object]]:
    found = as_json("tree", tree["root"].grpc)
    return [row for row in found if row["node"] != "edge"]


def check_half(tree: Tree) -> None:
    """PUBREL of the first message and the second message come again, with their identifiers."""
    half = RawClient(tree["ab"].mqtt)
    assert half.connect(story.HALF, clean=False)
    again = [half.receive(), half.receive()]
    release = next(packet for packet in again if packet.kind == PUBREL)
    message = wire.parse_publish(next(packet for packet in again if packet.kind == PUBLISH))
    assert (message.payload, message.dup) == (b"2", True)
    half.send(wire.ack(PUBCOMP, release.packet_id))
    half.acknowledge(message)
    half.ping()
    half.disconnect()


def check_writer(tree: Tree) -> None:
    """A repeat of the open publish is acknowledged, and published no second time."""
    writer = RawClient(tree["b"].mqtt)
    assert writer.connect(story.WRITER, clean=False)
    repeat = wire.publish(story.WRITER_TOPIC, b"once", qos=2, packet_id=story.WRITER_ID, dup=True)
    writer.send(repeat)
    writer.wait_for(PUBREC, story.WRITER_ID)
    writer.send(wire.ack(PUBREL, story.WRITER_ID))
    writer.wait_for(PUBCOMP, story.WRITER_ID)
    writer.disconnect()


def check_backlog(tree: Tree) -> None:
    """The reader, at a node where its session never was, gets all that waited, once, in order."""
    reader = RawClient(tree["b"].mqtt)
    assert reader.connect(story.READER, clean=False)
    topics = (*story.BACKLOG, *story.OUTBOX)
    got: dict[str, list[bytes]] = defaultdict(list)
    expected = {topic: [str(n).encode() for n in range(story.EACH)] for topic in topics}
    expected[story.HALF_TOPIC] = [str(n).encode() for n in story.HALF_IDS]
    expected[story.WRITER_TOPIC] = [b"once"]
    for message in reader.take(sum(map(len, expected.values()))):
        got[message.topic].append(message.payload)
    assert got == expected
    reader.ping()
    reader.disconnect()


def check_retained(tree: Tree) -> None:
    """A new subscriber gets the retained message of each zone, and none that was cleared."""
    client = RawClient(tree["edge"].mqtt)
    client.connect("new")
    client.subscribe(("#", 1))
    got = {message.topic: message.payload for message in client.take(len(story.RETAINED))}
    assert got == story.RETAINED
    client.ping()
    client.disconnect()
