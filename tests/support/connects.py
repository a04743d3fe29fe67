"""CONNECT at an edge whose sessions are at no other node, by the procedure of a node."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from tests.support.clock import Clock
from txbroker.edge.sessions.connect_procedure import (
    ConnectingClient,
    ConnectProcedure,
    OpenedSession,
)
from txbroker.edge.sessions.connect_runner import ConnectRunner
from txbroker.edge.sessions.edge import Edge
from txbroker.edge.sessions.session_connect import SessionConnect
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.packets import Connect


class Patient:
    """A client that waits for its CONNACK, until its connection is closed."""

    def __init__(self) -> None:
        self.is_open = True

    def close(self, reason: str, code: int) -> None:
        self.is_open = False

    def drop_if_gone(self) -> None:
        """It stays."""

    def host(self) -> str:
        return ""


def connect(
    edge: Edge,
    packet: Connect,
    accept: Callable[[Session, bool], object],
    client: ConnectingClient | None = None,
) -> None:
    """Run a CONNECT; `accept` stands for CONNACK. Other nodes have nothing to say."""
    directory: Any = SimpleNamespace(
        clearings=SimpleNamespace(is_needed=lambda client_id: False),
        is_here=lambda client_id: True,
        members=SimpleNamespace(is_only=False),
    )
    runner = ConnectRunner(cast(Any, None), edge.session_store.when_durable, Clock())
    connects = SessionConnect(edge.clients, directory, runner)

    def walk() -> ConnectProcedure[None]:
        found = yield from connects.connect(packet, client or Patient())
        if isinstance(found, OpenedSession):
            accept(found.session, found.present)

    runner.run(walk())
