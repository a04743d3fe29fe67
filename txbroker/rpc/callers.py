"""
Counts callers: the concurrent calls of each host, and the connections over which nodes have joined.

Without a limit for each host, one host would use the places of all others.
"""

from __future__ import annotations

from urllib.parse import unquote

from txbroker.model.network import network_of


class Callers:
    """Concurrent calls by host, at most `most` of each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: dict[str, int] = {}

    def enter(self, peer: str) -> bool:
        """Begin a call of this connection; return False if its host is at the limit."""
        host = _host_of(peer)
        calls = self._calls.get(host, 0)
        if calls >= self._most:
            return False
        self._calls[host] = calls + 1
        return True

    def end_call(self, peer: str) -> None:
        """End a call that has begun."""
        host = _host_of(peer)
        self._calls[host] -= 1
        if not self._calls[host]:
            del self._calls[host]


class JoinedConnections:
    """The connections over which nodes have joined; their calls wait for no stranger's."""

    def __init__(self) -> None:
        self._streams: dict[str, int] = {}

    def __contains__(self, peer: str) -> bool:
        return peer in self._streams

    def enter(self, peer: str) -> None:
        """Note a stream of this connection over which a node has joined."""
        self._streams[peer] = self._streams.get(peer, 0) + 1

    def leave(self, peer: str) -> None:
        """Note the end of such a stream."""
        self._streams[peer] -= 1
        if not self._streams[peer]:
            del self._streams[peer]


def _host_of(peer: str) -> str:
    """
    Return the network without the port, which differs for each connection.

    The address is behind the name of a connection that comes by a `ControlPort`.
    """
    address = unquote(peer).rpartition("/")[2]
    family, _, host = address.rpartition(":")[0].partition(":")
    return f"{family}:{network_of(host.strip('[]'))}"
