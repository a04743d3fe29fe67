"""
What this node has to say to the keepers of its clients' entries, until they know it.

For each other member there is a list of ids that have news for it (bounded), sent in batches, one
at a time, and tried again for ever. Where the news cannot be told one by one any more (the keeper
began a new life, the members changed, too much piled up) the complete list is sent instead.

Where this node is a keeper itself, its entries are written at once, without a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import attrs

from txbroker.directory.entries import Above, Entries
from txbroker.directory.entry import Entry
from txbroker.directory.members import Members
from txbroker.directory.rendezvous import majority
from txbroker.directory.requests import Ended, Register, Registered

BATCH = 500
"""Entries in one call."""

RECHECK = 20.0
"""Seconds after which what changed is told once more."""

PENDING = 10_000
"""Ids with news for one keeper; beyond that it gets the complete list."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 1.0
"""Seconds between attempts, doubled from the first on."""


@attrs.define(slots=True, eq=False)
class _Peer:
    """
    One keeper, as this node has to do with it. `listing` is what is left of a complete list.

    `pending` are ids with news, each with the generation up to which its sessions have ended, for
    the case that there is none now.
    """

    name: str
    life: int = 0
    is_listed: bool = False
    sync: int = 0
    listing: Iterator[str] | None = None
    relaying: Iterator[Entry] | None = None
    wants_relays: bool = False
    has_entries: bool = False
    pending: dict[str, int] = attrs.Factory(dict)
    in_flight: Register | None = None
    pause: float = FIRST_PAUSE
    due: float = 0.0
    failures: int = 0

    def has_heard(self, client_id: str) -> bool:
        """Whether nothing of the id is on its way, or waits for it."""
        batch = self.in_flight
        is_coming = batch is not None and any(e.client_id == client_id for e in batch.entries)
        return self.is_listed and client_id not in self.pending and not is_coming

    def start_over(self) -> None:
        """The complete list is due."""
        self.is_listed = False
        self.sync = 0
        self.listing = self.relaying = None
        self.pending.clear()


