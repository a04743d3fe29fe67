"""Connections and calls of nobody that anybody knows: they keep no node and no client out."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from tests.support import wire
from tests.support.nodes import NodeProcess, parse_address, topology
from tests.support.rawclient import RawClient
from txbroker.link.frames import LINK_VERSION
from txbroker.link.hello import LARGEST_HEAD
from txbroker.mqtt.wire.framing import encode_length
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2_grpc import ControlStub

from .commands import wait_until
from .strangers import counter, read_to_end, resident, send_all

MIB = 1 << 20
SERVED_IN = 1.0, 10.0
"""
Seconds in which an edge that is known gets its link, and how often it may take what it takes where
nobody is in the way: that is what a busy machine adds. Who had to wait for others would for 10 s.
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that is alone."""
    with NodeProcess(tmp_path, topology("root", zone="")) as root:
        yield root


def is_closed(connection: socket.socket) -> bool:
    """True if the other end has closed it."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def begin_connect(size: int) -> bytes:
    """A CONNECT of that size, all but its last byte."""
    return (b"\x10" + encode_length(size) + wire.string("MQTT")).ljust(size, b"x")


def test_bytes_before_connect(tmp_path: Path) -> None:
    """
    Together they are bounded: the oldest goes, the newest and who sends his CONNECT whole stay.
    """
    document = topology("root", zone="") | {"limits": {"unauthenticated": "2MiB"}}
    with NodeProcess(tmp_path, document) as root, ExitStack() as stack:
        strangers = []
        for _ in range(20):
            one = stack.enter_context(socket.create_connection(root.mqtt))
            strangers.append(one)
            send_all(one, begin_connect(300_000))
        found = root.wait_event("unauthenticated.over_limit", limit="limits.unauthenticated")
        assert 2 * MIB == found["value"]
        wait_until(lambda: counter(root, "unauthenticated.over_limit") == 14, what="it is counted")
        assert [True] * 14 + [False] * 6 == [is_closed(one) for one in strangers]
        with RawClient(root.mqtt) as client:
            client.connect("innocent")
            client.ping()


def test_memory_before_connect(root: NodeProcess) -> None:
    """A thousand strangers, each with all that one of them may send, cost no 150 MiB."""
    with ExitStack() as stack:
        before = resident(root)
        for _ in range(1_000):
            one = stack.enter_context(socket.create_connection(root.mqtt))
            send_all(one, begin_connect(320_000))
        wait_until(lambda: counter(root, "unauthenticated.over_limit") > 700, what="it is counted")
        assert resident(root) - before < 150 * MIB


def test_bytes_before_hello(root: NodeProcess) -> None:
    """Beyond a few KiB a link without a token that holds is closed."""
    with socket.create_connection(parse_address(root.link), timeout=30) as connection:
        send_all(connection, b"\x00\xff\xff\x7f\x0a\xff\xff\x7f\x08\x02" + b"\x00" * LARGEST_HEAD)
        assert b"" == read_to_end(connection)
    assert 1 == counter(root, "link.refused")


@pytest.mark.parametrize("calls", [1_000, 5_000])
def test_unused_tokens(root: NodeProcess, tmp_path: Path, calls: int) -> None:
    """Invented names get as many tokens as they like, and an edge gets its link meanwhile."""
    with grpc.insecure_channel(root.grpc) as channel:
        stub, asked = ControlStub(channel), []
        for number in range(calls):
            request = control_pb2.OpenLinkRequest(
                edge=f"invented-{number}", incarnation=1, epoch=1, link_version=LINK_VERSION
            )
            asked.append(stub.OpenLink.future(request, timeout=60))
            if number % 200 == 199:  # as many calls as a connection may have under way
                for one in asked[-200:]:
                    one.exception()
        answers = [one for one in asked if one.exception() is None]
        assert all(one.result().token for one in answers)
        assert len(answers) == calls
        is_served(root, tmp_path)


def test_unused_tokens_all_the_time(root: NodeProcess, tmp_path: Path) -> None:
    """The calls go on while the edge asks."""
    stop = threading.Event()
    made = 0

    def ask() -> None:
        nonlocal made
        with grpc.insecure_channel(root.grpc) as channel:
            stub = ControlStub(channel)
            while not stop.is_set():
                made += 1
                request = control_pb2.OpenLinkRequest(
                    edge=f"invented-{made}", incarnation=1, epoch=1, link_version=LINK_VERSION
                )
                with contextlib.suppress(grpc.RpcError):
                    stub.OpenLink(request, timeout=30)

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    try:
        wait_until(lambda: made > 1_500, 30.0, what="as many calls as there are links")
        is_served(root, tmp_path)
    finally:
        stop.set()
        for asker in askers:
            asker.join()


@pytest.mark.parametrize("begin", [b"", b"\x00\xff\xff\x7f"], ids=["silent", "begun"])
def test_silent_connections(root: NodeProcess, tmp_path: Path, begin: bytes) -> None:
    """A thousand connections to the link port that never say Hello."""
    with ExitStack() as stack:
        for _ in range(1_000):
            one = stack.enter_context(socket.create_connection(parse_address(root.link)))
            send_all(one, begin)
        is_served(root, tmp_path)
        root.wait_event("link.pushed_out")


def is_served(root: NodeProcess, tmp_path: Path) -> None:
    """An edge starts, and has its link within a second of its first client's wish for one."""
    with NodeProcess(tmp_path, topology("other", zone="")) as other:
        usual = time_to_link(other, tmp_path)
    least, share = SERVED_IN
    assert time_to_link(root, tmp_path) < least + share * usual


def time_to_link(root: NodeProcess, tmp_path: Path) -> float:
    """Seconds until a client of an edge of this node has what it published acknowledged."""
    name = f"edge-of-{root.name}"
    with NodeProcess(tmp_path, topology(name, parent=root.grpc, unreachable="hold")) as edge:
        began = time.monotonic()
        with RawClient(edge.mqtt) as client:
            client.connect("c")
            client.publish("t", qos=1)
            taken = time.monotonic() - began
        edge.wait_event("link.opened")
    return taken
