"""
Nodes that are restored, again and again, from the same copy or from later ones.

Whatever the clock says meanwhile: sessions elsewhere miss nothing that was acknowledged since, and
get nothing twice, as each restored zone has an epoch that no life of it had.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults import clocks, disks
from tests.faults.clocks import Clock
from tests.support.nodes import NodeProcess, close_all, fixed_node
from tests.support.rawclient import RawClient
from tests.support.wire import PUBCOMP, PUBREL, ack, parse_publish
from tests.system.commands import output, run, wait_until

DAY = 86_400.0

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(disks.compiler() is None, reason="needs a C compiler"),
]


class House:
    """root; below it a (zone `a`) and b (zone `b`). The clock of root and a steps."""

    def __init__(self, directory: Path, **keys: Any) -> None:
        self.directory = directory
        self.keys = keys
        self.number = 0
        self.clock = Clock(directory / "clock", clocks.build(directory))
        self.root = self.make("root", "", None)
        self.a = self.make("a", "a", self.root)
        self.b = self.make("b", "b", self.root)
        self.nodes = (self.root, self.a, self.b)
        for node in self.nodes:
            node.start()
        wait_until(self.is_whole, 40.0, what="all nodes joined")

    def make(self, name: str, zone: str, parent: NodeProcess | None) -> NodeProcess:
        # The port stays, as a root may start again by itself.
        above, env = None if parent is None else parent.grpc, self.clock.environment()
        return fixed_node(self.directory, name, zone=zone, parent=above, env=env, **self.keys)

    def backup(self, node: NodeProcess) -> Path:
        self.number += 1
        target = self.directory / f"backup-{self.number}"
        output("backup", node.grpc, target)
        return target

    def restore(self, node: NodeProcess, copy: Path | None) -> None:
        """Its process and its disk are lost; it begins with the copy, or with nothing."""
        node.kill()
        shutil.rmtree(node.data)
        if copy is not None:
            shutil.copytree(copy, node.data)
        node.start()

    @contextmanager
    def alone(self, node: NodeProcess) -> Iterator[None]:
        """Nobody below hears of it: a root that is told of another one starts again."""
        others = [one for one in (self.a, self.b) if one is not node]
        for one in others:
            one.pause()
        yield
        for one in others:
            one.resume()

    def epochs(self) -> dict[str, int]:
        return {str(row["zone"]): int(row["epoch"]) for row in self.tree()}

    def tree(self) -> list[dict[str, str]]:
        rows: list[dict[str, str]] = json.loads(
            run("tree", self.root.grpc, "--json").stdout or "[]"
        )
        return rows

    def is_whole(self) -> bool:
        """True if each node has joined."""
        rows = self.tree()
        return 3 == len(rows) and all(row["alive"] for row in rows)


@pytest.fixture
def house(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[House]:
    house = House(tmp_path, **getattr(request, "param", {}))
    yield house
    close_all(reversed(house.nodes))


def publish(
    node: NodeProcess, topic: str, prefix: str, count: int = 20, *, size: int = 0
) -> list[bytes]:
    """Messages of QoS 2, of so many bytes at least, that are acknowledged when this returns."""
    payloads = [f"{prefix} {number}".encode().ljust(size) for number in range(count)]
    with RawClient(node.mqtt, timeout=20.0) as client:
        client.connect(f"publisher {prefix}")
        for payload in payloads:
            client.publish(topic, payload, qos=2)
    return payloads


def subscribe(node: NodeProcess, client_id: str, topic_filter: str) -> None:
    """A durable session, whose client leaves."""
    with RawClient(node.mqtt) as client:
        client.connect(client_id, clean=False)
        client.subscribe((topic_filter, 2))
        client.disconnect()


def receive_message(client: RawClient) -> list[bytes]:
    """The payload of the next message, acknowledged; none: the end of an earlier flow came."""
    packet = client.receive()
    if packet.kind == PUBREL:  # a node that was killed has lost the end of the last flow
        assert packet.packet_id is not None
        client.send(ack(PUBCOMP, packet.packet_id))
        return []
    message = parse_publish(packet)
    client.acknowledge(message)
    return [message.payload]


def take(node: NodeProcess, client_id: str, *last: bytes) -> list[bytes]:
    """What waits for the session, until it has got these."""
    found: list[bytes] = []
    with RawClient(node.mqtt, timeout=20.0) as client:
        assert client.connect(client_id, clean=False)
        while not set(last) <= set(found):
            found += receive_message(client)
        client.disconnect()
    return found


@pytest.mark.parametrize("zone", ["", "a"])
@pytest.mark.parametrize("is_back", ["joined", "started anew"])
def test_the_same_copy_twice(house: House, zone: str, is_back: str) -> None:
    """First with a clock that is far ahead, then with one that is less so; the reader took part."""
    node, topic = (house.a, "a/x") if zone else (house.root, "x/y")
    subscribe(house.b, "reader", topic)
    publish(node, topic, "before", 3)
    copy = house.backup(node)
    had = publish(node, topic, "lost", 40)
    assert had == take(house.b, "reader", had[-1])[-40:]

    for number, step in enumerate((10 * DAY, -5 * DAY)):
        house.clock.step(step)
        with house.alone(node):
            house.restore(node, copy)
            early = publish(node, topic, f"early {number}")
        if is_back == "started anew":
            house.b.kill()
            house.b.start()
        wait_until(house.is_whole, 40.0, what="all nodes joined again")
        late = publish(house.b, topic, f"late {number}", 3)
        assert early + late == take(house.b, "reader", late[-1])


@pytest.mark.parametrize("is_back", ["resumed", "started anew"])
def test_a_node_that_was_away_reads_all_that_copies_have(house: House, is_back: str) -> None:
    """Each copy is of the life before; all the time the reader's node hears of none of them."""
    subscribe(house.b, "reader", "a/x")
    sent = publish(house.a, "a/x", "first")
    house.b.pause()
    for number in range(2):
        house.restore(house.a, house.backup(house.a))
        sent += publish(house.a, "a/x", f"life {number}")
    if is_back == "started anew":
        house.b.kill()
        house.b.start()
    else:
        house.b.resume()
    wait_until(house.is_whole, 40.0, what="all nodes joined again")
    sent += publish(house.b, "a/x", "last", 1)

    assert sent == take(house.b, "reader", sent[-1])
    assert 3 == house.epochs()["a"]


