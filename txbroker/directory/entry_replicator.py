"""
The replication of this node's entries to their keepers, until each keeper knows them.

Theory of operation. The replicator decides what each keeper must still learn of this node's
sessions. For each other member it has a bounded list of pending ids. Batches leave one at a time,
and failed batches are sent again without end. A keeper is in one of two states:

- *unlisted*: the keeper is new, began a new life, or has too many pending ids. The replicator sends
  the complete list.
- *listed*: the keeper has the complete list. The replicator sends changes only.

A change of the members makes pending only the ids whose keepers changed. Both the new keepers and
the earlier ones receive these ids. Entries of which this node is a keeper are written at once,
without a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

import attrs

from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.entry_placement import EntryPlacement
from txbroker.directory.entry_record import KnownAbove
from txbroker.directory.entry_relays import EntryRelays
from txbroker.directory.entry_table import EntryTable
from txbroker.directory.entry_updates import BATCH, EntrySources, EntryUpdates
from txbroker.directory.members import Members
from txbroker.directory.node_lifetime import NodeLifetime
from txbroker.directory.rendezvous_hash import majority
from txbroker.directory.replica_peer import FIRST_PAUSE, PENDING, ReplicaPeer
from txbroker.directory.requests import Register, Registered
from txbroker.directory.silent_members import SilentMembers

RECHECK = 20.0
"""Seconds after which a changed entry is sent once more."""

SLICE = 200
"""Ids that one turn examines after a change of the members."""

GRACE = 3.0
"""Seconds by which an expected message to a keeper may be late."""

LISTS = 4
"""Keepers that receive complete lists concurrently; the others wait."""

CALM = 0.02
LONGEST_CALM = 10.0
"""
Seconds per member without a newcomer before lists are sent to newcomers; and the upper bound.

