"""Connections that come."""

from __future__ import annotations

import fcntl
import os
import socket
from typing import Any

import pytest

from tests.core.cores import both
from txbroker.model.network import network_of


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
@pytest.mark.parametrize("client", [("::1", 0), ("127.0.0.1", 0)])
def test_networks_of_a_socket_of_both_families(core: Any, client: tuple[str, int]) -> None:
    """An IPv4 host is a network there as well, and not one of all IPv4 hosts."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listening:
        listening.setblocking(False)
        target = (client[0], listening.getsockname()[1])
        with socket.create_connection(target, source_address=client):
            descriptor, network = core.accept(listening)
            os.close(descriptor)
    assert network in (network_of(client[0]), bytes(8), socket.inet_aton("127.0.0.1"))
    assert (network in ("127.0.0.1", socket.inet_aton("127.0.0.1"))) == (client[0] != "::1")


@both
def test_what_cannot_be_accepted_from(core: Any) -> None:
    """Why not is told."""
    with socket.socket() as idle, pytest.raises(OSError, match="Invalid argument"):
        core.accept(idle)
