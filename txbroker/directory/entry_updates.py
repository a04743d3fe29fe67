"""
The next batch for one keeper: a part of a complete list, or changes.

A list is built in slices. In a large site one keeper has few of the ids here. So one part of its
list needs many ids examined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import attrs

from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.entry_placement import EntryPlacement
from txbroker.directory.entry_table import EntryTable
from txbroker.directory.members import Members
from txbroker.directory.replica_peer import ReplicaPeer
from txbroker.directory.requests import Ended, Register
from txbroker.directory.silent_members import SilentMembers

BATCH = 500
"""Entries in one call."""

OWN = 5_000
RELAYED = 200
"""Ids that one slice examines; keepers are cached for own ids only."""


@attrs.frozen(kw_only=True)
class EntrySources:
    """
    The sources of a batch: `entry` of an id, `ids` of all sessions, `kept` as in `EntryReplicator`.

    `is_moving`: returns True if not all ids have been examined since the members changed.
    """

    entry: Callable[[str], DirectoryEntry | None]
    ids: Callable[[], list[str]]
    kept: Callable[[], Iterable[str]]
    is_moving: Callable[[], bool]


class EntryUpdates:
    """The batches of one node; `is_unfinished`: a slice ended before its batch was ready."""

    def __init__(
        self,
        members: Members,
        entries: EntryTable,
        placement: EntryPlacement,
        silence: SilentMembers,
        life: int,
        sources: EntrySources,
    ) -> None:
        self.is_unfinished = False
        self._members = members
        self._entries = entries
        self._placement = placement
        self._silence = silence
        self._life = life
        self._sources = sources
        self._count = life << 32

    def next_number(self) -> int:
        """Return the number of a new list or batch, greater than all before."""
        self._count += 1
        return self._count

    def part(self, peer: ReplicaPeer) -> Register | None:
        """Return the next part of a complete list; None: further slices must find it first."""
        if peer.again is not None:
            again, peer.again = peer.again, None
            return attrs.evolve(
                again,
                view=self._members.view,
                silent=self._silence.silent,
                number=self.next_number(),
            )
        if not peer.sync:
            # The content of the list is fixed after the keeper knows of the list. Otherwise the
            # list would end entries that other members send the keeper later.
            peer.sync = self.next_number()
            return self._register(peer, first=True)
        kept: tuple[str, ...] = ()
        if peer.listing is None:
            peer.listing = iter(self._sources.ids())
            kept = tuple(c for c in self._sources.kept() if self._is_kept_by(peer, c))
        is_all = self._find(peer)
        if not (is_all or kept or BATCH in (len(peer.ready), len(peer.relayed))):
            self.is_unfinished = True
            return None
        entries, peer.ready = tuple(peer.ready), []
        relayed, peer.relayed = tuple(peer.relayed), []
        return self._register(peer, entries=entries, relayed=relayed, kept=kept, last=is_all)

    def news(self, peer: ReplicaPeer) -> Register | None:
        """
        Return the unsent changes, or a sign of life; None: further slices must find them first.
        """
        entries, ended, relayed = [], [], []
        peer.told = {}
        for client_id in list(islice(peer.pending, BATCH)):
            generation = peer.told[client_id] = peer.pending.pop(client_id)
            entry = self._sources.entry(client_id)
            if entry is None:
                ended.append(Ended(client_id=client_id, generation=generation))
            elif self._is_kept_by(peer, client_id):
                entries.append(entry)
            # Other members are keepers now, and the earlier keeper must end its entry. Of a session
            # that moved since, that keeper knows an older generation.
            else:
                is_here = entry.node == self._members.name
                last = entry.generation if is_here else generation
                ended.append(Ended(client_id=client_id, generation=last))
        if not peer.wants_relays:
            peer.relays.clear()
        for client_id in list(islice(peer.relays, BATCH)):
            del peer.relays[client_id]
            entry = self._entries.get(client_id)
            if entry is not None and self._is_to_be_relayed(peer, entry):
                relayed.append(entry)
        is_all = not (peer.pending or peer.relays or self._sources.is_moving())
        if peer.change and not (is_all or entries or ended or relayed):
            return None
        return self._register(
            peer,
            entries=tuple(entries),
            ended=tuple(ended),
            relayed=tuple(relayed),
            catching_up=peer.change > 0,
            last=peer.change > 0 and is_all,
        )

    # internal

    def _find(self, peer: ReplicaPeer) -> bool:
        """Find more entries of a list, at most a batch; return True if the list is complete."""
        assert peer.listing is not None
        for _ in range(OWN):
            client_id = next(peer.listing, None)
            if client_id is None:
                return self._find_relays(peer)
            entry = self._sources.entry(client_id) if self._is_kept_by(peer, client_id) else None
            if entry is not None:
                peer.ready.append(entry)
                if len(peer.ready) == BATCH:
                    break
        return False

    def _find_relays(self, peer: ReplicaPeer) -> bool:
        if not peer.wants_relays:
            return True
        if peer.relaying is None:
            peer.relaying = self._entries.durable()
        for _ in range(RELAYED):
            entry = next(peer.relaying, None)
            if entry is None:
                return True
            is_due = self._is_to_be_relayed(peer, entry)
            if is_due and self._members.places.is_among(peer.name, entry.client_id):
                peer.relayed.append(entry)
                if len(peer.relayed) == BATCH:
                    break
        return False

    def _is_to_be_relayed(self, peer: ReplicaPeer, entry: DirectoryEntry) -> bool:
        """
        True if the entry's holder is neither the peer nor this node, which send their own entries.
        """
        return entry.node not in (peer.name, self._members.name)

    def _is_kept_by(self, peer: ReplicaPeer, client_id: str) -> bool:
        return peer.name in self._placement.keepers(client_id)

    def _register(self, peer: ReplicaPeer, **what: Any) -> Register:
        return Register(
            view=self._members.view,
            established=self._members.was_settled,
            life=self._life,
            keeper_life=peer.life,
            number=self.next_number(),
            sync=0 if peer.is_listed else peer.sync,
            silent=self._silence.silent,
            **what,
        )