@pytest.mark.parametrize("house", [{"retention": {"size": "1MiB"}}], indirect=True)
@pytest.mark.parametrize("zone", ["", "a"])
def test_a_small_journal_keeps_what_a_node_that_is_away_has_not_heard_of(
    house: House, zone: str
) -> None:
    """Its session needed nothing of the part before, and that is all that the node has told."""
    node, topic = (house.a, "a/x") if zone else (house.root, "x/y")
    subscribe(house.b, "reader", topic)
    had = publish(node, topic, "before", 3)
    assert had == take(house.b, "reader", had[-1])
    wait_until(lambda: not holders(node, zone), what="the node has told that it needs nothing")
    copy = house.backup(node)
    house.b.pause()
    house.restore(node, copy)
    begin = node.mark()
    sent = publish(node, topic, "new", 400, size=20_000)
    wait_until(
        lambda: any(
            node.has_event(event, after=begin, zone=zone)
            for event in ("journal.held", "journal.trimmed")
        ),
        40.0,
        what="it is looked at what the journal may let go",
    )
    house.b.resume()
    wait_until(house.is_whole, 40.0, what="all nodes joined again")

    assert sent == take(house.b, "reader", sent[-1])


def holders(node: NodeProcess, zone: str) -> list[str]:
    """Who holds back what of the node's zone."""
    rows = json.loads(run("tree", node.grpc, "--json", "-v").stdout or "[]")
    return [one["client_id"] for row in rows if row["zone"] == zone for one in row["held_by"]]


def test_a_root_that_lost_its_disk_after_it_was_restored(house: House) -> None:
    """The empty one takes an epoch above that of all lives before."""
    subscribe(house.b, "reader", "x/y")
    copy = house.backup(house.root)
    sent = publish(house.root, "x/y", "first")
    assert sent == take(house.b, "reader", sent[-1])
    for number, which in enumerate((copy, None, copy)):
        with house.alone(house.root):
            house.restore(house.root, which)
            early = publish(house.root, "x/y", f"early {number}")
        wait_until(house.is_whole, 40.0, what="all nodes joined again")
        late = publish(house.b, "x/y", f"late {number}", 1)
        assert early + late == take(house.b, "reader", late[-1])
    assert 4 <= house.epochs()[""]


