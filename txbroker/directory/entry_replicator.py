"""
What this node has to say to the keepers of its clients' entries, until they know it.

For each other member there is a list of ids that have news for it (bounded), sent in batches, one
at a time, and tried again for ever. Where the news cannot be told one by one (the keeper is new, or
began a new life, or too much piled up) the complete list is sent instead. When the members change,
only ids whose keepers are others now are news, to those that they have and to those that they had.

Where this node is a keeper itself, its entries are written at once, without a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.entry_placement import EntryPlacement
from txbroker.directory.entry_relays import EntryRelays
from txbroker.directory.entry_table import EntryTable, KnownAbove
from txbroker.directory.entry_updates import BATCH, EntrySources, EntryUpdates
from txbroker.directory.members import Members
from txbroker.directory.rendezvous_hash import majority
from txbroker.directory.replica_peer import FIRST_PAUSE, PENDING, ReplicaPeer
from txbroker.directory.requests import Register, Registered
from txbroker.directory.silent_members import SilentMembers

RECHECK = 20.0
"""Seconds after which what changed is told once more."""

SLICE = 200
"""Ids that are looked at in one turn after a change of the members."""

GRACE = 3.0
"""Seconds for which a keeper that was to be spoken to may be late."""

LISTS = 4
"""Keepers that are sent complete lists at a time; the others come after."""

CALM = 0.02
LONGEST_CALM = 10.0
"""
Seconds without another newcomer, for each member, before newcomers are sent lists; at the longest.

