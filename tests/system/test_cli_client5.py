"""`txbroker pub` and `sub` at level 5, and `txbroker rpc`: properties, expiry, requests."""

from __future__ import annotations

import re
import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support import wire5
from tests.support.nodes import NodeProcess
from tests.support.rawclient5 import RawClient5

from .commands import Running, as_json, at, failure, output, run, wait_until, wrong_usage
from .fake_broker import FakeBroker

Pair = tuple[NodeProcess, NodeProcess]
ACCEPTED = b"\x20\x03\x00\x00\x00"
"""CONNACK without properties."""


def text(code: int, reason: str) -> bytes:
    """A reason code, and properties with a reason string."""
    return bytes([code, 3 + len(reason), 0x1F, 0, len(reason)]) + reason.encode()


def packet(first_byte: int, body: bytes) -> bytes:
    """A short packet."""
    return bytes([first_byte, len(body)]) + body


@pytest.fixture
def base() -> str:
    """A topic in zone a that no other test uses; `ready` below it is retained."""
    return f"a/{uuid.uuid4().hex[:8]}"


def publish(node: NodeProcess, topic: str, text: str, *options: object) -> None:
    """`txbroker pub -V 5`, which succeeds and prints nothing."""
    assert "" == output("pub", at(node.mqtt), "-t", topic, "-m", text, "-V", 5, *options)


@contextmanager
def listening(node: NodeProcess, base: str, *options: object) -> Iterator[Running]:
    """A `txbroker sub -V 5 -v` that surely has its subscription: a retained message has come."""
    publish(node, f"{base}/ready", "yes", "-r", "-q", 1)
    with Running("sub", at(node.mqtt), "-t", f"{base}/#", "-V", 5, "-v", *options) as command:
        assert [f"{base}/ready yes"] == command.wait_lines(1)
        yield command


# pub and sub


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_are_printed_as_they_are_given(pair: Pair, base: str, qos: int) -> None:
    """Published at one node, printed at the owner; user properties in their order."""
    root, a = pair
    given = ["--content-type", "text/plain", "--response-topic", f"{base}/answer"]
    given += ["--correlation-data", "n°1", "--user-property", "room=kitchen"]
    given += ["--user-property", "a=b=c", "--user-property", "room=two\nlines"]

    with listening(a, base, "-q", qos, "-n", 2) as command:
        publish(root, f"{base}/x", "21.5", "-q", qos, *given)
        assert (0, "") == command.end()

    assert [
        f"{base}/x 21.5",
        "  content-type: text/plain",
        f"  response-topic: {base}/answer",
        "  correlation-data: n°1",
        "  user-property: room=kitchen",
        "  user-property: a=b=c",
        "  user-property: room=two\\nlines",
    ] == command.lines[1:]


def test_all_other_properties_are_printed(pair: Pair, base: str) -> None:
    """Payload format, and correlation data that are no text; none where there is none."""
    root, a = pair
    properties: wire5.Properties = [
        (wire5.PAYLOAD_FORMAT, 1),
        (wire5.CORRELATION_DATA, b"\xff\x00"),
    ]
    with listening(a, base, "-n", 3) as command, RawClient5(root.mqtt) as client:
        client.connect("other")
        client.publish(f"{base}/x", b"1", qos=1, properties=properties)
        client.publish(f"{base}/y", b"2", qos=1)
        assert (0, "") == command.end()

    expected = [f"{base}/x 1", "  payload-format: 1", "  correlation-data: ff00", f"{base}/y 2"]
    assert expected == command.lines[1:]


def test_what_is_left_of_an_expiry_is_printed(pair: Pair, base: str) -> None:
    """Of a retained message; one whose interval has passed is not there."""
    root, a = pair
    publish(root, f"{base}/long", "1", "-r", "-q", 1, "--expiry", 3600)
    publish(root, f"{base}/over", "2", "-r", "-q", 1, "--expiry", 0)

    with listening(a, f"{base}/z") as command:
        found = output("sub", at(root.mqtt), "-t", f"{base}/#", "-V", 5, "-v", "-n", 2)
        assert command.lines

    assert f"{base}/over" not in found
    (left,) = re.findall(rf"^{base}/long 1\n  expiry: (\d+)$", found, re.MULTILINE)
    assert 3000 < int(left) <= 3600


def test_without_v_a_line_is_all(pair: Pair, base: str) -> None:
    """And at level 3.1.1 the message comes, too, without its properties."""
    publish(pair[0], f"{base}/x", "p", "-r", "-q", 1, "--user-property", "a=b")

    for options in (["-V", 5], []):
        found = output("sub", at(pair[1].mqtt), "-t", f"{base}/x", "-n", 1, *options)
        assert f"{base}/x p\n" == found


