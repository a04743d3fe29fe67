"""
`txbroker pub` and `txbroker sub`: what they print, when they end, and with which status.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from txbroker.v1.control_pb2 import SysRequest
from txbroker.v1.control_pb2_grpc import ControlStub

from .commands import Running, at, environment, failure, line, output, run, wait_until, wrong_usage
from .conftest import House
from .fake_broker import FakeBroker


def publish(node: NodeProcess, topic: str, text: str, *options: object) -> None:
    """`txbroker pub`, which succeeds and prints nothing."""
    assert "" == output("pub", at(node.mqtt), "-t", topic, "-m", text, *options)


@pytest.fixture
def base() -> str:
    """A topic in zone a that no other test uses; `ready` below it is retained."""
    return f"a/{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def listening(node: NodeProcess, base: str, *options: object) -> Iterator[Running]:
    """A `txbroker sub` that surely has its subscription: a retained message has come."""
    publish(node, f"{base}/ready", "yes", "-r", "-q", 1)
    with Running("sub", at(node.mqtt), "-t", f"{base}/#", *options) as command:
        assert [f"{base}/ready yes"] == command.wait_lines(1)
        yield command


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_from_node_to_node(house: House, base: str, qos: int) -> None:
    """Published at b into a's zone, printed at the edge at once, in order."""
    with listening(house.edge, base, "-q", qos, "-n", 3) as command:
        publish(house.b, f"{base}/x", "21.5 °C", "-q", qos)
        assert f"{base}/x 21.5 °C" == command.wait_lines(2)[1]
        publish(house.b, f"{base}/x/y", "", "-q", qos)
        assert (0, "") == command.end()
        assert [f"{base}/x 21.5 °C", f"{base}/x/y "] == command.lines[1:]


def test_qos_0_is_the_default(house: House, base: str) -> None:
    """And nothing is retained unless asked for."""
    with RawClient(house.a.mqtt) as client:
        client.connect("default")
        client.subscribe((f"{base}/#", 2))
        publish(house.a, f"{base}/x", "p")
        client.expect_publish(f"{base}/x", b"p", qos=0, retain=False)
        publish(house.a, f"{base}/y", "p", "-q", 2, "-r")
        (message,) = client.take(1)
        assert (2, False) == (message.qos, message.retain)
        client.subscribe(f"{base}/+")
        client.expect_publish(f"{base}/y", b"p", retain=True)


def test_an_empty_message_clears_a_retained_one(house: House, base: str) -> None:
    """As with any MQTT client."""
    publish(house.b, f"{base}/x", "old", "-r", "-q", 1)
    publish(house.b, f"{base}/x", "", "-r", "-q", 1)
    with listening(house.b, base) as command:
        publish(house.b, f"{base}/z", "marker", "-q", 1)
        assert [f"{base}/z marker"] == command.wait_lines(2)[1:]


def test_bytes_that_are_no_text(house: House, base: str) -> None:
    """Hexadecimal digits; line ends and other control characters spelled out: one line each."""
    payloads = [b"\xff\x00\x10", b"two\nlines\r\n", b"\x1b[31m\xc2\x85", b"tab\tstays", b"\\n"]
    with listening(house.a, base, "-n", 1 + len(payloads)) as command:
        with RawClient(house.a.mqtt) as client:
            client.connect("bytes")
            for payload in payloads:
                client.publish(f"{base}/x", payload, qos=1)
        assert (0, "") == command.end()
    expected = ["ff0010", "two\\nlines\\r\\n", "\\x1b[31m\\x85", "tab\tstays", "\\n"]
    assert [f"{base}/x {text}" for text in expected] == command.lines[1:]


def test_the_payload_is_what_was_typed(house: House, base: str) -> None:
    """Byte for byte, text or not."""
    with RawClient(house.a.mqtt) as client:
        client.connect("typed")
        client.subscribe(f"{base}/#")
        command = [os.fsencode(word) for word in line("pub", at(house.a.mqtt), "-t", f"{base}/x")]
        subprocess.run([*command, b"-m", b"\xff\xfe"], env=environment(), check=True, timeout=40)
        client.expect_publish(f"{base}/x", b"\xff\xfe")


