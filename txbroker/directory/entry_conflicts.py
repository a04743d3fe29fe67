"""
Two entries for one client id: the consequences for the session here.

Theory of operation. `DirectoryEntry.order` decides which of two entries counts. The node of the
session here then acts:

- A connection that counts below another entry is closed.
- A kept session that counts below a clean one has ended.
- A kept session that counts below another kept one is offered to the other's node. The other node
  fetches the session and merges it, so no message is lost.
- A session here whose rival has ended raises its numbers above the rival. A fresh clean session
  does so, too.
- An entry that counts above the other is sent to the keepers again.
"""

from __future__ import annotations

import attrs

from txbroker.directory.directory_parts import DirectoryParts
from txbroker.directory.effects import Procedure, ask
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.requests import (
    Accepted,
    Busy,
    MovedTo,
    NotHeld,
    Offer,
    Register,
    Registered,
    Reply,
    Supersede,
    Superseded,
)
from txbroker.directory.session_takeover import SessionTakeovers

FRESH = 2.0
"""
Seconds for which a clean session may be the newer one of two entries.

After that, the clean session may be a connection long dead, and ends. At worst its client connects
again.
"""

RAISES = 3
"""Upper bound of raises of one clean session: two that begin at once must not raise for ever."""

TOLD_AT_ONCE = 500
"""Entries in one call to a node whose sessions count below them, or that they name."""

AGAIN = 30.0
"""
Seconds after which a node is asked again about confirmed entries that the node itself did not send.
"""


@attrs.define(slots=True, eq=False)
class _Fresh:
    """A clean session that began at `since`."""

    since: float
    raises: int = 0


