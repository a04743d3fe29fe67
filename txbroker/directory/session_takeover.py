"""
CONNECT with clean session 0: find the client's session, fetch it, or begin one.

Theory of operation. The takeover decides where a connecting client's session is, and whether a new
session may begin. For an id whose session is not here, the steps are:

1. Finish the move of an earlier attempt: a copy is here, and may have been released.
2. Follow the tombstone, if the session was here before.
3. Ask the site's keepers of the id. An entry names a holder: fetch the session from it. If a
   majority knows no session, ask the keepers at the other sites.
4. If no site knows a session, claim the id at the keepers. Of two nodes only one can find a
   majority, and a new session begins there.
5. Any other outcome means that an unreachable node may hold a session. The takeover retries until
   `wait` has expired, then refuses, or begins a session to be merged later (`roaming: fresh`).

The same steps fetch a session that must be merged into a session here. If this node is the only
member, its own entries alone decide that no session exists. Then a new session may begin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import attrs

from txbroker.directory.directory_parts import DirectoryParts
from txbroker.directory.effects import AwaitDurable, Pause, Procedure, SendRequest, ask, notify
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.quorum_read import NoSession
from txbroker.directory.requests import (
    Busy,
    Claim,
    Claimed,
    MovedTo,
    NotHeld,
    NotReleased,
    Release,
    Released,
    Reply,
    Request,
    Supersede,
    Take,
    Taken,
)
from txbroker.directory.session_lookups import SessionLookups, SessionSearch
from txbroker.directory.session_ownership import OwnedSession

T = TypeVar("T")

RETRY = 0.1
"""Seconds between two attempts."""

HOPS = 16
"""Upper bound of tombstones that one attempt follows."""


@attrs.frozen(kw_only=True)
class SessionFound:
    """The session is here; `present`: the session existed before this CONNECT."""

    present: bool


@attrs.frozen(kw_only=True)
class TakeoverRefused:
    """A session may exist that cannot be fetched now; `reason` is one line for the log."""

    reason: str


class SessionTakeovers:
    """
    The takeover procedures of one node; after `wait` seconds, `is_fresh` decides the outcome.

    `busy`: the ids with a running procedure; True if a clean session began here since.
    """

    def __init__(
        self,
        parts: DirectoryParts,
        *,
        wait: float,
        is_fresh: bool,
    ) -> None:
        self.claims: dict[str, DirectoryEntry] = {}
        self.busy: dict[str, bool] = {}
        self._members = parts.members
        self._replica = parts.replica
        self._ownership = parts.ownership
        self._replicator = parts.replicator
        self.lookups = SessionLookups(parts)
        self._wait = wait
        self._is_fresh = is_fresh
        self._now = parts.now
        self._spawn = parts.spawn

    # from the directory

    @property
    def deadline(self) -> float:
        """Return the time until which a client that connects now waits for other nodes."""
        return self._now() + self._wait

    def take_over(
        self, client_id: str, is_wanted: Callable[[], bool], deadline: float
    ) -> Procedure[SessionFound | TakeoverRefused]:
        """
        Bring the session of a connecting client to this node.

        The caller opens a `SessionFound` in the same turn. Otherwise another node could ask for the
        session first. If `is_wanted` returns False, the client has disconnected, and no session
        begins.
        """
        search = SessionSearch(client_id, is_wanted=is_wanted, until=deadline)
        alone = self._claim_alone(search) if is_wanted() else None
        if alone is not None:
            return alone
        while is_wanted():
            search.go_on = False
            arrived = yield from self.alone(client_id, self._attempt(search))
            if arrived is not None:
                return arrived
            if self._now() >= deadline:
                break
            if not search.go_on:
                yield Pause(seconds=RETRY)
        if self._is_fresh and is_wanted() and client_id not in self._ownership.held:
            begun = self._begin(search, self._entry(search).incarnation)
            if begun is not None:
                return begun
        if search.claimed and client_id not in self._ownership.held:
            self._replicator.withdraw(client_id, search.claimed)
        if not is_wanted():
            return TakeoverRefused(reason="the client is gone")
        return TakeoverRefused(reason=search.reason or "another search for the session is not over")

    def fetch(self, client_id: str, node: str, incarnation: int) -> Procedure[None]:
        """Fetch the session that `node` holds; a session here merges it."""
        search = SessionSearch(client_id, is_merging=client_id in self._ownership.held)
        yield from self.alone(client_id, self._fetch(search, node, incarnation))

    def ask_holder(self, node: str, request: Request) -> Procedure[Reply | None]:
        """Ask the supposed holder of a session; a removed node holds no session."""
        if self._members.is_removed(node):
            return NotHeld()
        return (yield from ask(node, request))

    def finish(self, client_id: str) -> Procedure[bool]:
        """
        Ask whether a copy here was released; return True if the session is here now.

        A removed node cannot be asked, and may have released the copy. This node adopts its copy.
        No other node has the session, and without the copy the client would be refused for ever.
        """
        arriving = self._ownership.arriving[client_id]
        if self._members.is_removed(arriving.node):
            return (yield from self._settle(client_id))
        reply = yield from ask(arriving.node, Release(client_id=client_id, token=arriving.token))
        if self._ownership.arriving.get(client_id) is not arriving:
            return client_id in self._ownership.held
        if isinstance(reply, Released):
            return (yield from self._settle(client_id))
        if isinstance(reply, NotReleased):
            self._refuse(client_id)
        return False

    def overtake(self, client_id: str) -> None:
        """Note that a clean session begins here: what a procedure brings after that is void."""
        if client_id in self.busy:
            self.busy[client_id] = True

    def finish_alone(self, client_id: str) -> Procedure[None]:
        """Finish a copy (see `finish`), unless another procedure runs for the id."""
        if client_id in self._ownership.arriving:
            yield from self.alone(client_id, self.finish(client_id))

    def adopt(self, client_id: str) -> bool:
        """Open a released copy; return False if a clean session has replaced it meanwhile."""
        own = self._replicator.own.get(client_id)
        arriving = self._ownership.arriving[client_id]
        is_clean = own is not None and not own.persistent and own.replaces >= arriving.incarnation
        if is_clean or arriving.is_void:
            self._refuse(client_id)
            return False
        owned = self._ownership.adopt(client_id)
        self._replicator.forget(client_id)
        self._register(client_id, owned)
        return True

    def merge_absent_sites(self, client_id: str) -> Procedure[None]:
        """
        Ask the sites that were away when a session began, and merge the sessions that they hold.
        """
        owned = self._ownership.held[client_id]
        search = SessionSearch(client_id, is_merging=True)
        sites = tuple(site for site in owned.unasked if site in self._members.sites())
        decisions = yield from self.lookups.ask_keepers(search, sites)
        found = [
            decision for decision in decisions.values() if isinstance(decision, DirectoryEntry)
        ]
        for entry in found:
            if entry.node != self._members.name:
                yield from self.alone(client_id, self._fetch(search, entry.node, entry.incarnation))
        now = self._ownership.held.get(client_id)
        if now is not None:
            asked = {site for site in sites if self.lookups.has_no_other(decisions[site])}
            left = tuple(s for s in now.unasked if s in sites and s not in asked)
            if left != now.unasked:
                self._ownership.store(client_id, attrs.evolve(now, unasked=left))

    # internal: one attempt

    def _refuse(self, client_id: str) -> None:
        """
        Delete a void copy, and tell the keepers that no session came of it.

        A list names the ids of copies, and keepers retain for that what they know of an earlier
        session here. A second copy may have the same incarnation, and is not to be denied.
        """
        arriving = self._ownership.arriving[client_id]
        self._ownership.refuse(client_id)
        self._replicator.withdraw(client_id, arriving.incarnation - 1)

    def alone(self, client_id: str, procedure: Procedure[T]) -> Procedure[T | None]:
        """
        Run the procedure as the only one of the id; return None without running it if another runs.
        """
        if client_id in self.busy:
            procedure.close()
            return None
        self.busy[client_id] = False
        try:
            return (yield from procedure)
        finally:
            del self.busy[client_id]

    def _attempt(self, search: SessionSearch) -> Procedure[SessionFound | None]:
        client_id = search.client_id
        if client_id in self._ownership.arriving:
            arriving = self._ownership.arriving[client_id]
            search.generation = max(search.generation, arriving.incarnation)
            if (yield from self.finish(client_id)):
                return SessionFound(present=True)
            if client_id in self._ownership.arriving:
                search.reason = f"node {arriving.node} does not say whether it gave the session up"
                return None
        if client_id in self._ownership.held:
            return SessionFound(present=True)
        gone = self._ownership.tombstone(client_id)
        if gone is not None:
            search.generation = max(search.generation, gone.incarnation)
            if gone.incarnation > search.void.get(gone.node, 0):
                return (yield from self._fetch(search, gone.node, gone.incarnation))
        decision = yield from self.lookups.find_here(search)
        if isinstance(decision, NoSession):
            found = yield from self.lookups.find_elsewhere(search)
            if found is None:
                return (yield from self._claim(search))
            decision = found
        if isinstance(decision, DirectoryEntry):
            return (yield from self._fetch(search, decision.node, decision.incarnation))
        search.reason = "too few of the nodes that keep the client directory can be asked"
        return None

    # internal: a session that is somewhere

    def _fetch(
        self, search: SessionSearch, node: str, incarnation: int
    ) -> Procedure[SessionFound | None]:
        client_id = search.client_id
        trail: dict[str, int] = {}
        for _ in range(HOPS):
            trail[node] = incarnation
            search.generation = max(search.generation, incarnation)
            if node == self._members.name:
                # The entry names this node without the session: an earlier life of it, or a session
                # just gone.
                break
            held = self._ownership.held.get(client_id)
            if search.is_merging and (held is None or client_id in self._ownership.frozen):
                return None
            if client_id in self._ownership.arriving:
                return None  # a second copy would overwrite the first
            if self._now() >= search.until:
                # Each node of a long trail may be slow: the client would wait for all of them.
                search.reason = f"the nodes that had the session take too long ({node})"
                return None
            holds = 0 if held is None else held.incarnation
            take = Take(client_id=client_id, incarnation=incarnation, holds=holds)
            reply = yield from self.ask_holder(node, take)
            match reply:
                case Taken():
                    return (yield from self._copy_session(search, node, reply))
                case MovedTo() if reply.incarnation > incarnation:
                    node, incarnation = reply.node, reply.incarnation
                case NotHeld() | MovedTo():
                    break
                case Busy():
                    search.reason = f"the session is on its way between nodes ({node})"
                    return None
                case _:
                    search.reason = f"node {node}, which holds the session, cannot be reached"
                    return None
        # The trail ended: every entry on it is void.
        for name, until in trail.items():
            search.void[name] = max(search.void.get(name, 0), until)
        search.go_on = True
        return None

    def _copy_session(
        self, search: SessionSearch, node: str, taken: Taken
    ) -> Procedure[SessionFound | None]:
        client_id = search.client_id
        if search.is_merging and client_id not in self._ownership.held:
            return None  # the session left while the copy was in transit, so the copy is void
        if self.busy[client_id]:
            return None  # the session would outlive the clean one: no discard ends it here
        self._ownership.store_copy(client_id, node, taken)
        yield AwaitDurable()
        is_here = yield from self.finish(client_id)
        return SessionFound(present=True) if is_here else None

    def _settle(self, client_id: str) -> Procedure[bool]:
        is_here = self.adopt(client_id)
        yield AwaitDurable()
        return is_here and client_id in self._ownership.held

    # internal: a session that is nowhere

    def _claim_alone(self, search: SessionSearch) -> SessionFound | None:
        """
        Look up and claim without asking another node; None: the steps of the module are needed.
        """
        members, client_id = self._members, search.client_id
        if not members.is_only or client_id in self.busy:
            return None
        if (
            client_id in self._ownership.arriving
            or self._ownership.tombstone(client_id) is not None
        ):
            return None
        known = self._replica.find(client_id)
        if not known.settled or (known.entry is not None and known.entry.persistent):
            return None
        search.generation = known.generation
        entry = self._entry(search)
        if self._replica.entries.claim(entry) is not None:
            return None
        return self._begin(search, entry.incarnation)

    def _claim(self, search: SessionSearch) -> Procedure[SessionFound | None]:
        members, client_id = self._members, search.client_id
        entry = self._entry(search)
        keepers = members.keepers(client_id)
        needed = self.lookups.needed(keepers)
        stands: set[str] = set()

        def take(name: str, reply: Reply | None) -> bool:
            if not isinstance(reply, Claimed):
                return False
            if reply.conflict is None:
                stands.add(name)
                return len(stands) >= needed
            search.generation = max(search.generation, reply.conflict.generation)
            return True

        request = Claim(view=members.view, entry=entry)
        search.claimed = entry.incarnation
        self.claims[client_id] = entry
        try:
            yield SendRequest(calls=tuple((name, request) for name in keepers), take=take)
            is_mine = self.claims.get(client_id) is entry and members.view == request.view
            is_mine = is_mine and search.is_wanted()
        finally:
            if self.claims.get(client_id) is entry:
                del self.claims[client_id]
        if not is_mine or len(stands) < needed:
            search.reason = "the nodes that keep the client directory do not agree yet"
            return None
        if search.clean:
            told = Supersede(entries=(entry,))
            self._spawn(notify(tuple((other.node, told) for other in search.clean)))
        return self._begin(search, entry.incarnation)

    def _entry(self, search: SessionSearch) -> DirectoryEntry:
        """
        Return the entry with which a new session would begin here.

        Its incarnation was not claimed before: a late end of the earlier claim would end it, too.
        """
        ended = max(search.claimed, self._replicator.ending(search.client_id))
        return DirectoryEntry(
            client_id=search.client_id,
            node=self._members.name,
            incarnation=max(search.generation, ended) + 1,
            persistent=True,
        )

    def _begin(self, search: SessionSearch, incarnation: int) -> SessionFound | None:
        """Begin the session; None: this node, a keeper, knows a clean one that ends it at once."""
        # A site that joined during the search was not asked.
        unasked = search.unasked | (set(self._members.sites()) - set(search.sites))
        owned = OwnedSession(incarnation=incarnation, unasked=tuple(sorted(unasked)))
        self._ownership.store(search.client_id, owned)
        self._replicator.forget(search.client_id)
        self._register(search.client_id, owned)
        if search.client_id not in self._ownership.held:
            search.reason = "a clean session of the client began at another node"
            return None
        return SessionFound(present=False)

    def _register(self, client_id: str, owned: OwnedSession) -> None:
        known = self._replicator.own.get(client_id)
        entry = DirectoryEntry(
            client_id=client_id,
            node=self._members.name,
            incarnation=owned.incarnation,
            persistent=True,
            testament=None if known is None or not known.persistent else known.testament,
        )
        self._replicator.set(entry)
