"""
Every limit of the topology file, hit on real nodes: what happens, and that it is told and counted.

The limits of what waits for zones that are away are in `test_absence.py`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from tests.support import wire, wire5
from tests.support.history import History
from tests.support.nodes import Event, NodeProcess, topology
from tests.support.rawclient import RawClient
from tests.support.rawclient5 import RawClient5
from tests.support.wire import CONNACK, PUBACK, SUBACK
from tests.support.wire5 import MESSAGE_EXPIRY, REASON_STRING
from txbroker.mqtt.transport.service import MOST_SURPLUS
from txbroker.runtime.structured_log import AT_ONCE
from txbroker.storage.disk_watermark import measure

from .commands import as_json, output, wait_until
from .disks import fill
from .strangers import counter

MIB = 1 << 20


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A root that is not started yet; tests set its limits."""
    node = NodeProcess(tmp_path, topology("n", zone=""))
    yield node
    node.close()


def start(node: NodeProcess, **keys: Any) -> NodeProcess:
    """Start it with these keys."""
    node.document |= keys
    return node.start()


def reload(node: NodeProcess, **keys: Any) -> Event:
    """Change keys of its file while it runs; what it says to that."""
    node.document |= keys
    rewrite(node)
    mark = node.mark()
    node.send_signal(signal.SIGHUP)
    return node.wait_event("config.reloaded", after=mark)


def rewrite(node: NodeProcess) -> None:
    """Its file as its document is now, the way that `start` writes it."""
    node.file.write_text(yaml.safe_dump(node.document, sort_keys=False))


def client(node: NodeProcess, name: str, **options: Any) -> RawClient:
    """A client that is connected."""
    raw = RawClient(node.mqtt)
    raw.connect(name, **options)
    return raw


def is_told(node: NodeProcess, limit: str, event: str, counted: str, **fields: Any) -> None:
    """One event names the limit, and the counter stands at 1 at least."""
    node.wait_event(event, limit=limit, **fields)
    wait_until(lambda: counter(node, counted) >= 1, what=counted)


# -- clients


def test_connections(node: NodeProcess) -> None:
    """One too many is told that its CONNECT is refused; the others are served on."""
    start(node, limits={"connections": 2})
    with client(node, "a") as a, client(node, "b") as b:
        with RawClient(node.mqtt) as c:
            c.send(wire.connect("c"))
            assert c.expect(CONNACK).body[1] == 3
            c.expect_closed()
        with RawClient5(node.mqtt) as c5:
            c5.send(wire5.connect("c"))
            assert str(c5.expect_refused(0x97)[REASON_STRING]).startswith(
                "limits.connections: all 2"
            )
        a.ping()
        b.disconnect()
        is_told(node, "limits.connections", "client.refused", "connections.refused")
        with client(node, "c") as c:
            c.ping()


def test_strangers_beyond_the_connections(node: NodeProcess) -> None:
    """Few of them may wait in silence; the oldest is closed, and a client is told even so."""
    start(node, limits={"connections": 1})
    with client(node, "a") as a, ExitStack() as stack:
        silent = [stack.enter_context(RawClient(node.mqtt)) for _ in range(MOST_SURPLUS + 1)]
        silent[0].expect_closed()
        with RawClient5(node.mqtt) as c:
            c.send(wire5.connect("c"))
            c.expect_refused(0x97)
        silent[1].expect_closed()
        assert not silent[2].has_input(0.1)
        a.ping()


def test_packet(node: NodeProcess) -> None:
    """Closed before it is there."""
    start(node, limits={"packet": "1KiB"})
    with client(node, "c") as c:
        c.send(b"\x30" + wire.length(1025))
        c.expect_closed()
    node.wait_event("client.violation", rule="limits.packet", client_id="c")
    assert 1 == counter(node, "packet.over_limit")


