"""SHELL: the poller and the real reactor, as one reactor to Twisted's TCP classes and endpoints."""

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
    `IReactorTCP` and `IReactorFDSet` of the poller, and for everything else the real reactor.

    What accepted connections do passes it by: an object that has `__getattr__` finds each of its
    attributes in a slow way, which was a tenth of what a connection takes.
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
        """As Twisted's; the connections are watched here."""
        listening = StreamPort(port, factory, backlog, interface, self)
        listening.startListening()
        return listening

    def connectTCP(
        self, host: str, port: int, factory: Any, timeout: float = 30, bindAddress: Any = None
    ) -> Connector:
        """As Twisted's; the connection is watched here."""
        connector = _Connector(host, port, factory, timeout, bindAddress, self)
        connector.connect()
        return connector


class _Connector(Connector):
    """Dials with our transport."""

    def _makeTransport(self) -> DialedStream:
        make: Callable[..., DialedStream] = DialedStream  # Twisted's is not typed
        return make(self.host, self.port, self.bindAddress, self, self.reactor)
