"""
How a node ends, asked or killed, and what it does when connections or open files run out.

Real processes, the documented command lines.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import wire
from tests.support.nodes import Address, NodeProcess, parse_address, topology
from tests.support.rawclient import ConnectionEnded, RawClient
from tests.support.wire import CONNACK, PUBACK

from .commands import Running, environment, wait_until

Make = Callable[..., NodeProcess]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes nodes; those that run at the end are stopped, and all that was said is JSON."""
    made: list[NodeProcess] = []

    def build(name: str, kind: type[NodeProcess] = NodeProcess, **keys: Any) -> NodeProcess:
        made.append(kind(tmp_path, topology(name, **keys)))
        return made[-1]

    yield build
    for node in reversed(made):
        node.close()
    for node in made:
        for text in node.lines:
            assert "traceback" not in json.loads(text) and "Traceback" not in text, text


class DocumentedNode(NodeProcess):
    """A node that twistd starts as people start it."""

    forked = False


class PlainNode(NodeProcess):
    """A node that twistd starts without the reactor's flag."""

    def command(self) -> list[str]:
        return [part for part in super().command() if part != "--reactor=asyncio"]


class TwistNode(NodeProcess):
    """A node that `python -m twisted` starts."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "twisted", "txbroker", "--topology", str(self.file)]


def client_of(node: NodeProcess, client_id: str, **options: Any) -> RawClient:
    """A connected client."""
    client = RawClient(node.mqtt)
    client.connect(client_id, **options)
    return client


@pytest.mark.parametrize("kind", [DocumentedNode, PlainNode, TwistNode])
def test_each_launch_line_serves(make: Make, kind: type[NodeProcess]) -> None:
    """A node serves and logs alike under twistd, with or without `--reactor`, and under twist."""
    with make("solo", kind, zone="") as node:
        with client_of(node, "a") as client:
            client.ping()
        assert node.terminate() == -signal.SIGTERM
    assert node.lines and not node.stdout


# -- asked to end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal(make: Make, number: signal.Signals) -> None:
    """
    Ended by that signal (143 and 130 in a shell). Its clients' wills are not sent, and its zone
    stays its own: nobody serves it meanwhile, and it has it at once when it is back.
    """
    root = make("root", zone="").start()
    a = make("a", zone="a", parent=root.grpc).start()
    epoch = a.wait_event("join.granted", zone="a")["epoch"]
    will = wire.Will(topic="will", payload=b"gone", qos=1)
    with (
        client_of(root, "far") as far,
        client_of(a, "lost", will=will) as lost,
        client_of(a, "idle", will=will),
    ):
        far.subscribe(("#", 1))
        lost.subscribe(("a/#", 1))
        lost.publish("a/x", b"before", qos=1)
        assert b"before" == far.take(1)[0].payload
        far.publish("a/x", b"kept", qos=1, retain=True)
        far.take(1)

        end = a.terminate if number == signal.SIGTERM else a.interrupt
        assert -number == end()

        root.wait_event("child.disconnected", peer="a")
        far.publish("end", b"", qos=1)
        assert "end" == far.take(1)[0].topic  # and no will before it
        far.send(wire.publish("a/x", b"waits", qos=1, packet_id=900))
        far.ping()
        a.start()
        a.wait_event("join.granted", zone="a", epoch=epoch)
        far.wait_for(PUBACK, 900)
        assert b"waits" == far.take(1)[0].payload


def test_signals_during_the_stop(make: Make) -> None:
    """Whoever waits asks again, in either way: the node stops once, and says nothing of it."""
    root = make("root", zone="").start()
    with client_of(root, "c", clean=False) as client:
        client.subscribe(("#", 1))
        for _ in range(20):
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                root.send_signal(number)
        # Those that come before the node has its turn have no order.
        assert root.wait() in (-signal.SIGTERM, -signal.SIGINT)
        client.expect_closed()


def test_signal_while_others_are_frozen(make: Make) -> None:
    """Neither parent nor child nor the ends of its links answer; it ends in time all the same."""
    root = make("root", zone="").start()
    a = make("a", zone="a", parent=root.grpc).start()
    deeper = make("deeper", zone="a/b", parent=a.grpc).start()
    deeper.wait_event("join.granted")
    with client_of(a, "c") as client:
        client.subscribe("#")
        for topic in ("x", "a/b/x"):
            client.publish(topic, b"", qos=1)
        client.take(2)
        root.pause()
        deeper.pause()
        for number in range(901, 911):
            client.send(wire.publish("x", bytes(100_000), qos=1, packet_id=number))
        client.ping()
        assert -signal.SIGTERM == a.terminate()


def test_signal_without_a_parent(make: Make) -> None:
    """A node that never reached its parent, and is trying."""
    a = make("a", zone="a", parent="127.0.0.1:1").start()
    a.wait_event("join.failed")
    with client_of(a, "c") as client:
        client.send(wire.publish("a/x", b"", qos=1, packet_id=1))
        client.ping()
        assert -signal.SIGTERM == a.terminate()


SIGNAL_WHILE_LOGGING = """
import io, os, signal
from txbroker.runtime import structured_log