def test_a_named_session_keeps_messages_at_level_5(pair: Pair, base: str) -> None:
    """As at 3.1.1: it outlives the command; a command of the other level goes on with it."""
    root, a = pair
    name = f"kept-{base[2:]}"
    with listening(a, base, "-q", 1, "-i", name) as command:
        command.signal(signal.SIGTERM)
        assert (0, "") == command.end()
    publish(a, f"{base}/ready", "", "-r", "-q", 1)
    for number in range(3):
        publish(root, f"{base}/x", str(number), "-q", 1)
    options = ["-t", f"{base}/#", "-q", 1, "-i", name]

    found = [
        output("sub", at(a.mqtt), *options, "-n", count, *level).splitlines()
        for count, level in ((2, ["-V", 5]), (2, []))
    ]

    assert [[f"{base}/ready ", f"{base}/x 0"], [f"{base}/x 1", f"{base}/x 2"]] == found


def test_without_a_name_nothing_is_kept_at_level_5(pair: Pair, base: str) -> None:
    """The session ends with the command."""
    a = pair[1]

    def clients() -> list[str]:
        return sorted(session["client_id"] for session in as_json("sessions", a.grpc))

    before = clients()
    with listening(a, base) as command:
        assert len(before) + 1 == len(clients())
        command.signal(signal.SIGTERM)
        assert (0, "") == command.end()
    assert before == clients()


def test_zones_that_have_not_confirmed_are_named(pair: Pair, base: str) -> None:
    """On stderr, once; what the others have comes."""
    root, a = pair
    publish(root, f"b{base}", "here", "-r", "-q", 1)
    a.terminate()
    try:
        arguments = ["-t", "#", "-V", 5, "-n", 1]
        wait_until(
            lambda: "a has not confirmed yet" in run("sub", at(root.mqtt), *arguments).stderr,
            what="a counts as unreachable",
        )
        done = run("sub", at(root.mqtt), *arguments)
    finally:
        a.start()
        a.wait_event("join.granted")
    said = "a has not confirmed yet; its messages may come later\n"
    assert (0, said) == (done.returncode, done.stderr)
    assert f"b{base} here\n" == done.stdout


@pytest.mark.parametrize(
    "options, said",
    [
        (["pub", "-m", "x", "--expiry", 5], "--expiry: properties are of MQTT 5.0; add -V 5"),
        (["pub", "-m", "x", "--user-property", "a=b"], "--user-property: properties are of"),
        (["pub", "-m", "x", "--content-type", ""], "--content-type: properties are of"),
        (["sub", "-v"], "-v: properties are of MQTT 5.0; add -V 5"),
        (
            ["pub", "-m", "x", "-V", 5, "--user-property", "ab"],
            "--user-property: 'ab': write NAME=",
        ),
        (["pub", "-m", "x", "-V", 5, "--response-topic", "a/+"], "TOPIC: 'a/+'"),
        (["pub", "-m", "x", "-V", 5, "--content-type", "x" * 65_536], "--content-type: 'xx"),
        (["pub", "-m", "x", "-V", 5, "--correlation-data", "x" * 65_536], "--correlation-data: at"),
        (["rpc", "-m", "x", "-i", "a+b"], "'t/response/a+b'"),
    ],
)
def test_what_is_typed_wrongly(options: list[object], said: str) -> None:
    """One line, status 2, and nobody is connected to."""
    command, *rest = options

    assert f"Error: {said}" in wrong_usage(command, "127.0.0.1:1", "-t", "t", *rest)


# refusals


def test_a_refusal_has_the_reason_of_the_node(fake_broker: type[FakeBroker]) -> None:
    """CONNACK, SUBACK, PUBACK and DISCONNECT: the code's name, then the reason string."""
    refused = fake_broker(packet(0x20, b"\x00" + text(0x97, "full")))
    assert f"Error: {refused.address}: connection refused: Quota exceeded: full" == failure(
        "pub", refused.address, "-t", "x", "-m", "y", "-V", 5
    )
    suback = b"\x00\x01" + text(0x9E, "no shares")[1:] + b"\x9e"
    broker = fake_broker(ACCEPTED, packet(0x90, suback), stay=True)
    assert "refused the filter 'y': Shared subscription not supported: no shares" in failure(
        "sub", broker.address, "-t", "y", "-V", 5
    )
    broker = fake_broker(ACCEPTED, packet(0x40, b"\x00\x01" + text(0x97, "disk")), stay=True)
    assert "the node refused the message on 'x': Quota exceeded: disk" in failure(
        "pub", broker.address, "-t", "x", "-m", "y", "-q", 1, "-V", 5
    )
    broker = fake_broker(ACCEPTED, packet(0xE0, text(0x98, "by hand")), stay=True)
    assert "the node closed the connection: Administrative action: by hand" in failure(
        "sub", broker.address, "-t", "y", "-V", 5
    )