Where fifty nodes start at once, lists between all of them would keep them from joining.
"""

LONGEST_PAUSE = 1.0
"""Seconds between attempts; longer where a site is so large that these were more than..."""

ATTEMPTS = 20
"""...so many a second, with all others away."""


class EntryReplicator:
    """
    The registrations of one node in the life `life` of its process; `entries` are kept here.

    `own` are the sessions here; `gone` those that were given away, registered for their new holder
    until a majority of the keepers knows (`on_known` is called with the id). `on_conflict` gets an
    entry kept here that counts above one of `own`, and whether it has ended; `kept` gives ids that
    must not be dropped although nothing is registered; `wake` is called when there is something to
    send; `every` is the `pulse`. Newcomers are sent nothing before the second `calm`.
    """

    def __init__(
        self,
        members: Members,
        entries: EntryTable,
        life: int,
        *,
        absence: SilentMembers,
        on_conflict: Callable[[DirectoryEntry, bool], object],
        kept: Callable[[], Iterable[str]],
        on_known: Callable[[str], None],
        wake: Callable[[], object],
        every: float,
        now: Callable[[], float],
    ) -> None:
        self.own: dict[str, DirectoryEntry] = {}
        self.gone: dict[str, DirectoryEntry] = {}
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
        self._storm = self.calm = 0.0
        self._changes = 0
        self._has_entries = False
        self._on_list: set[str] = set()
        self._absence = absence
        self._placement = EntryPlacement(members, lambda: [*self.own, *self.gone], self._on_moved)
        self._relays = EntryRelays(members, entries, self._relay)
        sources = EntrySources(
            entry=self._entry_for,
            ids=lambda: [*self.own, *(c for c in self.gone if c not in self.own)],
            kept=kept,
            is_moving=lambda: self.is_moving,
        )
        self._lists = EntryUpdates(members, entries, self._placement, absence, life, sources)
        self._peers = {name: ReplicaPeer(name) for name in members.peers()}
        members.when_changed(self._on_members)

    # from the directory

    def start(self) -> None:
        """After a start, when `own` and `gone` are set: what is kept here is made to agree."""
        me, number = self._members.name, self._lists.next_number()
        for entry in [*self.gone.values(), *self.own.values()]:
            self._placement.add(entry.client_id)
            self._put_here(entry)
            self._entries.renew(entry.client_id, me, number)
        for client_id in self._kept():
            self._entries.renew(client_id, me, number)
        self._entries.end_unlisted(me, number)

    def set(self, entry: DirectoryEntry) -> None:
        """This is so from now on."""
        self.own[entry.client_id] = entry
        gone = self.gone.get(entry.client_id)
        if gone is not None and entry.order > gone.order:
            # Told when this one has ended, it would keep the keepers from hearing of that.
            self.forget(entry.client_id)
            self._on_known(entry.client_id)
        self._told.pop(entry.client_id, None)
        self._told[entry.client_id] = self._now()
        self._placement.add(entry.client_id)
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
        self._placement.bring(client_id)
        own = self.own.pop(client_id, None)
        if own is not None:
            self._tell(client_id, own.generation)
            self._let_go(client_id)

    def withdraw(self, client_id: str, generation: int) -> None:
        """A claim up to this generation came to nothing."""
        self._tell(client_id, generation)

    def deny(self, entry: DirectoryEntry) -> None:
        """Others have heard of a session here, and there is none up to that one."""
        client_id = entry.client_id
        gone = self.gone.get(client_id)
        if gone is not None and gone.order < entry.order:
            # It came back, and has ended: where it went before would be told in place of that.
            self.forget(client_id)
            self._on_known(client_id)
        self._tell(client_id, entry.generation)

    def give_away(self, entry: DirectoryEntry) -> None:
        """The session is at `entry.node` now."""
        self._placement.bring(entry.client_id)
        self.own.pop(entry.client_id, None)
        self._told.pop(entry.client_id, None)
        self.gone[entry.client_id] = entry
        self._known[entry.client_id] = set()
        self._placement.add(entry.client_id)
        # A keeper that is not reached before this is forgotten hears of the end at least.
        self._tell(entry.client_id, entry.past)

    def forget(self, client_id: str) -> None:
        """What was given away needs no more words."""
        self.gone.pop(client_id, None)
        self._known.pop(client_id, None)
        self._let_go(client_id)

    def forget_node(self, node: str) -> None:
        """The node was removed by command: nobody is to be told what went there."""
        for client_id in [client_id for client_id, e in self.gone.items() if e.node == node]:
            self.forget(client_id)

    def tell_again(self, client_id: str) -> None:
        """A keeper believes something else."""
        self._tell(client_id)

    def knows(self, client_id: str, keeper: str) -> None:
        """This keeper has heard of what was given away."""
        known = self._known.get(client_id)
        if known is None:
            return
        keepers = self._placement.keepers(client_id)
        known.add(keeper)
        if len(known.intersection(keepers)) >= majority(len(keepers)):
            del self._known[client_id]
            self._on_known(client_id)

    def is_known(self, client_id: str) -> bool:
        """Whether a majority of the keepers has heard where a session went."""
        return client_id not in self._known

    def is_told(self, client_id: str) -> bool:
        """Whether all its keepers have heard all there is to say of this id."""
        return self._heard(client_id) == len(self._placement.keepers(client_id))

    def is_told_to_most(self, client_id: str) -> bool:
        """Whether a majority of its keepers has."""
        return self._heard(client_id) >= majority(len(self._placement.keepers(client_id)))

    def is_deaf(self, client_id: str) -> bool:
        """Whether most of its keepers do not answer."""
        keepers = self._placement.keepers(client_id)
        peers = [self._peers.get(name) for name in keepers]
        silent = sum(peer is not None and peer.failures > 0 for peer in peers)
        return len(keepers) - silent < majority(len(keepers))

    def is_cut_off(self, client_id: str) -> bool:
        """
        Whether some keeper of the id does not answer, or has not heard all that is here; or may be
        one of those, as it was not spoken to of late.
        """
        peers = [self._peers.get(name) for name in self._placement.keepers(client_id)]
        return any(peer is not None and self._is_lost(peer) for peer in peers)

    @property
    def is_settled(self) -> bool:
        """Whether every keeper has heard all there is to say, but for those that do not answer."""
        return all(
            peer.failures or (peer.is_listed and not peer.pending and peer.in_flight is None)
            for peer in self._peers.values()
        )

    @property
    def is_moving(self) -> bool:
        """True if not all ids have been looked at since the members changed."""
        return self._placement.is_behind or self._relays.is_behind

    # from the shell that calls the keepers

    def go_on(self) -> bool:
        """Look at some of what a change of the members left; whether there may be more to say."""
        is_busy = self._lists.is_unfinished or self.is_moving
        self._lists.is_unfinished = False
        if self._placement.is_behind:
            self._placement.go_on(SLICE)
        else:
            self._relays.go_on(SLICE)
        return is_busy

    def met(self, name: str, life: int) -> None:
        """That member spoke, in that life of its process."""
        peer = self._peers.get(name)
        if peer is not None and peer.failures:
            peer.due = 0.0
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
            if now < self.calm or len(self._on_list) >= LISTS:
                return None
            batch = self._lists.part(peer)
        elif self._has_news(peer) or (self._has_entries and name in self._absence.watchers):
            batch = self._lists.news(peer)
        else:
            return None
        if batch is not None:
            peer.in_flight = batch
            peer.said = peer.change, self._absence.version
            if not peer.is_listed:
                self._on_list.add(name)
        return batch

    def answered(self, name: str, batch: Register, reply: Registered, now: float) -> None:
        """The keeper took the batch, or began a new life."""
        peer = self._finish(name, batch)
        if peer is None:
            return
        peer.pause, peer.failures, peer.answered = FIRST_PAUSE, 0, now
        if reply.restart or (peer.life != reply.life and not batch.first):
            peer.start_over()
            peer.life = reply.life
            peer.due = now
            return
        peer.life, peer.silence = reply.life, peer.said[1]
        peer.wants_relays = not reply.settled
        if batch.last and batch.catching_up:
            peer.change = 0 if peer.change == peer.said[0] else peer.change
        elif batch.last and batch.sync == peer.sync:  # not started over meanwhile
            peer.is_listed = True
            peer.listing = peer.relaying = None
        self._has_entries = self._has_entries or bool(batch.entries)
        for client_id in reply.full:
            peer.pending.setdefault(client_id, 0)
        is_busy = not peer.is_listed or (self._has_news(peer) and not reply.full)
        peer.due = now if is_busy else now + self._every
        for entry in batch.entries:
            if entry.client_id not in reply.full:
                self.knows(entry.client_id, name)

    def failed(self, name: str, batch: Register, now: float) -> None:
        """
        No answer, or the keeper sees other members; it may have taken the batch or not, and saying
        it twice does no harm.
        """
        peer = self._finish(name, batch)
        if peer is None:
            return
        peer.failures += 1
        peer.due = now + peer.pause
        peer.pause = min(peer.pause * 2, max(LONGEST_PAUSE, len(self._peers) / ATTEMPTS))
        if peer.is_listed or (batch.sync and batch.sync == peer.sync):
            peer.put_back(batch)  # not started over meanwhile

    # internal

    def _finish(self, name: str, batch: Register) -> ReplicaPeer | None:
        """The call is over; None where it does not matter any more."""
        peer = self._peers.get(name)
        if peer is None or peer.in_flight is not batch:
            return None
        peer.in_flight = None
        self._on_list.discard(name)
        return peer

    def _has_news(self, peer: ReplicaPeer) -> bool:
        is_news = peer.pending or peer.relays or peer.change
        return bool(is_news) or peer.silence != self._absence.version

    def _is_lost(self, peer: ReplicaPeer) -> bool:
        if peer.failures or not peer.is_listed:
            return True
        is_quiet = peer.name not in self._absence.watchers
        return is_quiet and self._now() - peer.answered > 2 * self._every + GRACE

    def _let_go(self, client_id: str) -> None:
        if self._entry_for(client_id) is None:
            self._placement.forget(client_id)

    def _heard(self, client_id: str) -> int:
        peers = [self._peers.get(name) for name in self._placement.keepers(client_id)]
        return sum(peer is None or peer.has_heard(client_id) for peer in peers)

    def _tell(self, client_id: str, generation: int = 0) -> None:
        for name in self._placement.keepers(client_id):
            peer = self._peers.get(name)
            if peer is None:
                self._tell_here(client_id, generation)
            else:
                self._tell_peer(peer, client_id, generation)

    def _tell_peer(self, peer: ReplicaPeer, client_id: str, generation: int) -> None:
        if not (peer.is_listed or peer.sync):
            return  # the list will have it; of one that has begun the keeper spares what came since
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

    def _put_here(self, entry: DirectoryEntry) -> None:
        if self._members.is_alone and not (entry.persistent or entry.testament):
            return  # a connection here is of no concern to anybody else, yet
        name = self._members.name
        if name not in self._placement.keepers(entry.client_id):
            return
        verdict = self._entries.put(entry, is_hearsay=entry.node != name)
        self.knows(entry.client_id, name)
        if isinstance(verdict, KnownAbove):
            self._on_conflict(verdict.entry, verdict.has_ended)

    def _on_members(self) -> None:
        joined, left = self._placement.on_members()
        for name in left:
            self._peers.pop(name, None)
            self._on_list.discard(name)
        if left:
            self._changes += 1
            self._relays.begin(left)
            for peer in self._peers.values():
                if not peer.is_listed:
                    peer.start_over()
                    continue
                peer.change, peer.wants_relays = self._changes, True
                peer.due = peer.due if peer.failures else 0.0
        for name in joined:
            self._peers[name] = ReplicaPeer(name)
        if joined:
            self._wait_for_calm()
        if joined or left:
            self._wake()

    def _wait_for_calm(self) -> None:
        now, calm = self._now(), CALM * len(self._peers)
        if now >= self.calm:
            self._storm = now
        self.calm = min(now + calm, self._storm + LONGEST_CALM)

    def _on_moved(self, client_id: str, before: tuple[str, ...], now: tuple[str, ...]) -> None:
        """Others keep the id now."""
        entry = self._entry_for(client_id)
        if entry is None:
            return
        me = self._members.name
        for name in now:
            if name not in before and name != me:
                self._tell_peer(self._peers[name], client_id, 0)
        if me in now:
            self._put_here(entry)
        elif entry.node == me:
            self._entries.end(client_id, me, entry.generation)
        if entry.node == me:
            for name in before:
                if name not in now and name in self._peers:
                    self._tell_peer(self._peers[name], client_id, entry.generation)

    def _relay(self, name: str, client_id: str) -> None:
        peer = self._peers.get(name)
        if peer is not None and peer.is_listed:
            peer.relays[client_id] = None
            if len(peer.pending) + len(peer.relays) > PENDING:
                peer.start_over()

    def _entry_for(self, client_id: str) -> DirectoryEntry | None:
        return self.own.get(client_id) or self.gone.get(client_id)