def test_what_comes_before_connect(node: NodeProcess) -> None:
    """A CONNECT is no larger than its fields can be, whatever `limits.packet` is."""
    start(node)
    with RawClient(node.mqtt) as c:
        c.send(b"\x10" + wire.length(400_000))
        c.expect_closed()
    node.wait_event("client.violation", rule="limits.packet")
    with client(node, "c") as c:
        c.publish("t", bytes(400_000), qos=1)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_levels(node: NodeProcess, qos: int) -> None:
    """Of topics, plain or retained, and of filters; as many as the limit are fine."""
    start(node, limits={"levels": 20})
    fine, deep = "/".join("x" * 20), "/".join("x" * 21)
    with client(node, "sub") as sub:
        sub.subscribe((fine, 2))
        with client(node, "pub") as pub:
            for retain in (False, True):
                pub.publish(fine, b"fine", qos=qos, retain=retain)
                sub.expect_publish(fine, b"fine")
        for packet in (
            wire.publish(deep, b"p", qos=qos, packet_id=7 if qos else 0),
            wire.publish(deep, b"p", qos=qos, packet_id=7 if qos else 0, retain=True),
            wire.subscribe(7, (deep, 1)),
            wire.subscribe(7, (deep[:-1] + "#", 1)),
        ):
            with client(node, "deep") as pub:
                pub.send(packet)
                pub.expect_closed()
            node.wait_event("client.violation", rule="limits.levels")
    reload(node, limits={"levels": 30})
    with client(node, "pub") as pub:
        pub.publish(deep, b"fine now", qos=1)


@pytest.mark.parametrize("clean", [True, False])
def test_subscriptions(node: NodeProcess, clean: bool) -> None:
    """Further filters are refused one by one; those that the session has may change."""
    start(node, limits={"subscriptions": 3})
    with client(node, "c", clean=clean) as c:
        c.send(wire.subscribe(1, ("a", 1), ("b", 1)))
        assert b"\0\1\1\1" == c.wait_for(SUBACK, 1).body
        c.send(wire.subscribe(2, ("c", 0), ("d", 0), ("a", 2), ("e/#", 1)))
        assert b"\0\2\0\x80\2\x80" == c.wait_for(SUBACK, 2).body
        c.send(wire.subscribe(3, ("d", 0)))
        assert b"\0\3\x80" == c.wait_for(SUBACK, 3).body
        c.unsubscribe("b")
        c.send(wire.subscribe(4, ("d", 0)))
        assert b"\0\4\0" == c.wait_for(SUBACK, 4).body
        c.publish("d", b"here")
        c.expect_publish("d", b"here")
        is_told(node, "limits.subscriptions", "client.over_limit", "subscriptions.over_limit")
    assert 3 == counter(node, "subscriptions.over_limit")


def test_sessions(node: NodeProcess) -> None:
    """Kept ones count while their clients are away."""
    start(node, limits={"sessions": 2})
    client(node, "a", clean=False).close()
    with client(node, "b"), RawClient(node.mqtt) as c:
        c.send(wire.connect("c", clean=True))
        assert b"\0\3" == c.expect(CONNACK).body
        c.expect_closed()
        with RawClient5(node.mqtt) as c5:
            c5.send(wire5.connect("c"))
            c5.expect_refused(0x97)
        client(node, "a", clean=False).close()
    wait_until(lambda: takes(node, "c"), what="room")


def takes(node: NodeProcess, name: str) -> bool:
    """True if the node accepts a client."""
    with RawClient(node.mqtt) as c:
        c.send(wire.connect(name, clean=True))
        return c.expect(CONNACK).body == b"\0\0"


@pytest.mark.parametrize("most", [{"messages": 2}, {"bytes": "1KiB"}])
def test_retained(node: NodeProcess, most: dict[str, Any]) -> None:
    """Delivered all the same; a topic that has a value may get another one."""
    start(node, limits={"retained": most})
    with client(node, "sub") as sub, client(node, "pub") as pub:
        sub.subscribe(("#", 1))
        for topic in ("a", "b", "c", "a"):
            pub.publish(topic, bytes(400), qos=1, retain=True)
            sub.expect_publish(topic)
        with client(node, "late") as late:
            late.subscribe(("#", 1))
            assert {"a", "b"} == {late.expect_publish().topic for _ in range(2)}
            late.ping()
        pub.publish("b", b"", qos=1, retain=True)
        pub.publish("c", bytes(400), qos=1, retain=True)
        with client(node, "later") as late:
            late.subscribe(("#", 1))
            assert {"a", "c"} == {late.expect_publish().topic for _ in range(2)}
    wait_until(lambda: counter(node, "retained.over_limit") == 1, what="it is counted")