def test_root_and_child_are_restored_after_the_child_was(house: House) -> None:
    """The root's copy does not know which epoch it had granted to the child's life before."""
    subscribe(house.b, "reader", "a/x")
    copies = house.backup(house.root), house.backup(house.a)
    for number in range(3):
        if number == 2:
            house.a.kill()
            house.restore(house.root, copies[0])
        house.restore(house.a, copies[1])
        early = publish(house.a, "a/x", f"early {number}", 20 - number)
        wait_until(house.is_whole, 40.0, what="all nodes joined again")
        late = publish(house.b, "a/x", f"late {number}", 1)
        assert early + late == take(house.b, "reader", late[-1])


def test_what_a_copy_has_is_served(house: House) -> None:
    """Retained values, and what waited for sessions of its own and elsewhere, each message once."""
    subscribe(house.a, "own", "a/x")
    subscribe(house.b, "elsewhere", "a/x")
    with RawClient(house.a.mqtt) as client:
        client.connect("retainer")
        client.publish("a/kept", b"value", qos=1, retain=True)
    sent = publish(house.a, "a/x", "copied")
    copy = house.backup(house.a)
    publish(house.a, "a/x", "lost with the disk")
    house.restore(house.a, copy)
    wait_until(house.is_whole, 40.0, what="all nodes joined again")
    sent += publish(house.b, "a/x", "new")

    assert sent == take(house.a, "own", sent[-1])
    assert sent == take(house.b, "elsewhere", sent[-1])
    with RawClient(house.b.mqtt) as client:
        client.connect("looks")
        client.subscribe(("a/kept", 1))
        assert b"value" == client.take(1)[0].payload


def test_a_session_follows_zones_below_a_node_that_waits_for_its_grant(house: House) -> None:
    """The restored node serves nothing yet; what it does not serve reaches its sessions."""
    below = house.make("c", "a/c", house.a)
    house.nodes += (below,)
    below.start()
    below.wait_event("join.granted")
    subscribe(house.a, "of b", "b/x")  # so it asks what the root delegates
    subscribe(house.a, "reader", "a/c/x")
    wait_until(lambda: b"a/c" in (house.a.data / "zones").read_bytes(), what="the zone is kept")
    copy = house.backup(house.a)
    house.root.kill()
    house.restore(house.a, copy)

    for number in range(2):
        sent = publish(house.a, "a/c/x", f"time {number}", 5)
        assert sent == take(house.a, "reader", sent[-1])
    assert not house.a.has_event("join.granted")


def test_an_empty_root_that_was_restored_meets_those_who_knew_the_lost_one(house: House) -> None:
    """They were away all the time: what each of its lives took is new to them."""
    subscribe(house.b, "reader", "x/y")
    subscribe(house.a, "owner", "a/y")
    had = publish(house.root, "x/y", "before")
    assert had == take(house.b, "reader", had[-1])

    with house.alone(house.root):
        house.restore(house.root, None)
        first = publish(house.root, "x/y", "first"), publish(house.root, "a/y", "first a")
        house.restore(house.root, house.backup(house.root))
        second = publish(house.root, "x/y", "second"), publish(house.root, "a/y", "second a")
    wait_until(house.is_whole, 40.0, what="all nodes joined again")
    late = publish(house.root, "x/y", "late", 1), publish(house.root, "a/y", "late a", 1)

    assert first[0] + second[0] + late[0] == take(house.b, "reader", late[0][-1])
    due = [*first[1], *second[1], *late[1]]
    assert sorted(due) == sorted(take(house.a, "owner", *due))


def test_an_empty_root_does_not_end_what_is_followed_of_zones_that_are_away(house: House) -> None:
    """What it took for such a zone goes to its node, and from there to sessions that stayed."""
    with RawClient(house.b.mqtt, timeout=20.0) as reader:
        reader.connect("reader", clean=False)
        reader.subscribe(("a/x", 1))
        publish(house.a, "a/x", "before", 3)
        assert 3 == len(reader.take(3))
        house.a.kill()
        house.restore(house.root, None)
        house.b.wait_event("journal.missing", 40.0, zone="a")
        due = publish(house.root, "a/x", "early", 10)
        house.a.start()
        wait_until(house.is_whole, 40.0, what="all nodes joined again")
        due += publish(house.a, "a/x", "late", 3)

        found: list[bytes] = []
        while not set(due) <= set(found):
            message = parse_publish(reader.receive())
            reader.acknowledge(message)
            found.append(message.payload)
        assert due[-3:] == [payload for payload in found if payload in due[-3:]]
