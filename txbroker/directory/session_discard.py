"""
CONNECT with clean session 1: the id's sessions elsewhere end before CONNACK (protocol rule 18).

Theory of operation. The discard decides when a clean session may begin. Its steps are:

1. Ask the keepers of the id, at all sites. An entry of theirs, or a tombstone here, begins a trail.
2. Follow the trail to the holder, which ends the session or the connection, and answers when the
   end is durable. So the end follows every step of the session, whatever node knows of it.
3. Ask again, until a majority of the site's keepers knows no further session.
4. Begin the clean session; a majority knows it before CONNACK. So a later CONNECT elsewhere finds
   the clean session, and a later session counts above all that have ended.

Some nodes do not answer within `wait` seconds, or are known to be away. A node that has never
joined knows no other node to ask. In these cases the discard is stored durably, and done later. By
then the client may have been elsewhere. So a holder keeps a session that is newer than the clean
one (`discard_answers.py`).

The machine's clock tells the age of the clean session, also to a later process of the node. A clock
that stands while the machine sleeps would make the clean session too young, and end a newer
session.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import attrs

from txbroker.directory.connected_clients import ClearedAbove, ConnectedClients
from txbroker.directory.directory_parts import DirectoryParts
from txbroker.directory.directory_ports import DurableTable
from txbroker.directory.discard_answers import DiscardAnswers
from txbroker.directory.discard_record import ANY, PendingDiscard
from txbroker.directory.discard_table import PendingDiscards
from txbroker.directory.effects import AwaitDurable, Pause, Procedure, SendRequest
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.quorum_read import Decision, NoSession, SessionMayExist
from txbroker.directory.requests import (
    NONE_NAMED,
    Discarded,
    Kept,
    MaybeNewer,
    MovedTo,
    NotHeld,
    Reply,
)
from txbroker.directory.session_lookups import SessionSearch
from txbroker.directory.session_takeover import HOPS, RETRY, SessionTakeovers
from txbroker.model.machine_time import MachineTime

LOOK = 0.05
"""Seconds between two checks of the keepers' knowledge, while none of them answers."""