def test_client_id(node: NodeProcess) -> None:
    """Bytes, not characters; refused with code 2."""
    start(node, limits={"client_id": 300})
    client(node, "x" * 300).close()
    for name in ("x" * 301, "ü" * 151):
        with RawClient(node.mqtt) as c:
            c.send(wire.connect(name, clean=True))
            assert b"\0\2" == c.expect(CONNACK).body
            c.expect_closed()
        node.wait_event("client.violation", rule="limits.client_id")


def test_connect_timeout(node: NodeProcess) -> None:
    """Who says nothing is closed."""
    start(node, limits={"connect_timeout": "100ms"})
    with RawClient(node.mqtt) as c:
        c.expect_closed()
    is_told(node, "limits.connect_timeout", "client.connect_timeout", "clients.no_connect")


@pytest.mark.parametrize(
    ("limit", "value", "payload"),
    [("inflight", 2, b"x"), ("session_memory", "150KiB", b"x" * 100_000)],
)
def test_window(node: NodeProcess, limit: str, value: object, payload: bytes) -> None:
    """Two messages go, the others wait for an acknowledgement each."""
    start(node, limits={limit: value})
    with client(node, "sub") as sub, client(node, "pub") as pub:
        sub.subscribe(("t", 1))
        for _ in range(4):
            pub.publish("t", payload, qos=1)
        first, second = (sub.expect_publish("t", payload) for _ in range(2))
        sub.ping()
        sub.acknowledge(first)
        third = sub.expect_publish("t", payload)
        sub.ping()
        for message in (second, third):
            sub.acknowledge(message)
        sub.expect_publish("t", payload)
    is_told(node, f"limits.{limit}", "session.window_full", "session.window_full", client_id="sub")


@pytest.mark.parametrize(
    "limits", [{"messages": 3}, {"bytes": "3500B"}], ids=lambda d: next(iter(d))
)
def test_session(node: NodeProcess, limits: dict[str, object]) -> None:
    """The oldest that wait go, and it shows whose they were."""
    start(node, session_limits=limits)
    with client(node, "away", clean=False) as sub:
        sub.subscribe(("t", 1))
        sub.disconnect()
    with client(node, "pub") as pub:
        for number in range(8):
            pub.publish("t", b"%d" % number + b"x" * 1000, qos=1)
    (session,) = [s for s in as_json("sessions", node.grpc) if s["client_id"] == "away"]
    assert (8, 0) == (session["waiting"], session["dropped"])

    with client(node, "away", clean=False) as sub:
        assert [b"5", b"6", b"7"] == [message.payload[:1] for message in sub.take(3)]
        sub.ping()
    is_told(
        node,
        "session_limits",
        "session.messages_dropped",
        "session.dropped.queue_full",
        client_id="away",
    )
    (row,) = as_json("tree", node.grpc, "-v")
    assert {"away": 5} == row["losses"]
    lines = output("tree", node.grpc, "-v").splitlines()
    assert ["n", "away", "5"] in [line.split() for line in lines]
    (session,) = [s for s in as_json("sessions", node.grpc) if s["client_id"] == "away"]
    assert (0, 5) == (session["waiting"], session["dropped"])


def test_session_age(node: NodeProcess) -> None:
    """A session whose client stays away for too long ends."""
    start(node, session_limits={"age": "100ms"})
    with client(node, "gone", clean=False) as c:
        c.disconnect()
    node.wait_event("session.expired", 30.0, limit="session_limits.age", client_id="gone")
    assert 1 == counter(node, "session.expired")
    with client(node, "gone", clean=False) as c:
        assert not c.session_present


def test_cache(node: NodeProcess) -> None:
    """Topics that filters tell apart are looked up again beyond it, and nothing else happens."""
    start(node, limits={"cache": 3})
    with client(node, "sub") as sub, client(node, "pub") as pub:
        sub.subscribe(*[(f"t/{number}", 1) for number in range(20)])
        for number in range(20):
            pub.publish(f"t/{number}", qos=1)
        assert [f"t/{n}" for n in range(20)] == [message.topic for message in sub.take(20)]
    is_told(node, "limits.cache", "cache.full", "cache.full", value=3)


# -- nodes