class Stream(io.StringIO):
    def write(self, text):
        if len(lines) == 0:
            lines.append(text)
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            lines.append(text)
        return len(text)

lines = []
structured_log.configure("n", stream=Stream(), as_json=True)
log = structured_log.get_logger()
signal.signal(signal.SIGTERM, lambda *_: log.info("twisted.log", message="Received SIGTERM"))
log.info("link.closed")
assert 2 == len(lines), lines
"""


def test_signal_in_the_middle_of_a_log_line() -> None:
    """Twisted's handlers log, too: they must not wait for the line that they interrupt."""
    script = [sys.executable, "-c", SIGNAL_WHILE_LOGGING]
    done = subprocess.run(script, env=environment(), capture_output=True, text=True, timeout=20)
    assert 0 == done.returncode, done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_txbroker_run(tmp_path: Path, number: signal.Signals) -> None:
    """One command for both nodes of a file: status 0, and all processes are gone."""
    root = topology("root", zone="")
    child = topology("a", zone="a", parent=root["grpc"])
    file = tmp_path / "site.yaml"
    file.write_text(yaml.safe_dump_all([root, child]))
    with Running("run", file) as running:
        said: list[dict[str, Any]] = []

        def has_joined() -> bool:
            assert running.process.stderr is not None
            said.append(json.loads(running.process.stderr.readline()))
            return said[-1]["event"] == "join.granted"

        wait_until(has_joined, what="the child joins")
        running.signal(number)
        status, rest = running.end()
        assert 0 == status
        for text in rest.splitlines():
            said.append(json.loads(text))
    assert {"root", "a"} == {event["node"] for event in said}
    assert not any("traceback" in event for event in said)
    for document in (root, child):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(parse_address(document["grpc"]), timeout=30)


# -- killed


def test_kill_harms_nobody_elsewhere(make: Make) -> None:
    """Clients of other nodes keep their connections and go on without a gap."""
    root = make("root", zone="").start()
    a = make("a", zone="a", parent=root.grpc).start()
    b = make("b", zone="b", parent=root.grpc).start()
    for node in (a, b):
        node.wait_event("join.granted")
    with (
        client_of(root, "at root") as at_root,
        client_of(a, "at a") as at_a,
        client_of(b, "at b") as at_b,
    ):
        for client in (at_root, at_a):
            client.subscribe(("a/#", 1), ("r", 1))
        at_b.subscribe("#")
        at_b.publish("a/x", b"1", qos=1)
        b.kill()
        with pytest.raises(ConnectionEnded):
            at_b.receive()
            while True:
                at_b.receive()
        for sender in (at_root, at_a):
            for topic in ("a/x", "r"):
                sender.publish(topic, b"2", qos=2)
        for client in (at_root, at_a):
            found = [message.payload for message in client.take(5)]
            assert [b"1", b"2", b"2", b"2", b"2"] == found
            client.ping()


# -- limits


def refused(address: Address, client_id: str) -> bool:
    """True if a connection is refused, or closed, instead of served."""
    with RawClient(address) as client:
        try:
            client.send(wire.connect(client_id))
            return client.expect(CONNACK).body[1] == 3
        except (ConnectionEnded, ConnectionResetError):  # perhaps before it could say anything
            return True


def test_limit_of_connections(make: Make) -> None:
    """One more than allowed is closed and logged; a place that is free is given again."""
    node = make("n", zone="", limits={"connections": 2}).start()
    with client_of(node, "first") as first, client_of(node, "second") as second:
        first.subscribe("x")
        assert refused(node.mqtt, "third")
        node.wait_event("client.refused", limit="limits.connections", value=2)
        second.publish("x", b"1", qos=1)
        assert b"1" == first.take(1)[0].payload
        second.disconnect()
        assert not refused(node.mqtt, "third")
        first.ping()


OPEN_FILES = 64


class FewFiles(NodeProcess):
    """A node that may open only few files."""

    most = OPEN_FILES

    def command(self) -> list[str]:
        return ["sh", "-c", f'ulimit -n {self.most} && exec "$@"', "sh", *super().command()]


