"""SHELL: combines the poller and the real reactor into one reactor for Twisted's TCP classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IReactorFDSet, IReactorTCP
from twisted.internet.tcp import Connector
from zope.interface import directlyProvides, providedBy

from txbroker.runtime.sockets.poller import Poller
from txbroker.runtime.sockets.stream import DialedStream, StreamPort


class StreamReactor:
    """
    `IReactorTCP` and `IReactorFDSet` from the poller; all other attributes from the real reactor.

    Accepted connections use the poller directly. Attribute lookup is slow on an object with
    `__getattr__`: that was a tenth of a connection's cost.
    """

    def __init__(self, reactor: Any, poller: Poller) -> None:
        self.poller = poller
        self.sockets = poller.sockets
        self.buffer = poller.buffer
        self.buffers = poller.buffers
        self._reactor = reactor
        for name in IReactorFDSet:
            setattr(self, name, getattr(poller, name))
        directlyProvides(self, providedBy(reactor), IReactorFDSet, IReactorTCP)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)

    def listenTCP(
        self, port: int, factory: Any, backlog: int = 50, interface: str = ""
    ) -> StreamPort:
        """Listen as Twisted's reactor does; the poller watches the connections."""
        listening = StreamPort(port, factory, backlog, interface, self)
        listening.startListening()
        return listening

    def connectTCP(
        self, host: str, port: int, factory: Any, timeout: float = 30, bindAddress: Any = None
    ) -> Connector:
        """Dial as Twisted's reactor does; the poller watches the connection."""
        connector = _Connector(host, port, factory, timeout, bindAddress, self)
        connector.connect()
        return connector


class _Connector(Connector):
    """Dials with a `DialedStream`."""

    def _makeTransport(self) -> DialedStream:
        make: Callable[..., DialedStream] = DialedStream  # Twisted's class is untyped.
        return make(self.host, self.port, self.bindAddress, self, self.reactor)