def test_links(node: NodeProcess, tmp_path: Path) -> None:
    """An edge too many waits, tries again, and gets its link when there is one."""
    start(node, limits={"links": 1})
    first = NodeProcess(tmp_path, topology("first", parent=node.grpc))
    second = NodeProcess(tmp_path, topology("second", parent=node.grpc, unreachable="hold"))
    with first, second, client(first, "1") as one, client(second, "2") as two:
        one.publish("t", qos=1)
        two.send(wire.publish("t", qos=1, packet_id=1))
        is_told(node, "limits.links", "link.over_limit", "link.over_limit", value=1)
        wait_until(lambda: counter(node, "link.over_limit") > 2, what="it tries again")
        two.ping()
        assert 1 == sum(event["event"] == "link.over_limit" for event in node.events)

        one.close()
        first.terminate()

        two.expect(PUBACK, 1)


# -- the journal


def test_journal(node: NodeProcess) -> None:
    """
    Its oldest records go, but not those that a session within its own limits waits for; beyond
    both it is told that somebody misses something, and how much.
    """
    payload = b"x" * 10_000
    start(node, retention={"size": "1MiB"}, session_limits={"bytes": "2MiB"})
    journal = node.data / "journal"

    def size() -> int:
        return sum(file.stat().st_size for file in journal.glob("*/*/*.log"))

    with client(node, "away", clean=False) as sub, client(node, "pub") as pub:
        for _ in range(250):
            pub.publish("t", payload, qos=1)
        # It is trimmed each 10 s, as far as the node itself has said by then that it has had all.
        node.wait_event("journal.trimmed", 40.0, limit="retention.size")
        is_told(node, "retention.size", "journal.trimmed", "journal.trimmed")
        assert size() < 3 * MIB
        assert 0 == counter(node, "journal.overtaken")
        with History(node.grpc) as history:
            first = history.parts()["", 1].first
            code, line = history.refusal("Records", epoch=1, start=first - 1)
            assert (grpc.StatusCode.OUT_OF_RANGE, True) == (code, f" offset {first} on" in line)
            assert list(range(first, 251)) == [row.offset for row in history.read("", 1)]

        sub.subscribe(("t", 1))
        sub.disconnect()
        for number in range(600):
            pub.publish("t", b"%d " % number + payload, qos=1)
        limit = "retention.size, session_limits.bytes"
        node.wait_event("journal.overtaken", 40.0)
        is_told(node, limit, "journal.overtaken", "journal.overtaken")
        assert size() < 5 * MIB
    with client(node, "away", clean=False) as sub:
        numbers = [int(message.payload.split()[0]) for message in sub.take(150)]
        assert numbers == list(range(numbers[0], numbers[0] + 150))
        assert numbers[0] > 0
        wait_until(lambda: counter(node, "session.missed"), what="it is counted for the session")


# -- the disk


def test_disk(node: NodeProcess, small_disk: Path, tmp_path: Path) -> None:
    """
    Publishes at the node and from its edges stop at the watermark and go on in order; a subscriber
    and QoS 0 notice nothing; most of the disk can be used.
    """
    start(node, data=str(small_disk / "data"))
    # What the edge acknowledges is at the owner: an outbox might not be drained yet.
    edge = NodeProcess(tmp_path, topology("edge", parent=node.grpc, unreachable="hold"))
    with (
        edge,
        client(node, "sub") as sub,
        client(node, "here", keep_alive=1) as here,
        client(edge, "there") as there,
    ):
        sub.subscribe(("t", 1))
        fill(small_disk, 12 * MIB)
        for publisher in (here, there):
            publisher.publish("t", b"before", qos=1)
        assert not node.has_event("disk.short")

        ballast = fill(small_disk, 2 * MIB)
        node.wait_event("disk.short", limit="limits.disk_free")
        for publisher in (here, there):
            for number in (11, 12):
                publisher.send(wire.publish("t", b"%d" % number, qos=1, packet_id=number))
        assert [b"before"] * 2 == [message.payload for message in sub.take(2)]
        sub.send(wire.subscribe(7, ("u", 1)))
        sub.expect(SUBACK, 7)
        with client(node, "qos 0") as other:
            other.publish("t", b"qos 0")
            sub.expect_publish("t", b"qos 0")
        assert not here.has_input(2.5), "its keep-alive is over, and it was not closed"
        assert not there.has_input(0.0)
        assert 1 == counter(node, "publish.refused.disk_free")
        assert 1 == counter(node, "disk.short")

        ballast.unlink()
        node.wait_event("disk.ok")
        for publisher in (here, there):
            for number in (11, 12):
                publisher.expect(PUBACK, number)
        payloads = [message.payload for message in sub.take(4)]
        assert [b"11", b"11", b"12", b"12"] == sorted(payloads)


