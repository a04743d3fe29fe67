"""What a stranger can make of the control port: little memory, short errors, short logs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.support.nodes import ROOT, NodeProcess, topology
from tests.system.attacks import command
from txbroker.rpc.streams import LONGEST_TEXT
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2_grpc import ControlStub

MIB = 1 << 20


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A root."""
    with NodeProcess(tmp_path, topology("n", zone="")) as node:
        yield node


def resident(node: NodeProcess) -> int:
    """Bytes of memory that the process has had at the most."""
    for line in Path(f"/proc/{node.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def test_compressed_messages_are_not_taken(node: NodeProcess) -> None:
    """300 MB of zeros are 0.3 MB on the wire."""
    before = resident(node)
    request = control_pb2.ResolveRequest(question="x" * (300 * MIB))
    options = (("grpc.max_send_message_length", -1),)
    with grpc.insecure_channel(
        node.grpc, options=options, compression=grpc.Compression.Gzip
    ) as channel:
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as error:
                ControlStub(channel).Resolve(request, timeout=60)
            assert grpc.StatusCode.UNIMPLEMENTED == error.value.code()  # type: ignore[attr-defined]
    with grpc.insecure_channel(node.grpc) as channel:
        assert ControlStub(channel).Status(control_pb2.StatusRequest(), timeout=30).node == "n"
    assert resident(node) < before + 50 * MIB


def test_headers_without_end_take_no_memory(node: NodeProcess) -> None:
    """gRPC kept them, of hundreds of calls: 100 MB and more a second."""
    with grpc.insecure_channel(node.grpc) as channel:
        ControlStub(channel).Status(control_pb2.StatusRequest(), timeout=30)
        before = resident(node)
        subprocess.run(command("http2-long", node, 3.0), cwd=ROOT, check=True)
        assert ControlStub(channel).Status(control_pb2.StatusRequest(), timeout=30).node == "n"
    assert resident(node) < before + 25 * MIB
    node.wait_event("control.disconnected")


@pytest.mark.parametrize("size", [2 * MIB, 60_000])
def test_an_error_does_not_repeat_the_question(node: NodeProcess, size: int) -> None:
    """Neither the status nor the log; be it longer than any text, or only as long as one may be."""
    mark = len(node.lines)
    with grpc.insecure_channel(node.grpc) as channel, pytest.raises(grpc.RpcError) as error:
        request = control_pb2.ResolveRequest(question="x#" * (size // 2))
        ControlStub(channel).Resolve(request, timeout=20)
    assert grpc.StatusCode.INVALID_ARGUMENT == error.value.code()  # type: ignore[attr-defined]
    assert len(error.value.details()) < 2 * LONGEST_TEXT  # type: ignore[attr-defined]
    assert sum(map(len, node.lines[mark:])) < 20_000


def test_a_large_message_is_not_taken(node: NodeProcess) -> None:
    """Neither over 4 MiB nor as a piece of one that is too large; little memory is used."""
    before = resident(node)
    options = (("grpc.max_send_message_length", -1),)
    with grpc.insecure_channel(node.grpc, options=options) as channel:
        for size in (5 * MIB, 320 * MIB):
            request = control_pb2.ResolveRequest(question="x" * size)
            with pytest.raises(grpc.RpcError, match="larger than max"):
                ControlStub(channel).Resolve(request, timeout=60)
        join = channel.stream_stream("/txbroker.v1.Control/Join")
        with pytest.raises(grpc.RpcError, match="at most 16777216 are taken here"):
            next(join(iter([b"\x07" + (320 * MIB).to_bytes(8, "little") + bytes(MIB)]), timeout=20))
        assert ControlStub(channel).Status(control_pb2.StatusRequest(), timeout=20).node == "n"
    assert resident(node) < before + 50 * MIB
    node.wait_event("call.refused", call="Join")


def test_messages_that_never_end_are_bounded_together(node: NodeProcess) -> None:
    """Sixteen streams, each with 15 of 16 MiB: those that began first are refused."""
    before = resident(node)
    pieces = [
        b"\x07" + (to_come * MIB).to_bytes(8, "little") + bytes(MIB) for to_come in range(16, 1, -1)
    ]
    with grpc.insecure_channel(node.grpc) as channel:
        join = channel.stream_stream("/txbroker.v1.Control/Join")
        calls = [join(_endless(pieces), timeout=60) for _ in range(16)]
        assert "no room" in str(calls[0].exception())
        assert ControlStub(channel).Status(control_pb2.StatusRequest(), timeout=20).node == "n"
        for call in calls:
            call.cancel()
    assert resident(node) < before + 100 * MIB


def _endless(pieces: list[bytes]) -> Iterator[bytes]:
    yield from pieces
    while True:
        time.sleep(0.2)
        yield pieces[-1][:9] + bytes(64 * 1024)
