"""One keeper of entries, as a node has to do with it that has sessions in its share."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.requests import Register

PENDING = 10_000
"""Ids with news for one keeper; beyond that it gets the complete list."""

FIRST_PAUSE = 0.1
"""Seconds before the second attempt; doubled with each."""


@attrs.define(slots=True, eq=False)
class ReplicaPeer:
    """
    What the keeper `name` was told, and is to be told. `listing` is what is left of a complete
    list, `ready` and `relayed` what has been found of it and was not sent.

    `pending` are ids with news, each with the generation up to which its sessions have ended, for
    the case that there is none now. `relays` are ids kept here that the peer keeps, too, since the
    members changed; `change` is the number of that change, until all that follows has been said.
    `silence` is the version of what the peer knows of silent members.
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
    has_entries: bool = False
    pending: dict[str, int] = attrs.Factory(dict)
    relays: dict[str, None] = attrs.Factory(dict)
    change: int = 0
    silence: int = 0
    in_flight: Register | None = None
    again: Register | None = None
    said: tuple[int, int] = (0, 0)
    pause: float = FIRST_PAUSE
    due: float = 0.0
    answered: float = 0.0
    failures: int = 0

    def has_heard(self, client_id: str) -> bool:
        """True if nothing of the id is on its way, or waits for it."""
        batch = self.in_flight
        is_coming = batch is not None and any(e.client_id == client_id for e in batch.entries)
        return self.is_listed and client_id not in self.pending and not is_coming

    def start_over(self) -> None:
        """The complete list is due."""
        self.is_listed = False
        self.sync = self.change = 0
        self.listing = self.relaying = self.again = None
        self.pending.clear()
        self.relays.clear()
        self.ready.clear()
        self.relayed.clear()

    def put_back(self, batch: Register) -> None:
        """The keeper may not have got that: what was in it is news again."""
        if not self.is_listed:
            self.again = batch
            return
        again = {entry.client_id: entry.past for entry in batch.entries}
        again |= {ended.client_id: ended.generation for ended in batch.ended}
        self.pending = again | self.pending
        self.relays = {entry.client_id: None for entry in batch.relayed} | self.relays
        if len(self.pending) + len(self.relays) > PENDING:
            self.start_over()