def test_a_server_of_311_alone(fake_broker: type[FakeBroker]) -> None:
    """Its CONNACK has no properties."""
    broker = fake_broker(b"\x20\x02\x00\x01")

    said = failure("sub", broker.address, "-t", "x", "-V", 5)

    assert f"Error: {broker.address}: connection refused: Unsupported protocol version" == said


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x20\x03\x00\x00\x05"])
def test_a_foreign_protocol(fake_broker: type[FakeBroker], answer: bytes) -> None:
    """One line, status 1."""
    broker = fake_broker(answer)

    assert "is it an MQTT address?" in failure("sub", broker.address, "-t", "x", "-V", 5)


def test_a_node_that_stops_says_so(pair: Pair, base: str) -> None:
    """DISCONNECT before the end of the connection."""
    root, a = pair
    with listening(a, base) as command:
        a.terminate()
        a.start()
        a.wait_event("join.granted")
        status, said = command.end()
    assert 1 == status
    assert f"Error: {at(a.mqtt).rpartition(':')[0]}" in said
    assert "the node closed the connection: Server shutting down" in said


# rpc


@contextmanager
def answering(node: NodeProcess, topic: str, *, first: bytes = b"") -> Iterator[None]:
    """
    Somebody who answers one request in capitals; with `first` he sends that before, as an answer
    to something else.
    """
    with RawClient5(node.mqtt) as client:
        client.connect("oven")
        client.subscribe((topic, 1))
        thread = threading.Thread(target=answer, args=(client, first))
        thread.start()
        yield
        thread.join(30.0)
        assert not thread.is_alive()


def answer(client: RawClient5, first: bytes) -> None:
    """One request."""
    (request,) = client.take(1)
    topic = wire5.first(request.properties, wire5.RESPONSE_TOPIC)
    data = wire5.first(request.properties, wire5.CORRELATION_DATA)
    assert isinstance(topic, str)
    assert isinstance(data, bytes)
    if first:
        client.publish(topic, first, qos=1)
        client.publish(topic, first, qos=1, properties=[(wire5.CORRELATION_DATA, b"other")])
    properties: wire5.Properties = [(wire5.CORRELATION_DATA, data), (wire5.CONTENT_TYPE, "t")]
    client.publish(topic, request.payload.upper(), qos=1, properties=properties)


def ask(node: NodeProcess, topic: str, text: str, *options: object) -> str:
    """What `txbroker rpc` prints."""
    return output("rpc", at(node.mqtt), "-t", topic, "-m", text, *options)


@pytest.mark.parametrize("asked", [0, 1])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_request_gets_its_response(pair: Pair, base: str, asked: int, qos: int) -> None:
    """On one node and on two; answers to others are passed over."""
    with answering(pair[1], base, first=b"wrong"):
        assert "ON\n" == ask(pair[asked], base, "on", "-q", qos)


def test_a_response_has_properties(pair: Pair, base: str) -> None:
    """With -v; the topic may be one's own."""
    with answering(pair[0], base):
        lines = ask(pair[1], base, "on", "-v", "--response-topic", f"b{base}").splitlines()

    assert ["ON", "  content-type: t"] == lines[:2]
    assert re.fullmatch("  correlation-data: [0-9a-f]{16}", lines[2])


def test_a_request_says_where_to_answer_and_how_long(pair: Pair, base: str) -> None:
    """The response topic is in the zone of the request's; the request expires with the timeout."""
    with RawClient5(pair[0].mqtt) as client:
        client.connect("silent")
        client.subscribe((base, 1))
        arguments = ["-t", base, "-m", "x", "-i", "me", "--timeout", 3]
        said = failure("rpc", at(pair[1].mqtt), *arguments, "--user-property", "a=b")
        (request,) = client.take(1)

    assert said.endswith("no response in 3 s; nobody who answers may have got the request")
    assert f"{base}/response/me" == wire5.first(request.properties, wire5.RESPONSE_TOPIC)
    assert wire5.first(request.properties, wire5.MESSAGE_EXPIRY) in (1, 2, 3)
    assert ("a", "b") == wire5.first(request.properties, wire5.USER_PROPERTY)


def test_rpc_says_how_far_it_came(fake_broker: type[FakeBroker]) -> None:
    """No SUBACK, no PUBACK: the owners may be away."""
    broker = fake_broker(ACCEPTED, stay=True)
    arguments = ["-t", "x", "-m", "y", "-i", "me", "--timeout", 2]

    said = failure("rpc", broker.address, *arguments)
    assert "no response in 2 s; the owner of 'x/response/me' may be away" in said

    broker = fake_broker(ACCEPTED, b"\x90\x04\x00\x01\x00\x01", stay=True)
    said = failure("rpc", broker.address, *arguments)
    assert "no response in 2 s; the owner of 'x' has not acknowledged the request" in said

    assert "cannot be reached" in failure("rpc", "127.0.0.1:1", *arguments)
