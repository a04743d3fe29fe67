"""
The steps of a CONNECT, as its procedure requests them from `ConnectRunner`, and its result.

A procedure is a generator: it yields steps, and resumes with the result of each. So one function
has all steps from CONNECT to CONNACK in their order. A test can run it, and lose messages and kill
nodes between any two steps.

`AwaitDurable` is the directory's own: wait until all changes so far are durable.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

import attrs

from txbroker.directory.effects import AwaitDurable, Procedure
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.reason_codes import ReasonCode

T = TypeVar("T")

TAKEN_OVER = "client id taken over"
"""The reason with which an earlier connection of a client is closed."""


class ConnectingClient(Protocol):
    """A client's connection from CONNECT to CONNACK; nothing is read from it meanwhile."""

    @property
    def is_open(self) -> bool:
        """True until either side ends the connection."""

    def close(self, reason: str, code: int) -> None:
        """Close the connection: another connection has the client id."""

    def drop_if_gone(self) -> bool:
        """Close the connection if its client has left; return True if it was closed."""

    def host(self) -> str:
        """Return the client's network, which takes its turns with other ones."""


@attrs.define(eq=False)
class OpenedSession:
    """
    The session of a CONNECT, found or made here; `client` waits for CONNACK.

    `present`: CONNACK reports session present [MQTT-3.2.2-2]. `is_durable`: True if CONNACK need
    not wait for the store.
    """

    session: Session
    present: bool
    is_durable: bool
    client: ConnectingClient


@attrs.frozen(kw_only=True)
class LookUp:
    """
    Run the directory's procedure that `make` returns, when it is the client's turn.

    Resume with its result, in the turn in which that procedure ends. A client that leaves before
    its turn has no further step: the runner closes the procedure.
    """

    make: Callable[[], Procedure[Any]]
    client: ConnectingClient
    is_clean: bool


@attrs.frozen(kw_only=True)
class Announce:
    """Run a procedure of the directory at once, and resume when it has ended."""

    procedure: Procedure[None]


ConnectStep = LookUp | AwaitDurable | Announce
ConnectProcedure = Generator[ConnectStep, Any, T]


def end_superseded(client: ConnectingClient, reason: str = TAKEN_OVER) -> None:
    """Close a connection that waits for CONNACK: another one has its client id."""
    if client.is_open:
        client.close(reason, ReasonCode.SESSION_TAKEN_OVER)
