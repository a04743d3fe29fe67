"""Connections to the link port that have not said Hello: few at a time, of each address."""

from __future__ import annotations

from typing import Protocol

MOST_SILENT = 256
"""Connections without Hello; an edge says Hello at once."""


class SilentConnection(Protocol):
    """Such a connection."""

    peer: str

    def drop(self, reason: str) -> None:
        """Close at once."""


class SilentConnections:
    """The oldest of the address that has most of them makes room for the next."""

    def __init__(self) -> None:
        self._hosts: dict[SilentConnection, str] = {}
        self._of: dict[str, dict[SilentConnection, None]] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    def add(self, connection: SilentConnection, host: str) -> SilentConnection | None:
        """One has come from that address; the one that has to go for it."""
        self._hosts[connection] = host
        self._of.setdefault(host, {})[connection] = None
        if len(self._hosts) <= MOST_SILENT:
            return None
        fullest = max(self._of, key=lambda known: len(self._of[known]))
        oldest = next(iter(self._of[fullest]))
        self.remove(oldest)
        return oldest

    def remove(self, connection: SilentConnection) -> None:
        """It has said Hello, or is gone."""
        host = self._hosts.pop(connection, None)
        if host is not None:
            known = self._of[host]
            del known[connection]
            if not known:
                del self._of[host]