def test_several_filters(house: House, base: str) -> None:
    """In several zones, `$SYS` of the node among them."""
    filters = ["-t", f"b{base}/x", "-t", f"{base}/+", "-t", "$SYS/broker/version"]
    publish(house.a, f"{base}/x", "1", "-r", "-q", 1)
    publish(house.a, f"b{base}/x", "2", "-r", "-q", 1)

    found = output("sub", at(house.edge.mqtt), *filters, "-n", 3).splitlines()

    assert [f"{base}/x 1", f"b{base}/x 2"] == sorted(found)[1:]
    assert sorted(found)[0].startswith("$SYS/broker/version txbroker")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_sub_with_status_0(house: House, base: str, number: signal.Signals) -> None:
    """At once, without a word."""
    with listening(house.a, base) as command:
        command.signal(number)
        assert (0, "") == command.end(timeout=30.0)


def test_a_signal_ends_sub_before_it_is_connected() -> None:
    """Also where nobody answers."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Running("sub", at(server.getsockname()), "-t", "x") as command,
    ):
        connection, _ = server.accept()
        with connection:
            command.signal(signal.SIGTERM)
            assert (0, "") == command.end(timeout=30.0)


def test_a_signal_ends_sub_in_a_full_pipe(house: House, base: str) -> None:
    """Nobody reads what it prints, and it has to wait."""
    publish(house.a, f"{base}/x", "p" * 100_000, "-r", "-q", 1)
    process = subprocess.Popen(
        line("sub", at(house.a.mqtt), "-t", f"{base}/#"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None and process.stderr is not None
        assert b"a" == os.read(process.stdout.fileno(), 1)
        process.terminate()
        assert 0 == process.wait(5.0)
        assert b"" == process.stderr.read()


def test_a_reader_that_leaves_ends_sub_quietly(house: House, base: str) -> None:
    """As in `txbroker sub ... | head -1`: at once, not with the next message."""
    publish(house.a, f"{base}/x", "p", "-r", "-q", 1)
    command = subprocess.list2cmdline(line("sub", at(house.a.mqtt), "-t", f"{base}/#"))
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=40,
    )

    assert (0, f"{base}/x p\n", "") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("qualities", ["1111111", "2222222", "2221111"])
def test_a_named_session_keeps_messages(house: House, base: str, qualities: str) -> None:
    """What comes while nobody listens is printed later; -n takes so many and no more."""
    options = ["-t", f"{base}/#", "-q", 2, "-i", f"kept-{base[2:]}"]
    with listening(house.b, base, *options[2:]) as command:
        command.signal(signal.SIGTERM)
        assert (0, "") == command.end()
    publish(house.a, f"{base}/ready", "", "-r", "-q", 1)
    for number, qos in enumerate(qualities):
        publish(house.a, f"{base}/x", str(number), "-q", qos)

    found = [output("sub", at(house.b.mqtt), *options, "-n", n).splitlines() for n in (3, 1, 4)]

    numbers = [f"{base}/x {number}" for number in range(7)]
    assert [[f"{base}/ready ", *numbers[:2]], numbers[2:3], numbers[3:]] == found


def test_without_a_name_nothing_is_kept(house: House, base: str) -> None:
    """The session is gone when the command has ended."""

    def sessions() -> int:
        with grpc.insecure_channel(house.b.grpc) as channel:
            values = ControlStub(channel).Sys(SysRequest(), timeout=30.0).values
        return int(values["$SYS/broker/clients/total"])

    before = sessions()
    with listening(house.b, base) as command:
        assert before + 1 == sessions()
        command.signal(signal.SIGTERM)
        assert (0, "") == command.end()
    assert before == sessions()


def test_pub_while_the_owner_is_away(house: House, base: str) -> None:
    """Acknowledged by the outbox of the node that it goes to; there once the zone is back."""
    house.a.terminate()
    try:
        assert "" == output("pub", at(house.b.mqtt), "-t", f"{base}/x", "-m", "p", "-q", 1, "-r")
        house.b.wait_event("outbox.opened", zone="a")
    finally:
        house.a.start()
    house.b.wait_event("outbox.drained", zone="a", messages=1)
    assert f"{base}/x p\n" == output("sub", at(house.a.mqtt), "-t", f"{base}/x", "-n", 1)
    house.wait_whole()


def test_pub_waits_for_the_owner(tmp_path: Path) -> None:
    """`unreachable: hold`: until the zone is back; or until the timeout, with one line."""
    root = NodeProcess(tmp_path, topology("root", zone="", unreachable="hold"))
    a = NodeProcess(tmp_path, topology("a", zone="a", parent=root.grpc))
    with root, a:
        a.wait_event("join.granted", zone="a")
        a.terminate()
        wait_until(lambda: is_quick(root), what="the other node is known to be away")
        arguments = ["-t", "a/x", "-m", "p", "-q", 1]
        said = failure("pub", at(root.mqtt), *arguments, "--timeout", 0.7)
        assert "no acknowledgement in 0.7 s; the owner of 'a/x' may be away" in said
        with Running("pub", at(root.mqtt), *arguments) as command:
            wait_until(lambda: connected(root), what="the publisher is connected")
            a.start()
            assert (0, "") == command.end(30.0)


def is_quick(node: NodeProcess) -> bool:
    """True if a client is accepted at once."""
    began = time.monotonic()
    with RawClient(node.mqtt) as client:
        client.connect("quick")
    return time.monotonic() - began < 2.9  # `roaming_wait` is 3 s


def connected(node: NodeProcess) -> bool:
    """True if the node has a client; `tree` may end with status 1, as a zone is away."""
    return '"clients": 1' in run("tree", node.grpc, "--json").stdout


@pytest.mark.parametrize("arguments", [["pub", "-t", "x", "-m", "y"], ["sub", "-t", "x"]])
def test_nobody_there(arguments: list[str]) -> None:
    """One line, status 1."""
    command, *rest = arguments

    assert "Error: 127.0.0.1:1: cannot be reached: Connection refused" == failure(
        command, "127.0.0.1:1", *rest
    )
    assert "no.such.host.invalid:1883: cannot be reached: " in failure(
        command, "no.such.host.invalid:1883", *rest
    )


CONNACK = b"\x20\x02\x00"
REFUSALS = [
    (1, "Unsupported protocol version"),
    (2, "Client identifier not valid"),
    (3, "Server unavailable"),
    (4, "Bad user name or password"),
    (5, "Not authorized"),
]


@pytest.mark.parametrize("code, meaning", REFUSALS)
def test_a_refused_connection(fake_broker: type[FakeBroker], code: int, meaning: str) -> None:
    """One line with what the code means, status 1; the codes in turn for sub and pub."""
    more = ["pub", "-m", "y"] if code % 2 else ["sub"]
    broker = fake_broker(CONNACK + bytes([code]))

    assert f"Error: {broker.address}: connection refused: {meaning}" == failure(
        *more, broker.address, "-t", "x"
    )


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x12\x04\x00\x00\x00", b"\x20\x00", b""],
)
def test_a_foreign_protocol(fake_broker: type[FakeBroker], answer: bytes) -> None:
    """One line, status 1."""
    broker = fake_broker(answer)

    assert "is it an MQTT address?" in failure("sub", broker.address, "-t", "x")
    assert "is it an MQTT address?" in failure("pub", broker.address, "-t", "x", "-m", "y")


def test_a_silent_server(fake_broker: type[FakeBroker]) -> None:
    """The timeout holds for the connection, too."""
    broker = fake_broker(b"", stay=True)

    said = failure("pub", broker.address, "-t", "x", "-m", "y", "--timeout", 0.5)

    assert "no answer in 0.5 s" in said


def test_a_refused_filter(fake_broker: type[FakeBroker]) -> None:
    """One line that names it, status 1."""
    broker = fake_broker(CONNACK + b"\x00" + b"\x90\x04\x00\x01\x00\x80", stay=True)

    assert "refused the filter 'y/#'" in failure("sub", broker.address, "-t", "x", "-t", "y/#")


def test_a_lost_connection(tmp_path: Path) -> None:
    """One line, status 1: whoever reads knows that there is a gap."""
    with (
        NodeProcess(tmp_path, topology("solo", zone="")) as node,
        listening(node, "a/x") as command,
    ):
        address = at(node.mqtt)
        node.kill()
        assert (1, f"Error: {address}: the connection was lost\n") == command.end()


@pytest.mark.parametrize(
    "arguments, what",
    [
        (["pub", "-t", "a/+", "-m", "x"], "TOPIC: 'a/+'"),
        (["pub", "-t", "", "-m", "x"], "TOPIC: ''"),
        (["pub", "-t", "a", "-m", "x", "-i", ""], "ID: ''"),
        (["sub", "-t", "a/#/b"], "FILTER: 'a/#/b'"),
        (["sub", "-t", "a", "-i", "x" * 65_536], "ID: 'xx"),
    ],
)
def test_what_is_typed_wrongly(arguments: list[str], what: str) -> None:
    """One line, status 2, and nobody is connected to."""
    command, *rest = arguments

    assert f"Error: {what}" in wrong_usage(command, "127.0.0.1:1", *rest)
