"""CONNACKs of many clients that connect in the same turn."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Any

from tests.mqtt.transport.test_protocol import Bench, Wire
from tests.support import wire
from txbroker.core.reference.output_group import TOGETHER
from txbroker.mqtt.transport.protocol import MqttFactory


class SocketWire(Wire):
    """A transport whose packet writer writes to a socket itself."""

    descriptor = -1

    def carry(self, _: Any, packet_writer: Any) -> None:
        packet_writer.descriptor = self.descriptor


def is_answered(client: socket.socket) -> bool:
    """True if the client has got its CONNACK."""
    try:
        return client.recv(10) == b"\x20\x02\x00\x00"
    except BlockingIOError:
        return False


def test_clients_of_a_large_turn_get_connack_before_its_end() -> None:
    """Clients that are answered at the end of the turn give the node nothing to do meanwhile."""
    bench = Bench()
    bench.set_limits(connections=TOGETHER + 1)
    early: list[bool] = []
    with ExitStack() as stack:
        clients = []

        def connect(number: int) -> None:
            here, there = (stack.enter_context(one) for one in socket.socketpair())
            here.setblocking(False)
            there.setblocking(False)
            clients.append(there)
            transport = SocketWire()
            transport.descriptor = here.fileno()
            protocol = MqttFactory(bench.service).buildProtocol(None)
            protocol.makeConnection(transport)
            protocol.dataReceived(wire.connect(f"c{number}"))

        def connect_all() -> None:
            for number in range(TOGETHER + 1):
                connect(number)
            early.extend(map(is_answered, clients))

        bench.turn.share(connect_all)

        assert [True] * TOGETHER + [False] == early
        assert is_answered(clients[-1]), "the end of the turn"
