"""What a stranger can make of the control port: little memory, short errors, short logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.support.nodes import NodeProcess, topology
from txbroker.control.streams import LONGEST_TEXT
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
        assert ControlStub(channel).Status(control_pb2.StatusRequest(), timeout=5).node == "n"
    assert resident(node) < before + 50 * MIB


def test_an_error_does_not_repeat_the_question(node: NodeProcess) -> None:
    """Neither the status nor the log."""
    mark = len(node.lines)
    with grpc.insecure_channel(node.grpc) as channel, pytest.raises(grpc.RpcError) as error:
        request = control_pb2.ResolveRequest(question="x#" * MIB)
        ControlStub(channel).Resolve(request, timeout=20)
    assert grpc.StatusCode.INVALID_ARGUMENT == error.value.code()  # type: ignore[attr-defined]
    assert len(error.value.details()) < 2 * LONGEST_TEXT  # type: ignore[attr-defined]
    assert sum(map(len, node.lines[mark:])) < 20_000
