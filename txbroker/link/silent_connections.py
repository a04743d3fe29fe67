"""Connections to the link port without Hello; their number is limited, fairly by address."""

from __future__ import annotations

from typing import Protocol

MOST_SILENT = 256
"""The most connections without Hello; an honest edge sends its Hello at once."""


class SilentConnection(Protocol):
    """A connection without Hello."""

    peer: str

    def drop(self, reason: str) -> None:
        """Close the connection at once."""


class SilentConnections:
    """
    The connections without Hello, by address.

    At the limit, the address with the most of them loses its oldest connection.
    """

    def __init__(self) -> None:
        self._hosts: dict[SilentConnection, str] = {}
        self._of: dict[str, dict[SilentConnection, None]] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    def add(self, connection: SilentConnection, host: str) -> SilentConnection | None:
        """
        Add a connection from an address; return the connection that must be dropped for it, if any.
        """
        self._hosts[connection] = host
        self._of.setdefault(host, {})[connection] = None
        if len(self._hosts) <= MOST_SILENT:
            return None
        fullest = max(self._of, key=lambda known: len(self._of[known]))
        oldest = next(iter(self._of[fullest]))
        self.remove(oldest)
        return oldest

    def remove(self, connection: SilentConnection) -> None:
        """Remove a connection that has sent its Hello or is closed."""
        host = self._hosts.pop(connection, None)
        if host is not None:
            known = self._of[host]
            del known[connection]
            if not known:
                del self._of[host]
