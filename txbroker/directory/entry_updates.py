"""
What is said to one keeper at a time: parts of a complete list, or news.

A list is found in slices: in a large site few of the ids here are the keeper's, and many have to be
looked at for a part of it.
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
"""Ids that are looked at in one slice; where they are kept is remembered only of one's own."""


@attrs.frozen(kw_only=True)
class EntrySources:
    """
    What there is to say: `entry` of an id, `ids` of all sessions; `kept` as in `EntryReplicator`.

    `is_moving`: not all ids have been looked at since the members changed.
    """

    entry: Callable[[str], DirectoryEntry | None]
    ids: Callable[[], list[str]]
    kept: Callable[[], Iterable[str]]
    is_moving: Callable[[], bool]


class EntryUpdates:
    """`is_unfinished`: something is being found that is not ready to be sent."""

    def __init__(
        self,
        members: Members,
        entries: EntryTable,
        placement: EntryPlacement,
        absence: SilentMembers,
        life: int,
        sources: EntrySources,
    ) -> None:
        self.is_unfinished = False
        self._members = members
        self._entries = entries
        self._placement = placement
        self._absence = absence
        self._life = life
        self._sources = sources
        self._count = life << 32

    def next_number(self) -> int:
        """Of a new list; greater than all before."""
        self._count += 1
        return self._count

    def part(self, peer: ReplicaPeer) -> Register | None:
        """The next part of a complete list; None where it has to be found first."""
        if peer.again is not None:
            again, peer.again = peer.again, None
            return attrs.evolve(again, view=self._members.view, silent=self._absence.silent)
        if not peer.sync:
            # What is in the list is decided after the keeper knows that one is coming: whatever
            # others tell it later does not end with the list.
            peer.sync = self.next_number()
            peer.has_entries = False
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
        """What it does not know yet, or a sign of life; None where it has to be found first."""
        entries, ended, relayed = [], [], []
        for client_id in list(islice(peer.pending, BATCH)):
            generation = peer.pending.pop(client_id)
            entry = self._sources.entry(client_id)
            if entry is None:
                ended.append(Ended(client_id=client_id, generation=generation))
            elif self._is_kept_by(peer, client_id):
                entries.append(entry)
            else:  # others keep it now; of one that has left since, it had what was told before
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
        """Find more of a list, up to a batch; whether that is all."""
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
        """False for what that peer, or this node, says itself."""
        return entry.node not in (peer.name, self._members.name)

    def _is_kept_by(self, peer: ReplicaPeer, client_id: str) -> bool:
        return peer.name in self._placement.keepers(client_id)

    def _register(self, peer: ReplicaPeer, **what: Any) -> Register:
        return Register(
            view=self._members.view,
            established=self._members.was_settled,
            life=self._life,
            keeper_life=peer.life,
            sync=0 if peer.is_listed else peer.sync,
            silent=self._absence.silent,
            **what,
        )