def test_disk_of_any_size(node: NodeProcess) -> None:
    """The watermark is lowered while publishes wait for it."""
    free, total = measure(node.directory)
    if free > 0.85 * total:
        pytest.skip("more of this disk is free than a reserve can be")
    start(node, limits={"disk_free": "90%"})
    node.wait_event("disk.short")
    with client(node, "c") as c:
        c.send(wire.publish("t", qos=1, packet_id=1))
        assert not c.has_input(0.5)

        reload(node, limits={"disk_free": "0%"})

        c.expect(PUBACK, 1)
        node.wait_event("disk.ok")


# -- SIGHUP


def test_limits_change_while_the_node_runs(node: NodeProcess) -> None:
    """For clients that are there, too; other keys are named."""
    start(node, limits={"connections": 1, "inflight": 1})
    with client(node, "c") as c:
        c.subscribe(("t", 1))
        with RawClient(node.mqtt) as refused:
            refused.send(wire.connect("r"))
            assert refused.expect(CONNACK).body[1] == 3

        said = reload(node, limits={"inflight": 2, "packet": "1KiB"}, suback_wait="5s")

        assert {"limits.connections": "50000", "limits.inflight": "2", "limits.packet": "1024"} == (
            said["changed"]
        )
        assert ("warning", ["suback_wait"]) == (said["level"], said["restart_needed"])
        with client(node, "pub") as pub:
            for number in range(3):
                pub.publish("t", b"%d" % number, qos=1)
            messages = [c.expect_publish("t", b"%d" % number) for number in range(2)]
            c.ping()
            c.acknowledge(messages[0])
            c.expect_publish("t", b"2")
            pub.send(b"\x30" + wire.length(1025))
            pub.expect_closed()
        c.ping()


def test_intervals_and_held_filters_change_while_the_node_runs(node: NodeProcess) -> None:
    """For what is published, and subscribed to, from then on."""
    start(node, expiry=[{"filter": "a", "after": "1h"}], hold_first=["x"])
    with client(node, "pub") as pub, RawClient5(node.mqtt) as sub:
        sub.connect("sub")
        sub.subscribe(("a", 1), ("b", 1))
        for topic in ("a", "b", "held"):
            pub.publish(topic, b"1", qos=1)
        said = reload(node, expiry=[{"filter": "b", "after": "2h"}], hold_first=["held"])
        assert {"expiry": "b: 7200s", "hold_first": "held"} == said["changed"]
        assert [] == said["restart_needed"]
        for topic in ("a", "b"):
            pub.publish(topic, b"1", qos=1)
        found = [(m.topic, dict(m.properties).get(MESSAGE_EXPIRY)) for m in sub.take(4)]
        assert [("a", 3600), ("b", None), ("a", None), ("b", 7200)] == found
        sub.subscribe(("held", 1))
        assert "held" == sub.take(1)[0].topic


def test_a_file_with_a_mistake_changes_nothing(node: NodeProcess) -> None:
    """One line says so; the node goes on, and takes the file when it is good again."""
    start(node, limits={"connections": 1})
    with client(node, "c") as c:
        node.document["limits"] = {"connections": "many"}
        rewrite(node)
        node.send_signal(signal.SIGHUP)
        said = node.wait_event("config.refused")
        assert said["reason"].startswith(f"{node.file}:") and "limits.connections" in said["reason"]
        with RawClient(node.mqtt) as refused:
            refused.send(wire.connect("r"))
            assert refused.expect(CONNACK).body[1] == 3
        c.ping()

        said = reload(node, limits={"connections": 2})
        assert ("info", {"limits.connections": "2"}) == (said["level"], said["changed"])
        with client(node, "d") as d:
            d.ping()


def test_a_client_that_takes_itself_over_fills_no_log(node: NodeProcess) -> None:
    """Nor do clients whose keep-alive is over: some lines a minute tell of them, and a count."""
    start(node)
    with ExitStack() as stack:
        for _ in range(3 * AT_ONCE):
            stack.enter_context(client(node, "again"))
        stack.enter_context(client(node, "last")).ping()
    told = [event for event in node.events if event["event"] == "client.closed"]
    assert {event["reason"] for event in told} == {"client id taken over"}
    assert len(told) == AT_ONCE
