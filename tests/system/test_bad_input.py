"""
Wrong files, wrong claims, wrong bytes: one clear line, and nothing else is harmed.

Real processes. The files' mistakes in all detail are in tests/config/test_config.py; here they go
through the two doors, twistd and `txbroker check`.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.support import wire
from tests.support.nodes import NodeProcess, parse_address, topology
from tests.support.rawclient import RawClient
from txbroker.cli import main
from txbroker.link.frames import LINK_VERSION, encode_frame
from txbroker.v1 import link_pb2

from .commands import environment, failure
from .strangers import (
    LINKS_REFUSED,
    assert_json,
    counter,
    is_fine,
    port_of,
    read_to_end,
    send_all,
)

END_LIMIT = 30.0
"""Seconds in which a node that cannot start ends."""


# -- files


def document(**keys: Any) -> dict[str, Any]:
    """A good file's keys, changed; None leaves one out."""
    good = topology("bad", zone="bad", parent="127.0.0.1:1") | keys
    return {key: value for key, value in good.items() if value is not None}


FILES: list[tuple[str, dict[str, Any] | str, str, list[str]]] = [
    ("unknown key", document(colour="blue"), "colour", ["'blue'", "unknown key"]),
    ("misspelt key", document(grpcs="127.0.0.1:1"), "grpcs", ["did you mean grpc?"]),
    ("missing key", document(mqtt=None), "mqtt", ["this key is missing"]),
    ("bad type", document(node=7), "node", ["7", "a number where text belongs"]),
    ("wildcard", document(zone="bad/+/x"), "zone", ["'bad/+/x'", "a wildcard in a zone"]),
    ("slash", document(zone="/bad"), "zone", ["'/bad'", "write 'bad'"]),
    ("no parent", document(parent=None), "zone", ["'bad'", "only the root zone has no parent"]),
    ("root with parent", document(zone=""), "zone", ["the root zone has no parent"]),
    ("edge alone", document(zone=None, parent=None), "parent", ["needs a parent"]),
    ("own parent", document(grpc="127.0.0.1:9", parent="127.0.0.1:9"), "parent", ["its own"]),
    ("bad port", document(grpc="127.0.0.1:70000"), "grpc", ["'70000' is not a port"]),
    ("no port", document(parent="localhost"), "parent", ["'localhost'", "no port in it"]),
    ("bad listener", document(mqtt=["tcp:mqtt"]), "mqtt", ["'tcp:mqtt'", "tcp:1883"]),
    ("bad size", document(limits={"packet": "16MB"}), "limits.packet", ["'16MB'", "16MiB"]),
    ("bad time", document(suback_wait="soon"), "suback_wait", ["'soon'", "10s"]),
    ("not YAML", "node: [", "", ["not valid YAML"]),
    ("no mapping", "- node", "", ["a list where a mapping"]),
    ("empty", "", "", ["no node in this file"]),
]


@pytest.mark.parametrize(
    ("content", "key", "words"), [row[1:] for row in FILES], ids=[row[0] for row in FILES]
)
def test_bad_file(
    tmp_path: Path, content: dict[str, Any] | str, key: str, words: list[str]
) -> None:
    """The same line by twistd and `check`: file, key, value, remedy; status 1; nothing starts."""
    file = tmp_path / "bad.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))

    said = CliRunner().invoke(main, ["check", str(file)])
    assert (1, "", 1) == (said.exit_code, said.stdout, len(said.stderr.splitlines()))
    line = said.stderr.rstrip("\n")
    assert line.startswith(str(file)) and f": {key}" in line
    for word in words:
        assert word in line

    assert line == refused_line(twistd("--topology", str(file)))
    assert not (tmp_path / "data-bad").exists()


def test_check_as_a_command(tmp_path: Path) -> None:
    """A process of its own, for one of them."""
    file = tmp_path / "bad.yaml"
    file.write_text(yaml.safe_dump(document(zone="#"), sort_keys=False))
    assert failure("check", file).startswith(f"{file}:2: zone: '#': a wildcard in a zone")


def test_which_node_of_the_file(tmp_path: Path) -> None:
    """Several documents and no --node, or one that is not there: the nodes are named."""
    file = tmp_path / "site.yaml"
    file.write_text(yaml.safe_dump_all([topology("one", zone=""), document(node="two")]))
    for more in ([], ["--node", "three"]):
        assert refused_line(twistd("--topology", str(file), *more)).endswith("one of: one, two")


