"""
`txbroker tree`: the zones below a node, who is alive, and the exit status.
"""

from __future__ import annotations

import os
import pty
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient

from .commands import as_json, environment, failure, line, output, run, wait_until, wrong_usage
from .conftest import House

KEYS = ["zone", "node", "grpc", "epoch", "alive", "pending", "clients", "rate_in", "rate_out"]


def rows(address: str, *options: str, status: int = 0) -> dict[str | None, dict[str, object]]:
    """What --json gives, by zone."""
    return {row["zone"]: row for row in as_json("tree", address, *options, status=status)}


def test_every_zone_with_node_and_parent(house: House) -> None:
    """In order of the tree, the pure edge left out."""
    found = as_json("tree", house.root.grpc)

    expected = [
        ("", "root", house.root.grpc, None),
        ("a", "a", house.a.grpc, "root"),
        ("a/b", "ab", house.ab.grpc, "a"),
        ("b", "b", house.b.grpc, "root"),
    ]
    assert expected == [(r["zone"], r["node"], r["grpc"], r["parent"]) for r in found]
    for row in found:
        assert [*KEYS, "parent", "held"] == list(row)
        assert row["alive"] is True and row["epoch"] >= 1 and row["pending"] == 0


def test_below_any_node(house: House) -> None:
    """Its own zone and what is below, with the parent's name."""
    found = as_json("tree", house.a.grpc)

    assert [("a", "root"), ("a/b", "a")] == [(r["zone"], r["parent"]) for r in found]
    assert ["a/b"] == list(rows(house.ab.grpc))


def test_clients_are_those_connected_now(house: House) -> None:
    """At the zone's node."""
    with RawClient(house.b.mqtt) as one, RawClient(house.b.mqtt) as two:
        one.connect("one")
        two.connect("two")
        assert (0, 2) == tuple(rows(house.root.grpc)[zone]["clients"] for zone in ("a", "b"))


def test_rates_are_messages_a_second(house: House) -> None:
    """From the publisher's and to the subscriber's node."""
    with RawClient(house.a.mqtt) as pub, RawClient(house.b.mqtt) as sub:
        pub.connect("pub")
        sub.connect("sub")
        sub.subscribe("a/rates")
        for number in range(50):
            pub.publish("a/rates", b"%d" % number, qos=1)
        sub.take(50)
        found = rows(house.root.grpc)
    assert 0 < found["a"]["rate_in"] <= 50 and 0 == found["a"]["rate_out"]
    assert 0 < found["b"]["rate_out"] <= 50 and 0 == found["b"]["rate_in"]


def test_pure_edges_with_v(house: House) -> None:
    """Without zone and epoch; and counters for all."""
    found = rows(house.root.grpc, "-v")

    edge = found[None]
    assert ("edge", None, True, "root") == tuple(
        edge[key] for key in ("node", "epoch", "alive", "parent")
    )
    assert all(isinstance(row["counters"], dict) for row in found.values())


def test_below_a_pure_edge_is_nothing(house: House) -> None:
    """No zone that could be unreachable: status 0."""
    done = run("tree", house.edge.grpc)

    assert (0, "") == (done.returncode, done.stdout)
    assert "node edge serves clients only" in done.stderr
    assert [] == as_json("tree", house.edge.grpc)
    assert ["edge"] == [row["node"] for row in as_json("tree", house.edge.grpc, "-v")]


def test_plain_aligned_lines_in_a_pipe(house: House) -> None:
    """A header and a line for each zone, its columns at the same places."""
    lines = output("tree", house.root.grpc).splitlines()

    assert 5 == len(lines) and "\x1b" not in "".join(lines)
    names = "ZONE NODE GRPC EPOCH STATE PENDING CLIENTS IN/S OUT/S HELD"
    assert names.split() == lines[0].split()
    assert ["(root)", "root", house.root.grpc] == lines[1].split()[:3]
    assert ["a/b", "ab", house.ab.grpc] == lines[3].split()[:3]
    assert {lines[0].index("STATE")} == {text.index("alive") for text in lines[1:]}


