"""
Relays after a member left: entries of this replica that the new keepers need.

A session whose holder is away has no other node that could send its entry to the new keepers. The
relays examine all entries, in slices, for all keepers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.entry_table import EntryTable
from txbroker.directory.members import Members


class EntryRelays:
    """The relays of one node; `relay` gets a keeper, and an id of which the keeper is new."""

    def __init__(
        self, members: Members, entries: EntryTable, relay: Callable[[str, str], None]
    ) -> None:
        self._members = members
        self._entries = entries
        self._relay = relay
        self._left: frozenset[str] = frozenset()
        self._scan: Iterator[DirectoryEntry] | None = None

    @property
    def is_behind(self) -> bool:
        """True if entries remain that were not examined since a member left."""
        return self._scan is not None

    def start(self, left: frozenset[str]) -> None:
        """Begin to examine all entries, since these members left."""
        self._left = left | self._left if self.is_behind else left
        self._scan = self._entries.durable()

    def advance(self, count: int) -> None:
        """Examine at most `count` entries."""
        for _ in range(count if self._scan is not None else 0):
            assert self._scan is not None
            entry = next(self._scan, None)
            if entry is None:
                self._scan = None
                return
            self._examine(entry.client_id)

    def _examine(self, client_id: str) -> None:
        places = self._members.places
        if any(places.is_among(name, client_id) for name in self._left):
            now = places.keepers(client_id)
            before = places.best(client_id, (*now, *self._left))
            for name in now:
                if name not in before:
                    self._relay(name, client_id)