@pytest.mark.parametrize("reactor", [["--reactor=epoll"], ["--reactor=select"]])
def test_wrong_reactor(tmp_path: Path, reactor: list[str]) -> None:
    """One line that names the flag."""
    file = tmp_path / "n.yaml"
    file.write_text(yaml.safe_dump(topology("n", zone="")))
    said = twistd("--topology", str(file), reactor=reactor)
    assert "start twistd with --reactor=asyncio" in refused_line(said)


def twistd(*arguments: str, reactor: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    """The documented command line, from its start to its end."""
    flags = ["--pidfile=", *(["--reactor=asyncio"] if reactor is None else reactor), "-n"]
    return subprocess.run(
        [str(Path(sys.executable).with_name("twistd")), *flags, "txbroker", *arguments],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
    )


def refused_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line with which it ended; what Twisted has to tell beside it is no error."""
    assert (1, "") == (done.returncode, done.stdout), done.stderr
    return reason_in(done.stderr.splitlines())


def reason_in(lines: list[str]) -> str:
    """Why the node that said this was refused; it said nothing else that is worse than info."""
    events = [json.loads(text) for text in lines]
    assert all("traceback" not in event for event in events), lines
    told = [event for event in events if event["level"] != "info"]
    assert ["node.refused"] == [event["event"] for event in told], lines
    assert "\n" not in told[0]["reason"]
    return str(told[0]["reason"])


def assert_refused(node: NodeProcess, *words: str) -> None:
    """It starts, and ends soon, with status 1 and one line that has these words."""
    with_earlier = len(node.lines)
    node.start(ready=False)
    assert 1 == node.wait(END_LIMIT), node.tail()
    reason = reason_in(node.lines[with_earlier:])
    for word in words:
        assert word in reason


# -- claims that another node contradicts


def test_zone_claimed_twice(tmp_path: Path, pair: tuple[NodeProcess, NodeProcess]) -> None:
    """The second node ends; the line says who has the zone and what to do."""
    root, a = pair
    twin = NodeProcess(tmp_path, topology("twin", zone="a", parent=root.grpc))
    assert_refused(twin, str(twin.file), "'a'", a.grpc, f"txbroker retire {a.grpc}")
    is_fine(root, a)


def test_zone_outside_the_parents(tmp_path: Path, pair: tuple[NodeProcess, NodeProcess]) -> None:
    """Also where each file is fine by itself; so with the name of a node above."""
    root, a = pair
    outside = NodeProcess(tmp_path, topology("outside", zone="b", parent=a.grpc))
    assert_refused(outside, "'b'", "not inside zone 'a'")
    namesake = NodeProcess(tmp_path, topology("root", zone="a/b", parent=a.grpc))
    assert_refused(namesake, "'root'", "node names are unique in the tree")
    twice = NodeProcess(tmp_path, topology("a", zone="c", parent=root.grpc))
    assert_refused(twice, "'a'", "node names are unique in the tree")
    is_fine(root, a)


def test_parent_owns_nothing(tmp_path: Path, pair: tuple[NodeProcess, NodeProcess]) -> None:
    """A pure edge is nobody's parent."""
    edge = NodeProcess(tmp_path, topology("edge", parent=pair[0].grpc))
    with edge:
        below = NodeProcess(tmp_path, topology("below", zone="below", parent=edge.grpc))
        assert_refused(below, "'edge'", "owns no zone")


def test_parent_below_itself(tmp_path: Path) -> None:
    """
    A node that held its zone is fenced when its new parent turns out to be below it: it goes on for
    its clients, serves its zone no more, and does again when the file is right.
    """
    root = NodeProcess(tmp_path, topology("root", zone=""))
    x = NodeProcess(tmp_path, topology("x", zone="x", parent=root.grpc))
    xy = NodeProcess(tmp_path, topology("xy", zone="x/y", parent=x.grpc))
    try:
        for node in (root, x, xy):
            node.start()
        xy.wait_event("join.granted")
        x.terminate()
        x.document["parent"] = xy.grpc
        x.start()
        fenced = x.wait_event("zone.fenced", zone="x")
        assert "above itself" in fenced["reason"] and "\n" not in fenced["reason"]
        with RawClient(x.mqtt) as client:
            client.connect("c")
            client.publish("r", b"", qos=1)
            client.send(wire.publish("x/1", b"", qos=1, packet_id=900))
            client.ping()
            assert 1 == sum(event["event"] == "zone.fenced" for event in x.events)
        x.terminate()
        x.document["parent"] = root.grpc
        x.start()
        x.wait_event("join.granted", zone="x")
        with RawClient(xy.mqtt) as client:
            client.connect("c")
            client.publish("x/1", b"", qos=1)
    finally:
        for node in (xy, x, root):
            node.close()
    for node in (xy, x, root):
        assert_json(node)


# -- what another process has


@pytest.mark.parametrize("key", ["mqtt", "grpc", "link"])
def test_port_in_use(tmp_path: Path, pair: tuple[NodeProcess, NodeProcess], key: str) -> None:
    """By another node: one line with file, key and address."""
    root, a = pair
    port = {"mqtt": root.mqtt[1], "grpc": parse_address(root.grpc)[1]}.get(key)
    port = port or parse_address(root.link)[1]
    value = f"tcp:{port}:interface=127.0.0.1" if key == "mqtt" else f"127.0.0.1:{port}"
    keys = {key: [value] if key == "mqtt" else value}
    node = NodeProcess(tmp_path, topology("n", zone="", **keys))
    assert_refused(node, f"{node.file}:", f": {key}: '{value}': ", "stop what uses the address")
    is_fine(root, a)


def test_data_in_use(tmp_path: Path, pair: tuple[NodeProcess, NodeProcess]) -> None:
    """A second process on the same store."""
    root, a = pair
    second = NodeProcess(tmp_path, topology("root", zone="", data=str(root.data)))
    assert_refused(second, str(root.data), "in use by another process")
    is_fine(root, a)


def test_data_of_another_kind(tmp_path: Path) -> None:
    """A newer format, another node's, a damaged file, a file where the folder should be."""
    node = NodeProcess(tmp_path, topology("n", zone=""))
    node.start().terminate()
    file = node.data / "state.json"
    good = json.loads(file.read_text())
    newer = good["format"] + 1
    file.write_text(json.dumps({**good, "format": newer}))
    assert_refused(node, str(file), f"format {newer} is newer")
    for bad in ("{", "7", json.dumps({**good, "format": "x"})):
        file.write_text(bad)
        assert_refused(node, str(file), "not readable")
        assert bad == file.read_text()
    file.write_text(json.dumps({**good, "node": "other"}))
    assert_refused(node, str(file), "its checksum does not match")
    del good["checksum"]
    file.write_text(json.dumps({**good, "format": 2, "node": "other"}))  # of an earlier version
    assert_refused(node, str(file), "'other'")
    file.unlink()
    node.document["data"] = "n.yaml"
    assert_refused(node, "n.yaml", "cannot be used")
    assert_json(node)


def test_data_that_cannot_be_written(tmp_path: Path) -> None:
    """
    As on a full disk: the zone is not handed over, its owner serves it as before and says why; when
    there is room the child has it, with what was retained. So with the child's own store.
    """
    root = NodeProcess(tmp_path, topology("root", zone=""))
    a = NodeProcess(tmp_path, topology("a", zone="a", parent=root.grpc))
    in_the_way = [node.data / "state.new" for node in (root, a)]
    try:
        with RawClient(root.start().mqtt) as client:
            client.connect("c")
            client.publish("a/x", b"kept", qos=1, retain=True)
            in_the_way[0].mkdir()
            a.start()
            a.wait_event("join.failed")
            root.wait_event("handover.rolled_back", zone="a")
            unsaved = root.wait_event("state.write_failed")
            assert str(root.data / "state.json") in unsaved["reason"]
            client.publish("a/y", b"still", qos=1, retain=True)
            in_the_way[0].rmdir()
            a.wait_event("join.granted", zone="a")
            client.subscribe(("a/#", 1))
            assert {"a/x", "a/y"} == {m.topic for m in client.take(2) if m.retain}

        in_the_way[1].mkdir()
        root.kill()
        root.start()
        a.wait_event("state.write_failed")
        in_the_way[1].rmdir()
        a.wait_event("join.granted", zone="a", after=a.mark())
    finally:
        for node in (a, root):
            node.close()
    for node in (a, root):
        assert_json(node)


# -- foreign bytes

FOREIGN = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64),
    "tls": bytes.fromhex("1603010200010001fc0303") + bytes(range(256)) * 2,
    "zeros": bytes(5_000),
    "ones": b"\xff" * 5_000,
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "random": random.Random(7).randbytes(200_000),
    "mqtt 5": wire.connect("five", level=5),
}