If fifty nodes start together, lists between all of them would delay their joins.
"""


@attrs.frozen(kw_only=True, eq=False)
class ReplicatorPorts:
    """
    What a replicator asks of its directory, and what it reports.

    - `on_known`: gets the id of an entry of `gone` once a majority of the keepers knows the entry.
    - `on_conflict`: gets an entry of the own replica that counts above one of `own`, and whether
      that session has ended.
    - `kept`: returns ids that must stay though no entry is registered for them.
    - `wake`: is called when a batch is ready.
    """

    on_known: Callable[[str], None]
    on_conflict: Callable[[DirectoryEntry, bool], object]
    kept: Callable[[], Iterable[str]]
    wake: Callable[[], object]


class EntryReplicator:
    """
    The registrations of one node in the life `life` of its process; `entries` is its own replica.

    - `own`: the entries of sessions here.
    - `gone`: entries of sessions that moved away, registered for their new holder.
    - `every`: the interval of `pulse`, in seconds.

    Newcomers receive nothing before the time `calm`.
    """

    def __init__(
        self,
        members: Members,
        entries: EntryTable,
        life: NodeLifetime,
        *,
        silence: SilentMembers,
        ports: ReplicatorPorts,
        every: float,
    ) -> None:
        self.own: dict[str, DirectoryEntry] = {}
        self.gone: dict[str, DirectoryEntry] = {}
        self._known: dict[str, set[str]] = {}
        self._told: dict[str, float] = {}
        self._now = life.now
        self._members = members
        self._kept = ports.kept
        self._entries = entries
        self._on_conflict = ports.on_conflict
        self._on_known = ports.on_known
        self._wake = ports.wake
        self._every = every
        self._storm = self.calm = 0.0
        self._changes = 0
        self._has_entries = False
        self._on_list: set[str] = set()
        self._silence = silence
        self._placement = EntryPlacement(members, lambda: [*self.own, *self.gone], self._on_moved)
        self._relays = EntryRelays(members, entries, self._relay)
        sources = EntrySources(
            entry=self._entry_for,
            ids=lambda: [*self.own, *(c for c in self.gone if c not in self.own)],
            kept=ports.kept,
            is_moving=lambda: self.is_moving,
        )
        self._lists = EntryUpdates(members, entries, self._placement, silence, life.number, sources)
        self._peers = {name: ReplicaPeer(name) for name in members.peers()}
        members.when_changed(self._on_members)

    # from the directory

    def start(self) -> None:
        """
        Reconcile this node's replica with `own` and `gone`, which the caller has set after a start.
        """
        me = self._members.name
        self._entries.begin_list(me, self._lists.next_number())
        for entry in [*self.gone.values(), *self.own.values()]:
            self._placement.add(entry.client_id)
            self._put_here(entry)
            self._entries.renew(entry.client_id, me)
        for client_id in self._kept():
            self._entries.renew(client_id, me)
        self._entries.end_unlisted(me)

    def set(self, entry: DirectoryEntry) -> None:
        """Register an entry of this node."""
        self.own[entry.client_id] = entry
        gone = self.gone.get(entry.client_id)
        if gone is not None and entry.order > gone.order:
            # An older entry of `gone`, sent after this session's end, would hide that end from the
            # keepers.
            self.forget(entry.client_id)
            self._on_known(entry.client_id)
        self._told.pop(entry.client_id, None)
        self._told[entry.client_id] = self._now()
        self._placement.add(entry.client_id)
        self._notify_keepers(entry.client_id)

    def recheck(self) -> None:
        """
        Send changed entries again after `RECHECK`; the answers name entries that count above them.
        """
        until = self._now() - RECHECK
        for client_id, told in list(islice(self._told.items(), BATCH)):
            if told > until:
                return
            del self._told[client_id]
            if client_id in self.own and not self._members.is_alone:
                self._notify_keepers(client_id)

    def drop(self, client_id: str) -> None:
        """Unregister the id: its session here has ended."""
        self._told.pop(client_id, None)
        self._placement.update(client_id)
        own = self.own.pop(client_id, None)
        if own is not None:
            self._notify_keepers(client_id, own.generation)
            self._release(client_id)

    def withdraw(self, client_id: str, generation: int) -> None:
        """Withdraw a claim up to this generation, which began no session."""
        self._notify_keepers(client_id, generation)

    def deny(self, entry: DirectoryEntry) -> None:
        """Deny an entry that names this node: no session up to it is here."""
        client_id = entry.client_id
        gone = self.gone.get(client_id)
        if gone is not None and gone.order < entry.order:
            # The session returned and ended here: its earlier move would be sent in place of the
            # end.
            self.forget(client_id)
            self._on_known(client_id)
        self._notify_keepers(client_id, entry.generation)

    def register_move(self, entry: DirectoryEntry) -> None:
        """Register a session that moved to `entry.node`."""
        self._placement.update(entry.client_id)
        self.own.pop(entry.client_id, None)
        self._told.pop(entry.client_id, None)
        self.gone[entry.client_id] = entry
        self._known[entry.client_id] = set()
        self._placement.add(entry.client_id)
        # The entry may be forgotten before a keeper is reached: that keeper receives at least the
        # end here.
        self._notify_keepers(entry.client_id, entry.past)

    def forget(self, client_id: str) -> None:
        """Forget the entry of a session that moved away."""
        self.gone.pop(client_id, None)
        self._known.pop(client_id, None)
        self._release(client_id)

    def forget_node(self, node: str) -> None:
        """Forget the entries of sessions that moved to a node that was removed by command."""
        for client_id in [client_id for client_id, e in self.gone.items() if e.node == node]:
            self.forget(client_id)

    def ending(self, client_id: str) -> int:
        """
        Return the generation up to which keepers are being told that sessions of the id have ended.

        A repeated message may reach them late: it would end a later claim of that generation.
        """
        peers = [self._peers.get(name) for name in self._placement.keepers(client_id)]
        return max((peer.ending(client_id) for peer in peers if peer is not None), default=0)

    def resend(self, client_id: str) -> None:
        """Send the entry again: a keeper stores another one."""
        self._notify_keepers(client_id)

    def knows(self, client_id: str, keeper: str) -> None:
        """Note that this keeper knows the move of a session."""
        known = self._known.get(client_id)
        if known is None:
            return
        keepers = self._placement.keepers(client_id)
        known.add(keeper)
        if len(known.intersection(keepers)) >= majority(len(keepers)):
            del self._known[client_id]
            self._on_known(client_id)

    def is_known(self, client_id: str) -> bool:
        """True if a majority of the keepers knows where the session moved."""
        return client_id not in self._known

    def is_told(self, client_id: str) -> bool:
        """True if all keepers of the id know its whole state."""
        return self._heard(client_id) == len(self._placement.keepers(client_id))

    def is_told_to_most(self, client_id: str) -> bool:
        """True if a majority of the keepers of the id knows its whole state."""
        return self._heard(client_id) >= majority(len(self._placement.keepers(client_id)))

    def is_deaf(self, client_id: str) -> bool:
        """True if so many keepers of the id do not answer that no majority is left."""
        keepers = self._placement.keepers(client_id)
        peers = [self._peers.get(name) for name in keepers]
        silent = sum(peer is not None and peer.failures > 0 for peer in peers)
        return len(keepers) - silent < majority(len(keepers))

    def is_cut_off(self, client_id: str) -> bool:
        """
        True if a keeper of the id is silent or lacks a change of this node, or may do so.

        A keeper without recent messages from this node may be away unnoticed.
        """
        peers = [self._peers.get(name) for name in self._placement.keepers(client_id)]
        return any(peer is not None and self._is_lost(peer) for peer in peers)

    @property
    def is_settled(self) -> bool:
        """True if every keeper that answers knows the whole state of this node."""
        return all(
            peer.failures or (peer.is_listed and not peer.pending and peer.in_flight is None)
            for peer in self._peers.values()
        )

    @property
    def is_moving(self) -> bool:
        """True if not all ids have been examined since the members changed."""
        return self._placement.is_behind or self._relays.is_behind

    # from the shell that calls the keepers

    def advance(self) -> bool:
        """
        Examine a slice of the ids after a change of the members; return True if batches may be
        ready.
        """
        is_busy = self._lists.is_unfinished or self.is_moving
        self._lists.is_unfinished = False
        if self._placement.is_behind:
            self._placement.advance(SLICE)
        else:
            self._relays.advance(SLICE)
        return is_busy

    def met(self, name: str, life: int) -> None:
        """Note that the member sent a message, and the life of its process."""
        peer = self._peers.get(name)
        if peer is None:
            return
        now = self._now()
        # A busy member tells much and answers late: attempts that followed its messages would keep
        # it busy.
        if peer.failures and now - peer.heard > 2 * peer.pause:
            peer.due = 0.0
        peer.heard = now
        if peer.life == life:
            return
        if peer.life:
            peer.start_over()
            peer.due = 0.0
        peer.life = life

    def batch(self, name: str, now: float) -> Register | None:
        """Return the next batch for this keeper; `answered` or `failed` reports its outcome."""
        peer = self._peers.get(name)
        if peer is None or peer.in_flight is not None or now < peer.due:
            return None
        if not peer.is_listed:
            if now < self.calm or len(self._on_list) >= LISTS:
                return None
            batch = self._lists.part(peer)
        elif self._has_news(peer) or (self._has_entries and name in self._silence.watchers):
            batch = self._lists.news(peer)
        else:
            return None
        if batch is not None:
            peer.in_flight = batch
            peer.said = peer.change, self._silence.version
            if not peer.is_listed:
                self._on_list.add(name)
        return batch

    def answered(self, name: str, batch: Register, reply: Registered, now: float) -> None:
        """Note that the keeper stored the batch, or began a new life."""
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
        elif batch.last and batch.sync == peer.sync:  # a restarted list has another number
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

    def late(self, name: str, batch: Register, began: float) -> None:
        """
        Note that the keeper has not answered in time a batch that was sent at `began`.

        If no message came from the keeper since, the next keeper may receive its list.
        """
        peer = self._peers.get(name)
        if peer is not None and peer.in_flight is batch:
            peer.failures += 1
            if self._silence.last_heard(name) < began:
                self._on_list.discard(name)

    def failed(self, name: str, batch: Register, now: float) -> None:
        """
        Return the batch to the pending ids: no answer came, or the keeper sees other members.

        The keeper may have stored the batch. A repeated batch is harmless.
        """
        peer = self._finish(name, batch)
        if peer is None:
            return
        peer.put_off(now, len(self._peers))
        if peer.is_listed or (batch.sync and batch.sync == peer.sync):
            peer.requeue(batch)  # a restarted list has another number

    # internal

    def _finish(self, name: str, batch: Register) -> ReplicaPeer | None:
        """End the call; return None if the keeper left or a newer call replaced it."""
        peer = self._peers.get(name)
        if peer is None or peer.in_flight is not batch:
            return None
        peer.in_flight = None
        self._on_list.discard(name)
        return peer

    def _has_news(self, peer: ReplicaPeer) -> bool:
        is_news = peer.pending or peer.relays or peer.change
        return bool(is_news) or peer.silence != self._silence.version

    def _is_lost(self, peer: ReplicaPeer) -> bool:
        if peer.failures or not peer.is_listed:
            return True
        is_quiet = peer.name not in self._silence.watchers
        return is_quiet and self._now() - peer.answered > 2 * self._every + GRACE

    def _release(self, client_id: str) -> None:
        if self._entry_for(client_id) is None:
            self._placement.forget(client_id)

    def _heard(self, client_id: str) -> int:
        peers = [self._peers.get(name) for name in self._placement.keepers(client_id)]
        return sum(peer is None or peer.has_heard(client_id) for peer in peers)

    def _notify_keepers(self, client_id: str, generation: int = 0) -> None:
        for name in self._placement.keepers(client_id):
            peer = self._peers.get(name)
            if peer is None:
                self._notify_here(client_id, generation)
            else:
                self._notify_peer(peer, client_id, generation)

    def _notify_peer(self, peer: ReplicaPeer, client_id: str, generation: int) -> None:
        if not (peer.is_listed or peer.sync):
            # A list not yet begun will have the entry; a begun list ends no entry that came later.
            return
        peer.pending[client_id] = max(generation, peer.pending.get(client_id, 0))
        if not peer.failures:
            peer.due = 0.0
            self._wake()
        if len(peer.pending) > PENDING:
            peer.start_over()

    def _notify_here(self, client_id: str, generation: int) -> None:
        entry = self._entry_for(client_id)
        if entry is None:
            self._entries.end(client_id, self._members.name, generation)
        else:
            self._put_here(entry)

    def _put_here(self, entry: DirectoryEntry) -> None:
        if self._members.is_alone and not (entry.persistent or entry.testament):
            return  # an only member needs no entry of a mere connection
        name = self._members.name
        if name not in self._placement.keepers(entry.client_id):
            return
        verdict = self._entries.store(entry, is_hearsay=entry.node != name)
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
            self._relays.start(left)
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
        """
        Send the entry of an id whose keepers changed, to the new keepers and to the earlier ones.
        """
        entry = self._entry_for(client_id)
        if entry is None:
            return
        me = self._members.name
        for name in now:
            if name not in before and name != me:
                self._notify_peer(self._peers[name], client_id, 0)
        if me in now:
            self._put_here(entry)
        elif entry.node == me:
            self._entries.end(client_id, me, entry.generation)
        if entry.node == me:
            for name in before:
                if name not in now and name in self._peers:
                    self._notify_peer(self._peers[name], client_id, entry.generation)

    def _relay(self, name: str, client_id: str) -> None:
        peer = self._peers.get(name)
        if peer is not None and peer.is_listed:
            peer.relays[client_id] = None
            if len(peer.pending) + len(peer.relays) > PENDING:
                peer.start_over()

    def _entry_for(self, client_id: str) -> DirectoryEntry | None:
        return self.own.get(client_id) or self.gone.get(client_id)