def cpu_seconds(node: NodeProcess) -> float:
    """Processor time that the node has used."""
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def open_files(node: NodeProcess) -> int:
    """Files that the node has open."""
    return len(os.listdir(f"/proc/{node.pid}/fd"))


def is_taken(node: NodeProcess, port: str) -> bool:
    """True if the port takes no more connections; that of gRPC has a third of the files."""
    most = OPEN_FILES // 3 if port == "grpc" else OPEN_FILES - OPEN_FILES // 4
    return open_files(node) >= most


@pytest.mark.parametrize("port", ["mqtt", "grpc", "link"])
def test_open_files_run_out(few_files: tuple[NodeProcess, NodeProcess], port: str) -> None:
    """
    New connections wait, which is logged; nothing spins; who is connected, the joined
    child included, goes on; and when there is room again all is as before.
    """
    node, child = few_files
    address = {
        "mqtt": node.mqtt,
        "grpc": parse_address(node.grpc),
        "link": parse_address(node.link),
    }
    mark = node.mark()
    with client_of(node, "good") as good, client_of(child, "far") as far:
        good.subscribe(("#", 1))
        far.publish("x", b"before", qos=1)
        good.take(1)
        crowd = [socket.create_connection(address[port], timeout=30) for _ in range(2 * OPEN_FILES)]
        try:
            wait_until(lambda: is_taken(node, port), what="no file is left for connections")
            if port != "grpc":  # it waits in silence
                node.wait_event("accept.paused", after=mark)
            before, start = cpu_seconds(node), time.monotonic()
            while time.monotonic() - start < 1.0:
                far.publish("x", b"during", qos=1)
                good.publish("child/x", b"during", qos=1)
                assert {b"during"} == {message.payload for message in good.take(2)}
                time.sleep(0.1)
            assert cpu_seconds(node) - before < 0.5
        finally:
            for connection in crowd:
                connection.close()
        wait_until(lambda: open_files(node) < OPEN_FILES - 20, what="files are free again")
        assert not refused(node.mqtt, "after")
        far.publish("x", b"after", qos=1)
        assert b"after" == good.take(1)[0].payload
    assert not child.has_event("join.disconnected")


def test_too_few_files_are_refused(tmp_path: Path) -> None:
    """In one line: with 20 of them gRPC ends the process with SIGSEGV, and nobody says why."""
    node = FewFiles(tmp_path, topology("n", zone=""))
    node.most = 20
    try:
        node.start(ready=False)
        assert 1 == node.wait()
        reason = str(node.wait_event("node.refused")["reason"])
    finally:
        node.close()
    assert "the process may open fewer than 64 files; raise its limit (ulimit -n)" == reason


@pytest.mark.parametrize("port", ["mqtt", "grpc"])
def test_a_crowd_leaves_files_for_the_journal(tmp_path: Path, port: str) -> None:
    """
    Segments and the state are written while strangers take every connection there is; and when
    they have gone the node takes connections again.
    """
    node = FewFiles(tmp_path, topology("n", zone="", retention={"size": "1MiB"}))
    with node, client_of(node, "pub") as pub:
        node.wait_event("descriptors.low", limit="limits.connections")
        address = node.mqtt if port == "mqtt" else parse_address(node.grpc)
        crowd = [socket.create_connection(address, timeout=30) for _ in range(2 * OPEN_FILES)]
        try:
            wait_until(lambda: is_taken(node, port), what="no file is left for connections")
            crowd.append(socket.create_connection(node.mqtt, timeout=30))
            if port != "grpc":  # it leaves two thirds of the files to others
                node.wait_event("accept.paused")
            number, start = 0, time.monotonic()
            while number < 80 or time.monotonic() - start < 2.5:  # it tries again each second
                pub.publish(f"t/{number % 80}", bytes(65_536), qos=1, retain=number % 20 == 0)
                number += 1
        finally:
            for connection in crowd:
                connection.close()
        wait_until(lambda: not refused(node.mqtt, "after"), what="a connection")
        segments = list((node.data / "journal").rglob("*.log"))
        assert int(max(path.stem for path in segments)) > 1


@pytest.fixture(scope="module")
def few_files(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """A root that may open few files, and a child of it that may open many."""
    folder = tmp_path_factory.mktemp("files")
    root = FewFiles(folder, topology("root", zone=""))
    child = NodeProcess(folder, topology("child", zone="child", parent=root.grpc))
    with root, child:
        child.wait_event("join.granted")
        yield root, child
    for text in root.lines:
        assert "traceback" not in json.loads(text), text
