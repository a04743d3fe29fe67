"""A keeper, as seen by a node that has sessions in the keeper's share."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.reachability import ATTEMPTS
from txbroker.directory.requests import Register

PENDING = 10_000
"""Upper bound of pending ids for one keeper; beyond it the keeper gets the complete list."""

FIRST_PAUSE = 0.1
"""Seconds before the second attempt; each further attempt doubles the pause."""

LONGEST_PAUSE = 1.0
"""
Seconds between attempts; more in a site so large that these would exceed `ATTEMPTS`.

Fifty nodes whose machine was busy for a moment sent one another a thousand calls a second. All of
them came too late, and were sent again.
"""


@attrs.define(slots=True, eq=False)
class ReplicaPeer:
    """
    The sent and the pending changes of the keeper `name`.

    - `listing`: the rest of a complete list; `ready` and `relayed`: its found and unsent entries.
    - `pending`: ids with changes, each with the generation up to which its sessions have ended. The
      generation is sent if the id has no session now.
    - `relays`: ids in this node's replica of which the peer became a keeper when the members
      changed.
    - `change`: the number of that change, until all its consequences have been sent; 0: none.
    - `heard`: when the peer sent a message last.
    - `silence`: the version of the silent members that the peer knows.
    - `told`: the generations that were pending for the ids of the batch in flight.
    """

    name: str
    life: int = 0
    is_listed: bool = False
    sync: int = 0
    listing: Iterator[str] | None = None
    relaying: Iterator[DirectoryEntry] | None = None
    ready: list[DirectoryEntry] = attrs.Factory(list)
    relayed: list[DirectoryEntry] = attrs.Factory(list)
    wants_relays: bool = False
    pending: dict[str, int] = attrs.Factory(dict)
    relays: dict[str, None] = attrs.Factory(dict)
    change: int = 0
    silence: int = 0
    in_flight: Register | None = None
    told: dict[str, int] = attrs.Factory(dict)
    again: Register | None = None
    said: tuple[int, int] = (0, 0)
    pause: float = FIRST_PAUSE
    due: float = 0.0
    answered: float = 0.0
    heard: float = 0.0
    failures: int = 0

    def has_heard(self, client_id: str) -> bool:
        """True if the keeper knows the whole state of the id."""
        batch = self.in_flight
        is_coming = batch is not None and any(e.client_id == client_id for e in batch.entries)
        return self.is_listed and client_id not in self.pending and not is_coming

    def ending(self, client_id: str) -> int:
        """Return the generation up to which the keeper is being told of ends of the id; 0: none."""
        return max(self.pending.get(client_id, 0), self.told.get(client_id, 0))

    def put_off(self, now: float, members: int) -> None:
        """Note a failed attempt in a site of that many other members: the next one is due later."""
        self.failures += 1
        self.due = now + self.pause
        self.pause = min(self.pause * 2, max(LONGEST_PAUSE, members**2 / ATTEMPTS))

    def start_over(self) -> None:
        """Make the complete list due."""
        self.is_listed = False
        self.sync = self.change = 0
        self.listing = self.relaying = self.again = None
        self.pending.clear()
        self.relays.clear()
        self.ready.clear()
        self.relayed.clear()

    def requeue(self, batch: Register) -> None:
        """Make the content of a batch pending again: the keeper may not have received it."""
        if not self.is_listed:
            self.again = batch
            return
        again = self.told | {ended.client_id: ended.generation for ended in batch.ended}
        for entry in batch.entries:
            again[entry.client_id] = max(entry.past, again.get(entry.client_id, 0))
        # A change of a lower generation would hide the end of a later session from the keeper.
        self.pending = again | {c: max(g, again.get(c, 0)) for c, g in self.pending.items()}
        self.relays = {entry.client_id: None for entry in batch.relayed} | self.relays
        if len(self.pending) + len(self.relays) > PENDING:
            self.start_over()
