"""How many calls each host has under way: no host takes the places of all others."""

from __future__ import annotations


class Callers:
    """Calls by host, at most `most` of each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: dict[str, int] = {}

    def enter(self, peer: str) -> bool:
        """A call of this connection begins; False: its host has as many as it may have."""
        host = _host_of(peer)
        calls = self._calls.get(host, 0)
        if calls >= self._most:
            return False
        self._calls[host] = calls + 1
        return True

    def leave(self, peer: str) -> None:
        """A call that began has ended."""
        host = _host_of(peer)
        self._calls[host] -= 1
        if not self._calls[host]:
            del self._calls[host]


def _host_of(peer: str) -> str:
    """Without the port, which is another one for each connection."""
    return peer.rpartition(":")[0]
