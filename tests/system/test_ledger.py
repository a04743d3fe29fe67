"""The delivery ledger of real nodes: what it has after kills, moves of sessions and of zones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.ledgers import cursor_rows, ledger_rows, places
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from txbroker.pipeline.ledgers.ledgers import holders, ledgers

from .commands import output, wait_until


@pytest.fixture
def solo(tmp_path: Path) -> Iterator[NodeProcess]:
    """One node with a ledger."""
    with NodeProcess(tmp_path, topology("solo", zone="", ledger=True)) as node:
        yield node


def subscribe(node: NodeProcess, name: str, *filters: str, qos: int = 1) -> None:
    """A durable session whose client is away."""
    with RawClient(node.mqtt) as client:
        client.connect(name, clean=False)
        client.subscribe(*((topic_filter, qos) for topic_filter in filters))
        client.disconnect()


def publish(node: NodeProcess, topic: str, count: int, *, qos: int = 1) -> None:
    with RawClient(node.mqtt) as client:
        client.connect("publisher")
        for number in range(count):
            client.publish(topic, b"%d" % number, qos=qos)
        client.disconnect()


def take(node: NodeProcess, name: str, count: int) -> None:
    """The client comes for so many messages, acknowledges each, and leaves."""
    with RawClient(node.mqtt) as client:
        client.connect(name, clean=False)
        client.take(count)
        client.disconnect()


def answer(client: RawClient, count: int) -> None:
    """Acknowledge so many packets at once, whatever they are: deliveries overlap."""
    answers = []
    for _ in range(count):
        packet = client.receive()
        if packet.kind == wire.PUBREL:
            answers.append(wire.ack(wire.PUBCOMP, packet.packet_id))
            continue
        message = wire.parse_publish(packet)
        kind = wire.PUBACK if message.qos == 1 else wire.PUBREC
        answers.append(wire.ack(kind, message.packet_id))
    client.send(*answers)


def test_a_nodes_ledger_has_what_its_sessions_got(solo: NodeProcess) -> None:
    """Over a restart; a row is there as soon as somebody can have seen the acknowledgement."""
    subscribe(solo, "c", "x/#", qos=2)
    for qos in (0, 1, 2):
        publish(solo, "x/y", 2, qos=qos)
    take(solo, "c", 4)
    before = ledger_rows(solo)
    solo.terminate()
    solo.start()
    publish(solo, "x", 1)
    take(solo, "c", 1)
    after = ledger_rows(solo)

    assert [("", 1, 0)] == places(before, "start", "c")
    assert 4 == len(set(places(before, "delivery", "c"))) == len(places(before, "delivery", "c"))
    assert before == after[: len(before)]
    assert list(range(1, len(after) + 1)) == [row["number"] for row in after]
    assert 1 == len({row["ledger"] for row in after})
    assert [places(before, "delivery", "c")[-1][2] + 1] == [
        offset for _, _, offset in places(after[len(before) :], "delivery", "c")
    ]


def test_no_kill_takes_a_row_of_a_delivery_that_is_over(solo: NodeProcess) -> None:
    """What has no row is on its way to the client still, or will be."""
    subscribe(solo, "c", "x", qos=2)
    chance = random.Random(7)
    total = 0
    for _ in range(6):
        publish(solo, "x", 40, qos=chance.choice([1, 2]))
        total += 40
        with RawClient(solo.mqtt) as client:
            client.connect("c", clean=False)
            answer(client, chance.randrange(10, 40))
            solo.kill()
        solo.start()
        rows = ledger_rows(solo)
        delivered = {offset for _, _, offset in places(rows, "delivery", "c")}
        (state,) = (row for row in cursor_rows(solo) if row["client_id"] == "c")
        waits = set(state["open"]) | set(range(state["offset"] + 1, total + 1))

        assert set(range(1, total + 1)) == delivered | waits
        assert "gap" not in {row["kind"] for row in rows}


def test_an_empty_data_folder_begins_another_ledger(solo: NodeProcess) -> None:
    """A reader that goes on by numbers would take its rows for those of the old one."""
    subscribe(solo, "c", "x")
    (before,) = ledgers(solo.grpc).spans
    solo.terminate()
    solo.data.rename(solo.data.with_name("old"))
    solo.start()
    subscribe(solo, "c", "x")
    (after,) = ledgers(solo.grpc).spans

    assert before.ledger != after.ledger


def test_a_node_keeps_none_unless_told_to(tmp_path: Path) -> None:
    """Nothing is written; it says so to who asks. Its sessions are found all the same."""
    with NodeProcess(tmp_path, topology("solo", zone="")) as node:
        subscribe(node, "c", "x")
        known = ledgers(node.grpc)
        rows = cursor_rows(node)

        assert (("solo",), ()) == (known.without, known.spans)
        assert not (node.data / "ledger").exists()
        assert [("c", False)] == [(row["client_id"], row["kept"]) for row in rows]


def test_sessions_and_zones_that_move(tmp_path: Path) -> None:
    """Rows of several nodes tell the story: where it began, where it went on, with the passages."""
    root = NodeProcess(tmp_path, topology("root", zone="", ledger=True))
    child = NodeProcess(tmp_path, topology("a", zone="a", parent=root.grpc, ledger=True))
    edge = NodeProcess(tmp_path, topology("edge", parent=root.grpc, ledger=True))
    with root, edge:
        edge.wait_event("join.granted")
        subscribe(root, "c", "a/#")
        publish(edge, "a/x", 2)
        with child:
            child.wait_event("join.granted", zone="a")
            publish(edge, "a/x", 2)
            take(edge, "c", 4)
            nodes, missing = holders(child.grpc)
            output("retire", child.grpc)
            assert 0 == child.wait()
        publish(edge, "a/x", 1)
        take(edge, "c", 1)
        wait_until(
            lambda: 2 == len({r["left_zone"] for r in ledger_rows(root) if r["kind"] == "passage"}),
            what="both passages",
        )
        there, here = ledger_rows(root), ledger_rows(edge)

    assert {"root", "a", "edge"} == {node.node for node in nodes}
    assert () == missing
    assert [("", 1, 0)] == places(there, "start", "c")
    assert [] == places(there, "end", "c") == places(there, "dropped", "c")
    assert [("", 1, 1), ("", 1, 2), ("a", 1, 1), ("a", 1, 2), ("", 1, 3)] == places(
        here, "delivery", "c"
    )
    passages = {
        (row["left_zone"], row["left_epoch"], row["through"], row["zone"], row["epoch"])
        for row in there
        if row["kind"] == "passage"
    }
    assert {("", 1, 2, "a", 1), ("a", 1, 2, "", 1)} == passages
