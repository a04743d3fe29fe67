"""
Data folders with what MQTT 5.0 adds, written by earlier versions, are served.

What stands in them is told in tests/data/story5.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import tests.data
from tests.data import LEVEL_5, story5, unpack
from tests.support import wire5
from tests.support.nodes import NodeProcess
from tests.support.rawclient5 import RawClient5

ARCHIVES = sorted(Path(tests.data.__file__).parent.glob(f"*{LEVEL_5}"))

Tree = dict[str, NodeProcess]


@pytest.fixture(params=ARCHIVES, ids=lambda archive: archive.name.partition(".")[0])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tree]:
    """Three nodes of this version with the data of an earlier one."""
    unpack(request.param, tmp_path)
    nodes = story5.nodes(tmp_path)
    try:
        for node in nodes.values():
            node.start(ready=False)
        for name in story5.NAMES[1:]:
            nodes[name].wait_event("join.granted", 60.0)
        yield nodes
    finally:
        for node in nodes.values():
            node.close()


def test_what_level_5_left_is_served(tree: Tree) -> None:
    """Wills, backlogs and retained messages with properties, and what a group shares."""
    with RawClient5(tree["a"].mqtt, timeout=90.0) as watch:
        watch.connect("watch")
        watch.subscribe(("a/mourned", 1), ("a/sleeper", 1))
        check_sleeper(tree)
        check_reader(tree)
        check_members(tree)
        check_retained(tree)
        (will,) = watch.take(1)
        assert (will.topic, will.payload) == (story5.MOURNED_WILL, story5.MOURNED.encode())
        assert set(will.properties) == set(story5.PROPERTIES)
        watch.ping()


def check_sleeper(tree: Tree) -> None:
    """It is back before its will is due: its session is there, and its will is not published."""
    with RawClient5(tree["root"].mqtt, timeout=60.0) as sleeper:
        assert sleeper.connect(story5.SLEEPER, clean=False, expiry=0).present
        sleeper.disconnect()


def check_reader(tree: Tree) -> None:
    """At a node where it never was it gets all, once, in order, with what its messages say."""
    with RawClient5(tree["root"].mqtt, timeout=60.0) as reader:
        assert reader.connect(story5.READER, clean=False, expiry=story5.FOREVER).present
        got: dict[tuple[str, int], list[bytes]] = {}
        for message in reader.take(2 * len(story5.TOPICS) * story5.EACH):
            got.setdefault((message.topic, message.qos), []).append(message.payload)
            check_properties(message, (wire5.SUBSCRIPTION_ID, story5.IDENTIFIER))
        numbers = [str(number).encode() for number in range(story5.EACH)]
        assert got == {(topic, qos): numbers for topic in story5.TOPICS for qos in (1, 2)}
        reader.ping()
        reader.disconnect()


def check_members(tree: Tree) -> None:
    """Each job is done by one member; those that were sent come again to whom they were sent."""
    done: Counter[bytes] = Counter()
    members = [RawClient5(tree[name].mqtt, timeout=60.0) for name in ("edge", "root")]
    for member, name in zip(members, story5.MEMBERS, strict=True):
        assert member.connect(name, clean=False, expiry=story5.FOREVER).present
    while len(done) < story5.COUNT:
        for member in members:
            if member.has_input(0.1):
                (message,) = member.take(1)
                done[message.payload] += 1
                check_properties(message)
                assert message.dup or message.payload not in (b"0", b"1")
    for member in members:
        member.ping()
        member.disconnect()
    assert set(done.values()) == {1}


def check_retained(tree: Tree) -> None:
    """A new subscriber gets the retained message of each zone, with what it says."""
    with RawClient5(tree["edge"].mqtt, timeout=60.0) as client:
        client.connect("new")
        client.subscribe(("kept", 1), ("a/kept", 1))
        found = client.take(len(story5.RETAINED))
        assert {message.topic: message.payload for message in found} == story5.RETAINED
        for message in found:
            check_properties(message)
        client.ping()


def check_properties(message: wire5.Publish, *more: tuple[int, wire5.Value]) -> None:
    """All that the publisher said is there, and of the expiry what is left."""
    left = wire5.first(message.properties, wire5.MESSAGE_EXPIRY)
    assert isinstance(left, int) and 0 < left <= story5.YEARS
    said = [*story5.PROPERTIES, *more, (wire5.MESSAGE_EXPIRY, left)]
    assert set(message.properties) == set(said), message