@pytest.mark.parametrize("port", ["mqtt", "link"])
@pytest.mark.parametrize("kind", [kind for kind in FOREIGN if kind != "mqtt 5"])
def test_foreign_protocol(pair: tuple[NodeProcess, NodeProcess], port: str, kind: str) -> None:
    """The connection is closed, with one line; the node goes on."""
    _, a = pair
    mark = a.mark()
    before = counter(a, LINKS_REFUSED)
    with socket.create_connection(port_of(a, port), timeout=30) as connection:
        peer = "{}:{}".format(*connection.getsockname())
        send_all(connection, FOREIGN[kind])
        assert b"" == read_to_end(connection)
        if port == "mqtt":
            line = a.wait_event("client.violation", after=mark, peer=peer)
            assert line["rule"] and line["reason"] and len(line["bytes"]) < 100
            violations = [e for e in a.events[mark:] if e["event"] == "client.violation"]
            assert 1 == len(violations)
        else:
            a.wait_event("link.closed", after=mark)
            assert before + 1 == counter(a, LINKS_REFUSED)


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_protocol_on_the_control_port(
    pair: tuple[NodeProcess, NodeProcess], kind: str
) -> None:
    """gRPC closes it and its half of the process keeps quiet, or speaks JSON."""
    _, a = pair
    with socket.create_connection(port_of(a, "grpc"), timeout=30) as connection:
        send_all(connection, FOREIGN[kind])
        try:
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has closed already
        read_to_end(connection)
    assert 0 <= counter(a, LINKS_REFUSED)  # and answers its own kind


