"""One entry at a keeper: what the keeper knows of it, its form in the store, and verdicts on it."""

from __future__ import annotations

import enum

import attrs

from txbroker.directory.entry import DirectoryEntry, pack, testament_fields, testament_from, unpack


@attrs.define(slots=True, eq=False)
class EntryRecord:
    """
    `losers`: nodes to be told, each with whether it kept the session. `sync`: list it was in.
    `is_said`: by its node, in this life of the keeper.
    """

    entry: DirectoryEntry
    sync: int = 0
    is_said: bool = False
    ended: bool = False
    losers: dict[str, bool] = attrs.Factory(dict)
    stored: bool = False

    @property
    def is_lasting(self) -> bool:
        """True if the record must outlive the keeper's process."""
        return is_lasting(self.entry) or any(self.losers.values())

    def encode(self) -> bytes:
        """Encode the record for the table; `decode` is the inverse."""
        entry = self.entry
        directory_will = entry.testament
        fields = [
            entry.client_id,
            entry.node,
            entry.incarnation,
            entry.persistent,
            entry.replaces,
            self.ended,
            self.losers,
            testament_fields(directory_will),
        ]
        return pack(fields, b"" if directory_will is None else directory_will.will.payload)


def is_lasting(entry: DirectoryEntry) -> bool:
    """True if the entry is of a kept session, or has a will."""
    return entry.persistent or entry.testament is not None


def decode(value: bytes) -> EntryRecord:
    """Decode a record of the table."""
    fields, payload = unpack(value)
    client_id, node, incarnation, persistent, replaces, ended, losers, testament = fields
    entry = DirectoryEntry(
        client_id=client_id,
        node=node,
        incarnation=incarnation,
        persistent=persistent,
        replaces=replaces,
        testament=testament_from(testament, payload),
    )
    return EntryRecord(entry, ended=ended, losers=losers, stored=True)


class EntryTableFull(enum.Enum):
    """No room for another entry."""

    FULL = "full"


@attrs.frozen
class KnownAbove:
    """
    What is known counts above what was said. `has_ended`: nobody's session any more, and the
    speaker is none of its losers, so it may count itself above.
    """

    entry: DirectoryEntry
    has_ended: bool


Verdict = KnownAbove | EntryTableFull | None
"""None: the stored entry is in force."""