class Registrar:
    """
    The registrations of one node in the life `life` of its process; `entries` are kept here.

    `own` are the sessions here; `gone` those that were given away, registered for their new holder
    until a majority of the keepers knows (`on_known` is called with the id). `on_conflict` gets an
    entry kept here that counts above one of `own`, and whether it has ended; `kept` gives ids that
    must not be dropped although nothing is registered; `wake` is called when there is something to
    send; `every` is the `pulse`.
    """

    def __init__(
        self,
        members: Members,
        entries: Entries,
        life: int,
        *,
        on_conflict: Callable[[Entry, bool], object],
        kept: Callable[[], Iterable[str]],
        on_known: Callable[[str], None],
        wake: Callable[[], object],
        every: float,
        now: Callable[[], float],
    ) -> None:
        self.own: dict[str, Entry] = {}
        self.gone: dict[str, Entry] = {}
        self._known: dict[str, set[str]] = {}
        self._told: dict[str, float] = {}
        self._now = now
        self._members = members
        self._life = life
        self._kept = kept
        self._entries = entries
        self._on_conflict = on_conflict
        self._on_known = on_known
        self._wake = wake
        self._every = every
        self._lists = life << 32
        self._view = members.view
        self._peers: dict[str, _Peer] = {}
        members.when_changed(self._on_members)
        self._on_members()

    # from the directory

    def start(self) -> None:
        """After a start, when `own` and `gone` are set: what is kept here is made to agree."""
        self._lists += 1
        me = self._members.name
        for entry in [*self.gone.values(), *self.own.values()]:
            self._put_here(entry)
            self._entries.renew(entry.client_id, me, self._lists)
        for client_id in self._kept():
            self._entries.renew(client_id, me, self._lists)
        self._entries.end_unlisted(me, self._lists)

    def set(self, entry: Entry) -> None:
        """This is so from now on."""
        self.own[entry.client_id] = entry
        self._told.pop(entry.client_id, None)
        self._told[entry.client_id] = self._now()
        self._tell(entry.client_id)

    def recheck(self) -> None:
        """Now and then: tell again what changed; the answers say what counts above it."""
        until = self._now() - RECHECK
        for client_id, told in list(islice(self._told.items(), BATCH)):
            if told > until:
                return
            del self._told[client_id]
            if client_id in self.own and not self._members.is_alone:
                self._tell(client_id)

    def drop(self, client_id: str) -> None:
        """No session of that id is here any more."""
        self._told.pop(client_id, None)
        own = self.own.pop(client_id, None)
        if own is not None:
            self._tell(client_id, own.generation)

    def withdraw(self, client_id: str, generation: int) -> None:
        """A claim up to this generation came to nothing."""
        self._tell(client_id, generation)

    def give_away(self, entry: Entry) -> None:
        """The session is at `entry.node` now."""
        self.own.pop(entry.client_id, None)
        self._told.pop(entry.client_id, None)
        self.gone[entry.client_id] = entry
        self._known[entry.client_id] = set()
        self._tell(entry.client_id)

    def forget(self, client_id: str) -> None:
        """What was given away needs no more words."""
        self.gone.pop(client_id, None)
        self._known.pop(client_id, None)

    def tell_again(self, client_id: str) -> None:
        """A keeper believes something else."""
        self._tell(client_id)

    def knows(self, client_id: str, keeper: str) -> None:
        """This keeper has heard of what was given away."""
        known = self._known.get(client_id)
        if known is None:
            return
        keepers = self._members.keepers(client_id)
        known.add(keeper)
        if len(known.intersection(keepers)) >= majority(len(keepers)):
            del self._known[client_id]
            self._on_known(client_id)

    def is_known(self, client_id: str) -> bool:
        """Whether a majority of the keepers has heard where a session went."""
        return client_id not in self._known

    def is_told(self, client_id: str) -> bool:
        """Whether all its keepers have heard all there is to say of this id."""
        return self._heard(client_id) == len(self._members.keepers(client_id))

    def is_told_to_most(self, client_id: str) -> bool:
        """Whether a majority of its keepers has."""
        return self._heard(client_id) >= majority(len(self._members.keepers(client_id)))

    def is_deaf(self, client_id: str) -> bool:
        """Whether most of its keepers do not answer."""
        keepers = self._members.keepers(client_id)
        peers = [self._peers.get(name) for name in keepers]
        silent = sum(peer is not None and peer.failures > 0 for peer in peers)
        return len(keepers) - silent < majority(len(keepers))

    def is_cut_off(self, client_id: str) -> bool:
        """Whether some keeper of the id does not answer, or has not heard all that is here."""
        peers = [self._peers.get(name) for name in self._members.keepers(client_id)]
        return any(peer is not None and (peer.failures or not peer.is_listed) for peer in peers)

    @property
    def is_settled(self) -> bool:
        """Whether every keeper has heard all there is to say, but for those that do not answer."""
        return all(
            peer.failures or (peer.is_listed and not peer.pending and peer.in_flight is None)
            for peer in self._peers.values()
        )

    # from the shell that calls the keepers

    def met(self, name: str, life: int) -> None:
        """That member spoke, in that life of its process."""
        peer = self._peers.get(name)
        if peer is None or peer.life == life:
            return
        if peer.life:
            peer.start_over()
            peer.due = 0.0
        peer.life = life

    def batch(self, name: str, now: float) -> Register | None:
        """What is to be said to this keeper now; the outcome is told by one of the next two."""
        peer = self._peers.get(name)
        if peer is None or peer.in_flight is not None or now < peer.due:
            return None
        if not peer.is_listed:
            batch = self._list_part(peer)
        elif peer.pending or peer.has_entries:
            batch = self._news(peer)
        else:
            return None
        peer.in_flight = batch
        return batch

    def answered(self, name: str, batch: Register, reply: Registered, now: float) -> None:
        """The keeper took the batch, or began a new life."""
        peer = self._peers.get(name)
        if peer is None or peer.in_flight is not batch:
            return
        peer.in_flight = None
        peer.pause, peer.failures = FIRST_PAUSE, 0
        if reply.restart or (peer.life != reply.life and not batch.first):
            peer.start_over()
            peer.life = reply.life
            peer.due = now
            return
        peer.life = reply.life
        peer.wants_relays = not reply.settled
        if batch.last and batch.sync == peer.sync:  # not started over meanwhile
            peer.is_listed = True
            peer.listing = peer.relaying = None
        peer.has_entries = peer.has_entries or bool(batch.entries)
        for client_id in reply.full:
            peer.pending.setdefault(client_id, 0)
        is_busy = not peer.is_listed or (peer.pending and not reply.full)
        peer.due = now if is_busy else now + self._every
        for entry in batch.entries:
            if entry.client_id not in reply.full:
                self.knows(entry.client_id, name)

    def failed(self, name: str, batch: Register, now: float) -> None:
        """
        No answer, or the keeper sees other members; it may have taken the batch or not, and saying
        it twice does no harm.
        """
        peer = self._peers.get(name)
        if peer is None or peer.in_flight is not batch:
            return
        peer.in_flight = None
        peer.failures += 1
        peer.due = now + peer.pause
        peer.pause = min(peer.pause * 2, LONGEST_PAUSE)
        if not peer.is_listed:
            peer.start_over()
            return
        again = {entry.client_id: 0 for entry in batch.entries}
        again |= {ended.client_id: ended.generation for ended in batch.ended}
        peer.pending = again | peer.pending
        if len(peer.pending) > PENDING:
            peer.start_over()

    # internal

    def _heard(self, client_id: str) -> int:
        peers = [self._peers.get(name) for name in self._members.keepers(client_id)]
        return sum(peer is None or peer.has_heard(client_id) for peer in peers)

    def _tell(self, client_id: str, generation: int = 0) -> None:
        for name in self._members.keepers(client_id):
            peer = self._peers.get(name)
            if peer is None:
                self._tell_here(client_id, generation)
                continue
            if not peer.is_listed and peer.listing is None:
                continue  # the list will have it
            peer.pending[client_id] = max(generation, peer.pending.get(client_id, 0))
            if not peer.failures:
                peer.due = 0.0
                self._wake()
            if len(peer.pending) > PENDING:
                peer.start_over()

    def _tell_here(self, client_id: str, generation: int) -> None:
        entry = self._entry_for(client_id)
        if entry is None:
            self._entries.end(client_id, self._members.name, generation)
        else:
            self._put_here(entry)

    def _put_here(self, entry: Entry) -> None:
        if self._members.is_alone and not (entry.persistent or entry.testament):
            return  # a connection here is of no concern to anybody else, yet
        name = self._members.name
        if name not in self._members.keepers(entry.client_id):
            return
        verdict = self._entries.put(entry, is_hearsay=entry.node != name)
        self.knows(entry.client_id, name)
        if isinstance(verdict, Above):
            self._on_conflict(verdict.entry, verdict.has_ended)

    def _on_members(self) -> None:
        names = self._members.peers()
        if self._view == self._members.view and self._peers.keys() == set(names):
            return
        self._view = self._members.view
        peers = {name: self._peers.get(name) or _Peer(name) for name in names}
        self._peers = peers
        for peer in peers.values():
            # A list counts under the view in which all of it was sent.
            peer.start_over()
            peer.due = 0.0
            peer.in_flight = None
        self._wake()
        for entry in [*self.gone.values(), *self.own.values()]:
            self._put_here(entry)

    def _entry_for(self, client_id: str) -> Entry | None:
        return self.own.get(client_id) or self.gone.get(client_id)

    def _news(self, peer: _Peer) -> Register:
        entries, ended = [], []
        for client_id in list(islice(peer.pending, BATCH)):
            generation = peer.pending.pop(client_id)
            entry = self._entry_for(client_id)
            if entry is None:
                ended.append(Ended(client_id=client_id, generation=generation))
            else:
                entries.append(entry)
        return self._register(peer, entries=tuple(entries), ended=tuple(ended))

    def _list_part(self, peer: _Peer) -> Register:
        if not peer.sync:
            # What is in the list is decided after the keeper knows that one is coming: whatever
            # others tell it later does not end with the list.
            self._lists += 1
            peer.sync = self._lists
            peer.has_entries = False
            return self._register(peer, first=True)
        if peer.listing is None:
            peer.listing = iter([*self.own, *(c for c in self.gone if c not in self.own)])
            return self._register(peer, kept=tuple(self._mine(peer, self._kept())))
        entries = []
        for client_id in self._mine(peer, peer.listing):
            entry = self._entry_for(client_id)
            if entry is not None:
                entries.append(entry)
            if len(entries) == BATCH:
                break
        if entries:
            return self._register(peer, entries=tuple(entries))
        relayed = self._relay_part(peer)
        if relayed:
            return self._register(peer, relayed=relayed)
        return self._register(peer, last=True)

    def _relay_part(self, peer: _Peer) -> tuple[Entry, ...]:
        if not peer.wants_relays:
            return ()
        if peer.relaying is None:
            peer.relaying = self._entries.durable()
        relayed = []
        for entry in peer.relaying:
            is_heard_of = entry.node in (peer.name, self._members.name)
            if not is_heard_of and peer.name in self._members.keepers(entry.client_id):
                relayed.append(entry)
                if len(relayed) == BATCH:
                    break
        return tuple(relayed)

    def _mine(self, peer: _Peer, client_ids: Iterable[str]) -> Iterator[str]:
        return (c for c in client_ids if peer.name in self._members.keepers(c))

    def _register(
        self,
        peer: _Peer,
        *,
        first: bool = False,
        last: bool = False,
        entries: tuple[Entry, ...] = (),
        ended: tuple[Ended, ...] = (),
        kept: tuple[str, ...] = (),
        relayed: tuple[Entry, ...] = (),
    ) -> Register:
        return Register(
            view=self._members.view,
            established=self._members.was_settled,
            life=self._life,
            keeper_life=peer.life,
            sync=0 if peer.is_listed else peer.sync,
            first=first,
            last=last,
            entries=entries,
            ended=ended,
            kept=kept,
            relayed=relayed,
        )