def test_a_terminal_gets_colours(house: House) -> None:
    """The same table by rich."""
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            line("tree", house.root.grpc),
            env={**environment(), "TERM": "xterm-256color", "COLUMNS": "120"},
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.PIPE,
            timeout=40,
        )
        text = os.read(ours, 65_536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert (0, b"") == (done.returncode, done.stderr)
    assert "\x1b[32malive" in text and house.ab.grpc in text


def test_a_reader_that_leaves_is_no_error(house: House) -> None:
    """As in `txbroker tree ... | head -1`."""
    command = subprocess.list2cmdline(line("tree", house.root.grpc))
    done = subprocess.run(
        ["bash", "-c", f"{command} | true"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=40,
    )

    assert "" == done.stderr


def test_a_zone_that_is_away(house: House) -> None:
    """
    Status 1 and not alive while the node is stopped, the zone below it alive; what waits for it is
    pending, what is lost for it counted; status 0 when it is back.
    """
    with RawClient(house.edge.mqtt) as sub:
        house.a.terminate()
        try:
            sub.connect("waits")
            sub.subscribe(("a/x", 1), ("a/+/y", 1), ("b/x", 1))
            sub.publish("a/x", b"lost")
            wait_until(lambda: rows(house.root.grpc, status=1)["a"]["pending"] == 2)
            found = rows(house.root.grpc, "-v", status=1)
            lines = output("tree", house.root.grpc, status=1).splitlines()
        finally:
            house.a.start()
        assert {"": True, "a": False, "a/b": True, "b": True} == {
            zone: row["alive"] for zone, row in found.items() if zone is not None
        }
        assert "a" == found["a/b"]["parent"] and {} == found["a"]["counters"]
        assert 1 == found[None]["counters"]["publish.dropped.unreachable"]
        assert ["unreachable", "2"] == lines[2].split()[-2:]

        house.wait_whole()
        wait_until(lambda: rows(house.root.grpc)["a"]["pending"] == 0)
        assert ["OUT/S", "HELD"] == output("tree", house.root.grpc).splitlines()[0].split()[-2:]


def test_a_frozen_node_does_not_hold_up_the_rest(house: House) -> None:
    """
    It has two seconds, once: two of them cost no more than one. One after the other they would
    take four seconds each time; a busy machine only now and then.
    """
    taken: list[float] = []
    for node in (house.a, house.ab):
        node.pause()
    try:
        while not taken or (taken[-1] >= 4.0 and len(taken) < 8):
            start = time.monotonic()
            found = rows(house.root.grpc, status=1)
            taken.append(time.monotonic() - start)
    finally:
        for node in (house.a, house.ab):
            node.resume()
    assert 2.0 < taken[-1] < 4.0, taken
    assert {"": True, "a": False, "a/b": False, "b": True} == {
        zone: row["alive"] for zone, row in found.items()
    }
    house.wait_whole()


def test_another_node_at_the_address_is_not_the_zone(house: House, tmp_path: Path) -> None:
    """Nor are its children taken for ours."""
    house.b.terminate()
    stranger = topology("stranger", zone="", grpc=house.b.grpc)
    try:
        with NodeProcess(tmp_path, stranger):
            found = as_json("tree", house.root.grpc, status=1)
    finally:
        house.b.start()
    assert ("b", False) == (found[-1]["node"], found[-1]["alive"]) and 4 == len(found)
    house.wait_whole()


def test_a_node_that_does_not_serve_its_zone_is_not_alive(tmp_path: Path) -> None:
    """It answers, but it never had a grant."""
    with NodeProcess(tmp_path, topology("c", zone="c", parent="127.0.0.1:1")) as node:
        (row,) = as_json("tree", node.grpc, status=1)
        assert ("c", False, 0, None) == tuple(row[k] for k in ("zone", "alive", "epoch", "parent"))
        assert "not serving" in output("tree", node.grpc, status=1)


def test_nobody_there() -> None:
    """One line, status 1."""
    assert failure("tree", "127.0.0.1:1") == (
        "Error: 127.0.0.1:1 cannot be reached; is it a node's gRPC address, and does the node run?"
    )
    assert "no.such.host.invalid:7001 cannot be reached" in failure(
        "tree", "no.such.host.invalid:7001"
    )


def test_a_foreign_protocol(house: House) -> None:
    """One line, status 1; the MQTT port goes on."""
    host, port = house.b.mqtt
    assert "is it a node's gRPC address" in failure("tree", f"{host}:{port}")
    with RawClient(house.b.mqtt) as client:
        client.connect("after")


@pytest.mark.parametrize("command", ["tree", "resolve", "pub", "sub", "retire"])
@pytest.mark.parametrize("address", ["localhost", "localhost:x", "::1:7001", ":7001", "a:0", "a:"])
def test_a_bad_address_is_wrong_usage(command: str, address: str) -> None:
    """One line that shows it, status 2, for every command."""
    more = {"resolve": ["x"], "pub": ["-t", "x", "-m", "y"], "sub": ["-t", "x"]}
    said = wrong_usage(command, address, *more.get(command, []))

    assert said.startswith(f"Error: HOST:PORT: {address!r}: ")