def test_half_open_connections(pair: tuple[NodeProcess, NodeProcess]) -> None:
    """
    Who says nothing, or never comes to the point, is let go: MQTT after `connect_timeout`, a link
    after five seconds, however slowly it talks.
    """
    root, a = pair
    start = time.monotonic()
    with (
        socket.create_connection(a.mqtt, timeout=30) as silent,
        socket.create_connection(a.mqtt, timeout=30) as slow,
        socket.create_connection(parse_address(a.grpc), timeout=30) as control,
        socket.create_connection(parse_address(a.link), timeout=30) as silent_link,
        socket.create_connection(parse_address(a.link), timeout=30) as slow_link,
    ):
        slow.sendall(wire.connect("slow")[:5])
        slow_link.sendall(b"\x00\xff\x7f")  # a long frame begins
        slow_link.settimeout(0.2)
        for connection in (silent, slow):
            assert b"" == read_to_end(connection)
        assert time.monotonic() - start > 0.9
        is_fine(root, a)
        control.sendall(b"PRI")
        while time.monotonic() - start < 40:
            try:
                slow_link.sendall(b"\x00")
                if not slow_link.recv(65_536):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert 4 < time.monotonic() - start < 40
        read_to_end(silent_link)
    is_fine(root, a)


def test_mqtt_client_on_the_link_port(pair: tuple[NodeProcess, NodeProcess]) -> None:
    """And a link on the MQTT port: neither is let in."""
    _, a = pair
    with socket.create_connection(parse_address(a.link), timeout=30) as connection:
        connection.sendall(wire.connect("stranger") + wire.publish("a/x", b"no", retain=True))
        assert b"" == read_to_end(connection)
    hello = link_pb2.Hello(version=LINK_VERSION, token=b"guess", edge="root", zone="a", stream=1)
    frame = encode_frame(link_pb2.LinkFrame(hello=hello))
    mark = a.mark()
    with socket.create_connection(a.mqtt, timeout=30) as connection:
        connection.sendall(frame)
        assert b"" == read_to_end(connection)
    a.wait_event("client.violation", after=mark)
    with RawClient(a.mqtt) as client:
        client.connect("reader")
        client.subscribe("a/x")
        client.ping()  # nothing was retained


# -- all that a node ever says


def test_every_line_is_json(tmp_path: Path) -> None:
    """
    Over a whole life: start without a parent, join, bad clients, a handover, a peer that is killed,
    a stop.
    """
    root = NodeProcess(tmp_path, topology("root", zone=""))
    a = NodeProcess(tmp_path, topology("a", zone="a", parent=root.grpc))
    try:
        a.start()
        a.wait_event("join.failed")
        root.start()
        a.wait_event("join.granted")
        for node in (root, a):
            with socket.create_connection(node.mqtt, timeout=30) as connection:
                connection.sendall(FOREIGN["http"])
                read_to_end(connection)
            with RawClient(node.mqtt) as client:
                client.connect("same id")
                client.subscribe("#")
                with RawClient(node.mqtt) as other:
                    other.connect("same id")
                    client.expect_closed()
        root.kill()
        a.wait_event("join.disconnected")
        root.start()
        a.wait_event("join.granted", after=a.mark() - 1)
        a.terminate()
        root.interrupt()
    finally:
        for node in (a, root):
            node.close()
    for node in (a, root):
        assert_json(node)
        levels = {event["level"] for event in node.events}
        assert levels <= {"info", "warning"} and "warning" in levels