class EntryConflicts:
    """The conflicts between the sessions of one node and the entries of others."""

    def __init__(
        self,
        parts: DirectoryParts,
        *,
        takeovers: SessionTakeovers,
    ) -> None:
        self.offers: dict[str, str] = {}
        self._members = parts.members
        self._replica = parts.replica
        self._ownership = parts.ownership
        self._replicator = parts.replicator
        self._takeovers = takeovers
        self._host = parts.host
        self._now = parts.now
        self._spawn = parts.spawn
        self._fresh: dict[str, _Fresh] = {}
        self._again = 0.0

    # from the directory

    def record_fresh(self, client_id: str) -> None:
        """Note that a clean session begins here now."""
        self._fresh[client_id] = _Fresh(self._now())
        self._takeovers.overtake(client_id)

    def record_old(self, client_id: str) -> None:
        """Note that a clean session's connection has ended: any other entry is newer."""
        self._fresh.pop(client_id, None)

    def tick(self) -> None:
        """Forget clean sessions older than `FRESH`, and ask again about confirmed entries."""
        now = self._now()
        self._fresh = {c: one for c, one in self._fresh.items() if now - one.since <= FRESH}
        if now >= self._again:
            self._again = now + AGAIN
            self._replica.entries.mark_unconfirmed()

    # from the keepers of our entries

    def on_registered(self, batch: Register, reply: Registered) -> None:
        """Act on the entries that a keeper's answer names as above ours."""
        for entry in reply.conflicts:
            self.supersede(entry, has_ended=False)
        for entry in reply.past:
            self.supersede(entry, has_ended=True)
        for entry in batch.entries:
            # A client that connects elsewhere now replaces an entry that most keepers know, so that
            # client is newer.
            if self._replicator.is_told_to_most(entry.client_id):
                self._fresh.pop(entry.client_id, None)

    def superseded(self, request: Supersede) -> Superseded:
        """
        Act on entries that a keeper sent unasked.

        Entries of sessions that are arriving here stay undone: the keeper asks again.
        """
        done, denied = [], []
        for entry in request.entries:
            self.supersede(entry, has_ended=False)
            is_missing = self._is_missing(entry)
            if is_missing and self._may_come(entry.client_id):
                continue
            done.append(entry.client_id)
            if is_missing:
                denied.append(entry.client_id)
        return Superseded(client_ids=tuple(done), denied=tuple(denied))

    def supersede(self, other: DirectoryEntry, *, has_ended: bool) -> None:
        """
        Act on an entry that counts above one of ours, or that names this node.

        `has_ended` as in `KnownAbove`. All changes are made when this returns; the store decides
        when they are durable.
        """
        client_id = other.client_id
        own = self._replicator.own.get(client_id)
        if own is None:
            is_missing = self._is_missing(other) and not self._may_come(client_id)
            if is_missing and not has_ended:
                self._replicator.deny(other)
            return
        if own.order == other.order and not has_ended:
            return
        if has_ended or other.node == self._members.name or self._is_new(own):
            if other.order >= own.order:
                self._raise_above(own, other)
        elif own.order > other.order:
            self._replicator.resend(client_id)
        elif not own.persistent:
            self._replicator.drop(client_id)
            self._host.close(client_id)
        elif not other.persistent:
            self._ownership.drop(client_id)
            self._replicator.drop(client_id)
            self._host.discard(client_id, is_moved=False)
        else:
            self.offers[client_id] = other.node

    def _is_missing(self, other: DirectoryEntry) -> bool:
        """True if the entry names this node, and no session is here."""
        return other.node == self._members.name and other.client_id not in self._replicator.own

    def _may_come(self, client_id: str) -> bool:
        """True if the session of that id may be here soon, or if a void copy of it is here."""
        is_near = client_id in self._ownership.held or client_id in self._ownership.arriving
        return is_near or client_id in self._takeovers.busy

    # from the entries that are kept here

    def verify_hearsay(self, node: str) -> Procedure[None]:
        """Ask a node for the sessions that only other nodes place there."""
        book = self._replica.entries
        entries = book.hearsay(node, TOLD_AT_ONCE)
        if not entries:
            return
        told = tuple(attrs.evolve(entry, testament=None) for entry in entries)
        reply = yield from ask(node, Supersede(entries=told))
        if not isinstance(reply, Superseded):
            return
        done, denied = set(reply.client_ids), set(reply.denied)
        for entry in entries:
            if entry.client_id in denied:
                book.deny(entry)
            elif entry.client_id in done:
                book.confirm(entry)

    def notify_losers(self, node: str) -> Procedure[None]:
        """Send a node the entries that count above sessions that it had."""
        entries = self._replica.entries.due_to(node, TOLD_AT_ONCE)
        told = tuple(attrs.evolve(entry, testament=None) for entry in entries)
        reply = yield from ask(node, Supersede(entries=told))
        done = reply.client_ids if isinstance(reply, Superseded) else ()
        for entry in entries:
            if entry.client_id in done:
                self._replica.entries.acknowledge(node, entry)

    # sessions that count below another

    def offer(self, client_id: str) -> Procedure[None]:
        """Offer our session to the node whose session counts above it."""
        node = self.offers[client_id]
        own = self._replicator.own.get(client_id)
        if own is None or not own.persistent or self._members.get(node) is None:
            del self.offers[client_id]
            return
        reply = yield from ask(node, Offer(client_id=client_id, incarnation=own.incarnation))
        if self.offers.get(client_id) != node:
            return
        if isinstance(reply, MovedTo):
            self.offers[client_id] = reply.node
        elif isinstance(reply, NotHeld):
            # The entry that counted above has no session: ours is the only one.
            del self.offers[client_id]
            own = self._replicator.own.get(client_id)
            if own is not None and own.persistent:
                void = attrs.evolve(own, node=node, incarnation=reply.incarnation)
                self._raise_above(own, void)

    def offered(self, source: str, request: Offer) -> Reply:
        """Answer a node that offers a session below ours."""
        client_id = request.client_id
        if client_id in self._ownership.held:
            self._spawn(self._takeovers.fetch(client_id, source, request.incarnation))
            return Accepted()
        if client_id in self._ownership.arriving or client_id in self._takeovers.busy:
            return Busy()
        gone = self._ownership.tombstone(client_id)
        if gone is not None and gone.node != source:
            return MovedTo(node=gone.node, incarnation=gone.incarnation)
        generation = self._replica.entries.generation(client_id)
        return NotHeld(incarnation=max(request.incarnation, generation))

    # internal

    def _is_new(self, own: DirectoryEntry) -> bool:
        """True if the entry is of a recent clean session that most keepers do not know yet."""
        fresh = None if own.persistent else self._fresh.get(own.client_id)
        if fresh is None:
            return False
        return fresh.raises < RAISES and self._now() - fresh.since <= FRESH

    def _raise_above(self, own: DirectoryEntry, other: DirectoryEntry) -> None:
        fresh = self._fresh.get(own.client_id)
        if fresh is not None:
            fresh.raises += 1
        raised = own.above(other)
        if raised.persistent:
            owned = self._ownership.held[own.client_id]
            # A copy on its way would count below this entry: its taker has to ask again.
            self._ownership.thaw(own.client_id)
            raised_holding = attrs.evolve(owned, incarnation=raised.incarnation)
            self._ownership.store(own.client_id, raised_holding)
        self._replicator.set(raised)
