"""Connections that come."""

from __future__ import annotations

import fcntl
import os
import socket
from typing import Any

import pytest

from tests.core.cores import both


@both
def test_accepting(core: Any) -> None:
    """What is accepted does not block, and no other program gets it; without anybody it is -1."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        assert core.accept(listening) == (-1, b"")
        with socket.create_connection(listening.getsockname()) as client:
            descriptor, host = core.accept(listening)
            assert host in ("127.0.0.1", socket.inet_aton("127.0.0.1"))
            with socket.socket(fileno=descriptor) as accepted:
                assert not os.get_inheritable(descriptor)
                assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_NONBLOCK
                assert accepted.getpeername() == client.getsockname()
        assert core.accept(listening) == (-1, b"")


@both
def test_what_cannot_be_accepted_from(core: Any) -> None:
    """Why not is told."""
    with socket.socket() as idle, pytest.raises(OSError, match="Invalid argument"):
        core.accept(idle)