class SessionDiscards:
    """The discard procedures of one node; `table` has the pending discards."""

    def __init__(
        self,
        parts: DirectoryParts,
        *,
        takeovers: SessionTakeovers,
        connected: ConnectedClients,
        table: DurableTable,
        moment: Callable[[], MachineTime],
    ) -> None:
        self._members = parts.members
        self._ownership = parts.ownership
        self._replicator = parts.replicator
        self._takeovers = takeovers
        self.answers = DiscardAnswers(
            parts, takeovers=takeovers, connected=connected, moment=moment
        )
        self._connected = connected
        self.pending = PendingDiscards(table, parts.now)
        self._now = parts.now
        self._moment = moment
        self._sites = set(parts.members.sites())

    def __len__(self) -> int:
        return len(self.pending)

    # from the edge

    def is_needed(self, client_id: str) -> bool:
        """True if other nodes must be asked before a clean session of that id begins."""
        members, ownership = self._members, self._ownership
        if not (members.is_only and members.is_joined):
            return True
        return client_id in ownership.arriving or ownership.tombstone(client_id) is not None

    def clear(self, client_id: str, is_wanted: Callable[[], bool]) -> Procedure[float | None]:
        """
        End the id's sessions elsewhere; return the deadline of `announce`.

        The caller begins the clean session in the turn in which this returns. None: the client has
        connected elsewhere since. If `is_wanted` returns False, the client has disconnected.
        """
        search = SessionSearch(client_id, is_wanted=is_wanted, is_of_all=True)
        began = self._moment()
        until = search.until = self._takeovers.deadline
        raised, is_told, is_whole, has_waited = 0, False, False, False
        while is_wanted() and not (is_told or search.is_overtaken):
            search.go_on = False
            attempt = self._attempt(search, PendingDiscard(generation=ANY, began=began))
            found = yield from self._takeovers.alone(client_id, attempt)
            is_whole = found is not None and found.is_whole and not self._silent_holders(search)
            if found is not None:
                raised = max(raised, found.incarnation)
                is_told = found.is_known
            if is_whole:
                self.pending.forget(client_id)
            is_vain = not self._members.is_joined or self._takeovers.lookups.is_cut_off(client_id)
            if self._now() >= until or (not search.go_on and is_vain):
                break
            if not (is_told or search.go_on or search.is_overtaken):
                has_waited = True  # a node that joined during the wait may not be known here yet
                yield Pause(seconds=RETRY)
        if search.is_overtaken:
            return None
        if not is_wanted():
            return until
        if not is_whole or has_waited:
            yield from self._remember(search, began)
            if not is_wanted():
                return until  # `cleared` of a client that disconnected would never be removed
        else:
            done = PendingDiscard(generation=search.generation, began=began)
            self.pending.finish(client_id, done)
        is_any = search.void or search.closed or not is_told
        self._connected.cleared[client_id] = ClearedAbove(
            generation=search.generation if is_any else 0, incarnation=raised
        )
        return until

    def announce(
        self, client_id: str, until: float, is_wanted: Callable[[], bool]
    ) -> Procedure[None]:
        """Wait until a majority of the keepers knows the clean session, or most do not answer."""
        replicator = self._replicator

        def is_over() -> bool:
            return replicator.is_told_to_most(client_id) or replicator.is_deaf(client_id)

        while is_wanted() and not is_over() and self._now() < until:
            yield Pause(seconds=LOOK, until=is_over)

    # from the directory

    @property
    def due(self) -> Iterable[str]:
        """Return the ids to retry now; the next call returns others."""
        return self.pending.turn()

    def is_due(self, client_id: str) -> bool:
        """True if a discard of the id is pending."""
        return self.pending.get(client_id) is not None

    def finish(self, client_id: str, until: float = math.inf) -> Procedure[None]:
        """Retry the pending discard of an id; a client that waits for it waits `until` then."""
        search = SessionSearch(client_id, is_of_all=True, until=until)
        for _ in range(HOPS):
            due = self.pending.get(client_id)
            if due is None or self._now() >= until:
                return
            self.answers.end_older(client_id, due)
            search.go_on = False
            found = yield from self._takeovers.alone(client_id, self._attempt(search, due))
            if not search.go_on:
                # Only the last attempt counts: a holder that is asked each time would be asked for
                # ever.
                if found is not None:
                    self._conclude(search, found)
                return
        self.pending.doubt(client_id)

    def on_members(self) -> None:
        """Ask another site, heard of now, about the clean sessions of the last minute."""
        before, self._sites = self._sites, set(self._members.sites())
        if self._sites - before:
            self.pending.reopen()

    # internal

    def _attempt(self, search: SessionSearch, due: PendingDiscard) -> Procedure[_Found]:
        """Search all sites once, and follow the first trail."""
        members = self._members
        known = self._known_here(search)
        if known is not None:
            yield from self._follow(search, *known, due)
            return _Found()
        holders = self._holders_then(search, due)
        if holders:
            yield from self._ask_holders(search, holders, due)
            search.go_on = True
            return _Found()
        sites = (members.site, *members.sites())
        decisions = yield from self._takeovers.lookups.ask_keepers(search, sites)
        for decision in decisions.values():
            if isinstance(decision, DirectoryEntry):
                yield from self._follow(search, decision.node, decision.incarnation, due)
                return _Found()
            clean = None if isinstance(decision, SessionMayExist) else decision.clean
            # A pending discard concerns no connection: a connection found later may be newer.
            if due.generation == ANY and clean is not None and self._is_open(search, clean):
                yield from self._close(search, clean, due)
                return _Found(incarnation=clean.incarnation)
        is_known = not isinstance(decisions[members.site], SessionMayExist)
        is_whole = not search.silent and decisions.keys() >= set(members.sites())
        is_newer_here = due.generation != ANY and search.client_id in self._ownership.held
        for site, decision in decisions.items():
            is_whole = is_whole and self._is_over(site, decision, is_newer_here)
        return _Found(is_known=is_known, is_whole=is_whole)

    def _is_over(self, site: str, decision: Decision, is_newer_here: bool) -> bool:
        """
        True if a site has no session of the id left.

        With `is_sole`, the other node of two may hold a session. Another site does not learn of the
        clean session. There, a session that counts below an ended session may still be offered to
        the ended session's node. But a site may name a newer session here for as long as it lives.
        """
        if not isinstance(decision, NoSession) or decision.is_sole:
            return False
        return site == self._members.site or is_newer_here or not decision.is_named

    def _known_here(self, search: SessionSearch) -> tuple[str, int] | None:
        """Return the holder and incarnation of a session that moved away, or arrives here."""
        gone = self._ownership.tombstone(search.client_id)
        if gone is not None and gone.incarnation > search.void.get(gone.node, 0):
            return gone.node, gone.incarnation
        arriving = self._ownership.arriving.get(search.client_id)
        if arriving is not None and arriving.incarnation > search.void.get(arriving.node, 0):
            return arriving.node, arriving.incarnation
        return None

    def _holders_then(self, search: SessionSearch, due: PendingDiscard) -> dict[str, int]:
        """
        Return the holders that did not answer when the clean session began, and were not asked
        since.

        A removed holder is lost. Any member may have a copy that the lost holder gave or released.
        """
        members, found = self._members, dict[str, int]()
        for node, incarnation in due.holders:
            names = [node]
            if members.is_removed(node):
                names = [one.name for one in members.all if one.name != members.name]
                search.void[node] = max(incarnation, search.void.get(node, 0))
            for name in names:
                is_asked = name in search.silent or incarnation <= search.void.get(name, 0)
                if not is_asked and members.get(name) is not None:
                    found[name] = max(incarnation, found.get(name, 0))
        return found

    def _ask_holders(
        self, search: SessionSearch, holders: dict[str, int], due: PendingDiscard
    ) -> Procedure[None]:
        """Ask these holders at once, and follow the trails that begin there."""
        client_id, now, trails = search.client_id, self._moment(), dict(holders)

        def take(node: str, reply: Reply | None) -> bool:
            if isinstance(reply, NotHeld):
                search.void[node] = trails.pop(node)
            elif reply is None:
                search.silent[node] = trails.pop(node)
            return False

        calls = ((node, due.request(client_id, at, now)) for node, at in holders.items())
        yield SendRequest(calls=tuple(calls), take=take)
        for node, incarnation in trails.items():
            yield from self._follow(search, node, incarnation, due)

    def _conclude(self, search: SessionSearch, found: _Found) -> None:
        """Note the result of the last search, and forget the holders that have answered."""
        client_id, due = search.client_id, self.pending.get(search.client_id)
        if due is None:
            return  # more discards than there is room for came meanwhile
        holders = tuple(self._silent_holders(search).items())
        if due.holders != holders:
            self.pending.put(client_id, attrs.evolve(due, holders=holders))
        if found.is_whole:
            self.pending.conclude(client_id)
        else:
            self.pending.doubt(client_id)

    def _is_open(self, search: SessionSearch, clean: DirectoryEntry) -> bool:
        return clean.node != self._members.name and clean.order not in search.closed

    def _follow(
        self, search: SessionSearch, node: str, incarnation: int, due: PendingDiscard
    ) -> Procedure[None]:
        """Follow a kept session to its holder."""
        trail: dict[str, int] = {}
        for _ in range(HOPS):
            trail[node] = incarnation
            if node == self._members.name:
                break  # the clean session itself ends a session here
            if not search.is_wanted():
                return  # a client that disconnected may have a newer session elsewhere
            if self._now() >= search.until:
                search.silent[node] = incarnation
                return
            if self._members.is_removed(node):
                search.silent[node] = incarnation  # a copy from there may be on its way
                break
            reply = yield from self._ask(search, node, incarnation, due)
            if isinstance(reply, Discarded | MovedTo | NotHeld):
                search.silent.pop(node, None)
            match reply:
                case Discarded():
                    trail[node] = max(incarnation, reply.incarnation)
                    self.pending.doubt(search.client_id)
                    break
                case MovedTo() if reply.incarnation > incarnation:
                    node, incarnation = reply.node, reply.incarnation
                case NotHeld() | MovedTo():
                    break
                case Kept():
                    self.pending.forget(search.client_id)
                    search.is_overtaken = True
                    return
                case _:
                    search.silent[node] = incarnation
                    return
        for name, until in trail.items():
            search.void[name] = max(search.void.get(name, 0), until)
            search.generation = max(search.generation, until)
        search.go_on = True

    def _close(
        self, search: SessionSearch, clean: DirectoryEntry, due: PendingDiscard
    ) -> Procedure[None]:
        """Close a connection of the id at another node."""
        if not search.is_wanted():
            return
        reply = yield from self._ask(search, clean.node, clean.generation, due)
        if isinstance(reply, MovedTo) and reply.incarnation > clean.generation:
            # The client has begun a kept session since, which the keepers may not know yet.
            yield from self._follow(search, reply.node, reply.incarnation, due)
        elif isinstance(reply, Discarded | NotHeld | MovedTo):
            search.closed.add(clean.order)
            search.go_on = True
        elif isinstance(reply, Kept):
            search.is_overtaken = True
        if isinstance(reply, Discarded):
            search.generation = max(search.generation, reply.incarnation)

    def _ask(
        self, search: SessionSearch, node: str, incarnation: int, due: PendingDiscard
    ) -> Procedure[Reply | None]:
        """Ask the holder to end the session; a connection that it names is the one to end."""
        connection = NONE_NAMED
        while True:
            request = due.request(search.client_id, incarnation, self._moment(), connection)
            reply = yield from self._takeovers.ask_holder(node, request)
            if not isinstance(reply, MaybeNewer) or connection != NONE_NAMED:
                return reply
            if not search.is_wanted():
                return None  # the client may have gone on to that connection
            connection = reply.connection

    def _silent_holders(self, search: SessionSearch) -> dict[str, int]:
        """
        Return the holders that have not answered, those of an earlier clean session included.

        The keepers may have forgotten the earlier ones, and the search would not find these.
        """
        due = self.pending.get(search.client_id)
        before = {} if due is None else dict(due.holders)
        silent = {n: i for n, i in before.items() if i > search.void.get(n, 0)}
        return silent | search.silent

    def _remember(self, search: SessionSearch, began: MachineTime) -> Procedure[None]:
        client_id, holders = search.client_id, self._silent_holders(search)
        earlier = self.pending.get(client_id)
        due = PendingDiscard(
            generation=max(search.generation, 0 if earlier is None else earlier.generation),
            began=began,
            holders=tuple(holders.items()),
        )
        self.pending.put(client_id, due)
        yield AwaitDurable()


@attrs.frozen(kw_only=True)
class _Found:
    """
    The result of one search.

    `is_known`: the site has no further session of the id; `is_whole`: nor has any other site.
    `incarnation`: of a clean session that was closed.
    """

    is_known: bool = False
    is_whole: bool = False
    incarnation: int = 0
