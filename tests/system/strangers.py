"""What the tests of wrong bytes share: sockets, and what must hold of nodes afterwards."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import grpc

from tests.support.nodes import Address, NodeProcess, parse_address
from tests.support.rawclient import RawClient
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2_grpc import ControlStub

LINKS_REFUSED = "link.refused"


def port_of(node: NodeProcess, port: str) -> Address:
    """The address of one of its listeners."""
    addresses = {"mqtt": node.mqtt, "grpc": parse_address(node.grpc)}
    return addresses.get(port) or parse_address(node.link)


def counter(node: NodeProcess, name: str) -> int:
    """One of the node's counters, as `txbroker tree -v` has it."""
    with grpc.insecure_channel(node.grpc) as channel:
        reply = ControlStub(channel).Status(control_pb2.StatusRequest(), timeout=30)
    return reply.counters.get(name, 0)


def resident(node: NodeProcess) -> int:
    """Bytes of its resident memory."""
    status = Path(f"/proc/{node.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def read_to_end(connection: socket.socket) -> bytes:
    """What the other end sends until it closes; fails when it does not."""
    found = b""
    try:
        while data := connection.recv(65_536):
            found += data
    except ConnectionError:
        pass
    return found


def send_all(connection: socket.socket, data: bytes) -> None:
    """Send; that the other end closes meanwhile is what is expected."""
    try:
        connection.sendall(data)
    except ConnectionError:
        pass


def assert_json(node: NodeProcess) -> None:
    """Every line on stderr is an object with the keys that all have, and no traceback in it."""
    for text in node.lines:
        event = json.loads(text)
        assert {"event", "level", "time", "node"} <= event.keys(), text
        assert "traceback" not in event and "Traceback" not in text, text
    assert not node.stdout


def is_fine(root: NodeProcess, a: NodeProcess) -> None:
    """Both serve their zones, to each other's clients too."""
    with RawClient(root.mqtt) as at_root, RawClient(a.mqtt) as at_a:
        for client, name in ((at_root, "at root"), (at_a, "at a")):
            client.connect(name)
            client.subscribe(("fine", 1), ("a/fine", 1))
        at_root.publish("a/fine", b"1", qos=1)
        at_a.publish("fine", b"1", qos=1)
        for client in (at_root, at_a):
            assert {"fine", "a/fine"} == {message.topic for message in client.take(2)}
