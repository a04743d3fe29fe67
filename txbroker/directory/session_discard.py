"""
A client with clean session 1 connects: what its id has elsewhere ends before its CONNACK.

The steps:

1. ask the keepers of the id, at all sites. What they name, and a tombstone here, begins a trail;
2. follow it to the holder, which ends the session (or the connection) and says so when that is
   durable. So the end comes behind every step that the session took, whoever has heard of it;
3. ask again, until a majority of the site's keepers knows nothing more;
4. the clean session begins; a majority knows it before CONNACK, so whoever connects the client from
   then on finds it, and counts what begins later above all that has ended.

What cannot be asked for `wait` seconds, or is known to be away, or unknown as this node has never
joined, is remembered, durably, and done later: by then the client may have been elsewhere, so a
holder keeps a session that is newer than the clean one. How old that one is the machine's clock
tells, also to a later process of the node: a clock that stands while the machine sleeps would make
it too young, and end a newer session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from txbroker.directory.connected_clients import ClearedAbove, ConnectedClients
from txbroker.directory.directory_ports import DurableTable, SessionHost
from txbroker.directory.effects import AwaitDurable, Pause, Procedure, ask
from txbroker.directory.entry import DirectoryEntry, pack, unpack
from txbroker.directory.entry_replicator import EntryReplicator
from txbroker.directory.members import Members
from txbroker.directory.quorum_read import Decision, NoSession, SessionMayExist
from txbroker.directory.requests import (
    Busy,
    Discard,
    Discarded,
    Kept,
    MovedTo,
    NotHeld,
    Reply,
)
from txbroker.directory.session_ownership import OwnedSession, SessionOwnership
from txbroker.directory.session_takeover import HOPS, RETRY, SessionSearch, SessionTakeovers
from txbroker.model.machine_time import MachineTime, moment_from

LIMIT = 10_000
"""Ids whose sessions have still to be ended elsewhere; beyond that the oldest are forgotten."""

AT_ONCE = 20
"""Of these, how many are tried again in one tick."""

LOOK = 0.05
"""Seconds between two looks whether the keepers know, while none of them answers."""

SURE = 10.0
"""
Seconds between two looks that find nothing more to end: who was cut off hears of nodes that joined
meanwhile only then.
"""

UNKNOWN = 1 << 53
"""An age above that of any session, in milliseconds."""

ANY = 1 << 53
"""Above every incarnation: whatever was there when the client connected is older."""


@attrs.frozen(kw_only=True)
class _Due:
    """
    To be ended: kept sessions up to `generation`, or away since `began` (None: not known).

    `holders` had one, and could not be asked, each with its incarnation. The keepers may have
    forgotten that by now: for them the clean session counts above it.
    """

    generation: int
    began: MachineTime | None = None
    holders: tuple[tuple[str, int], ...] = ()

    @property
    def record(self) -> bytes:
        """For the table; `_due_from` is the mirror."""
        began = () if self.began is None else self.began.fields
        return pack([self.generation, list(began), [list(one) for one in self.holders]])


class SessionDiscards:
    """The procedures of one node; `table` keeps what is still to be ended elsewhere."""

    def __init__(
        self,
        *,
        members: Members,
        holdings: SessionOwnership,
        registrar: EntryReplicator,
        arrivals: SessionTakeovers,
        presence: ConnectedClients,
        host: SessionHost,
        table: DurableTable,
        wait: float,
        now: Callable[[], float],
        moment: Callable[[], MachineTime],
    ) -> None:
        self._members = members
        self._holdings = holdings
        self._registrar = registrar
        self._arrivals = arrivals
        self._presence = presence
        self._host = host
        self._table = table
        self._wait = wait
        self._now = now
        self._moment = moment
        self._started = now()
        self._due: dict[str, _Due] = {}
        self._whole: dict[str, float] = {}
        for key, value in table.items():
            self._due[key.decode()] = _due_from(value)

    def __len__(self) -> int:
        return len(self._due)

    # from the edge

    def is_needed(self, client_id: str) -> bool:
        """Whether other nodes have to be asked before a clean session of that id begins."""
        members, holdings = self._members, self._holdings
        if not (members.is_only and members.is_joined):
            return True
        return client_id in holdings.arriving or holdings.tombstone(client_id) is not None

    def clear(self, client_id: str, is_wanted: Callable[[], bool]) -> Procedure[float | None]:
        """
        End what the id has elsewhere. The caller begins the clean session in the turn in which this
        returns until when it may `announce` it; None: the client has connected elsewhere since.
        `is_wanted` False: the client is gone.
        """
        search = SessionSearch(client_id, is_wanted=is_wanted, is_of_all=True)
        found: _Found | None = None
        began = self._moment()
        until = self._now() + self._wait
        raised, is_told, has_waited = 0, False, False
        while is_wanted() and not (is_told or search.is_overtaken):
            search.go_on = False
            attempt = self._attempt(search, _Due(generation=ANY, began=began))
            found = yield from self._arrivals.alone(client_id, attempt)
            if found is not None:
                raised = max(raised, found.incarnation)
                is_told = found.is_known
                if found.is_whole:
                    self._forget(client_id)
            is_vain = not self._members.is_joined or self._arrivals.is_cut_off(client_id)
            if self._now() >= until or (not search.go_on and is_vain):
                break
            if not (is_told or search.go_on or search.is_overtaken):
                has_waited = True  # so news of nodes that joined meanwhile may still be on its way
                yield Pause(seconds=RETRY)
        if search.is_overtaken:
            return None
        if not is_wanted():
            return until
        if found is None or not found.is_whole or has_waited:
            yield from self._remember(search, began)
            if not is_wanted():
                return until  # nobody takes out what is put there for a client that is gone
        is_any = search.void or search.closed or not is_told
        self._presence.cleared[client_id] = ClearedAbove(
            generation=search.generation if is_any else 0, incarnation=raised
        )
        return until

    def announce(
        self, client_id: str, until: float, is_wanted: Callable[[], bool]
    ) -> Procedure[None]:
        """Return when a majority of the keepers knows the clean session, or none can be told."""
        registrar = self._registrar

        def is_over() -> bool:
            return registrar.is_told_to_most(client_id) or registrar.is_deaf(client_id)

        while is_wanted() and not is_over() and self._now() < until:
            yield Pause(seconds=LOOK, until=is_over)

    # from the directory

    def start(self) -> None:
        """Clients come from now on: who has left since, left in the life of this process."""
        self._started = self._now()

    @property
    def due(self) -> Iterable[str]:
        """Ids that are to be tried again now, others the next time."""
        ids = list(self._due)[:AT_ONCE]
        for client_id in ids:
            self._due[client_id] = self._due.pop(client_id)
        return ids

    def is_due(self, client_id: str) -> bool:
        """Whether something of the id is still to be ended elsewhere."""
        return client_id in self._due

    def finish(self, client_id: str) -> Procedure[None]:
        """Try again to end what was there before a clean session began here."""
        search = SessionSearch(client_id, is_of_all=True)
        for _ in range(HOPS):
            due = self._due.get(client_id)
            if due is None:
                return
            search.go_on = False
            found = yield from self._arrivals.alone(client_id, self._attempt(search, due))
            if not search.go_on:
                # Not what came before: a holder that is asked each time would be asked for ever.
                if found is not None:
                    self._conclude(client_id, found)
                return
        self._whole.pop(client_id, None)

    def discard(self, source: str, request: Discard) -> Reply:
        """A client of ours began anew at `source`."""
        client_id, holdings = request.client_id, self._holdings
        arriving = holdings.arriving.get(client_id)
        if arriving is not None and request.incarnation < arriving.incarnation:
            return Busy()
        if arriving is not None:
            # Only after the earlier holder has released it can anybody know it to be here.
            self._arrivals.adopt(client_id)
        elif client_id in self._arrivals.busy and source < self._members.name:
            return Busy()
        claim = self._arrivals.claims.pop(client_id, None)
        if claim is not None:
            return NotHeld(incarnation=claim.incarnation)
        holding = holdings.held.get(client_id)
        if holding is None:
            return self._discard_connection(request)
        if not self._is_older(request, holding):
            return Kept()
        if holding.incarnation > request.incarnation:
            # A question that comes late must not end a session that nobody asked about.
            return MovedTo(node=self._members.name, incarnation=holding.incarnation)
        holdings.drop(client_id)
        self._registrar.drop(client_id)
        self._host.discard(client_id, is_moved=False)
        return Discarded(incarnation=holding.incarnation)

    # internal

    def _discard_connection(self, request: Discard) -> Reply:
        client_id = request.client_id
        own = self._registrar.own.get(client_id)
        since = self._presence.seconds_here(client_id)
        if own is not None and since is not None and since * 1000 < request.age:
            return Kept()
        if own is not None:
            self._registrar.drop(client_id)
            if not own.persistent:
                self._host.close(client_id)
            return Discarded(incarnation=own.generation)
        gone = self._holdings.tombstone(client_id)
        if gone is None:
            return NotHeld()
        return MovedTo(node=gone.node, incarnation=gone.incarnation)

    def _is_older(self, request: Discard, holding: OwnedSession) -> bool:
        """
        True if the client connected to the session before it began anew, for all that can be known.

        Without the time of that CONNECT, the time when the client left tells. A process that was
        killed may not have noted that: unless it was this one, it counts against `through` only.
        """
        since = self._presence.seconds_here(request.client_id)
        if since is None and request.age < UNKNOWN and holding.since is not None:
            age = holding.since.age(self._moment())
            since = None if age is None else age / 1000
        if since is None:
            away = self._host.idle(request.client_id)
            has_left = request.age < UNKNOWN and 0 < away < self._now() - self._started
            if has_left or holding.incarnation > request.through:
                since = away
        return since is None or since * 1000 >= request.age

    def _attempt(self, search: SessionSearch, due: _Due) -> Procedure[_Found]:
        """Look everywhere once, and follow what is found first."""
        members = self._members
        known = self._known_here(search)
        if known is not None:
            yield from self._follow(search, *known, due)
            return _Found()
        known = self._known_then(search, due)
        if known is not None:
            yield from self._follow(search, *known, due)
            search.go_on = True  # others may be there
            return _Found()
        sites = (members.site, *members.sites())
        decisions = yield from self._arrivals.look_at(search, sites)
        for decision in decisions.values():
            if isinstance(decision, DirectoryEntry):
                yield from self._follow(search, decision.node, decision.incarnation, due)
                return _Found()
            clean = None if isinstance(decision, SessionMayExist) else decision.clean
            # What is done later does not concern the connections of then.
            is_now = due.generation == ANY
            if is_now and clean is not None and self._is_open(search, clean):
                yield from self._close(search, clean, due)
                return _Found(incarnation=clean.incarnation)
        is_known = not isinstance(decisions[members.site], SessionMayExist)
        is_whole = all(self._is_over(site, one) for site, one in decisions.items())
        return _Found(is_known=is_known, is_whole=is_whole and not search.silent)

    def _is_over(self, site: str, decision: Decision) -> bool:
        """
        True if nothing of the id is left at a site. The other node of two may hold a session; at
        another site, which is not told of the clean one, it may be offered to the one that ended.
        """
        if not isinstance(decision, NoSession) or decision.is_sole:
            return False
        return site == self._members.site or not decision.is_named

    def _known_here(self, search: SessionSearch) -> tuple[str, int] | None:
        """Where a session went, or is on its way from, as this node alone may know."""
        gone = self._holdings.tombstone(search.client_id)
        if gone is not None and gone.incarnation > search.void.get(gone.node, 0):
            return gone.node, gone.incarnation
        arriving = self._holdings.arriving.get(search.client_id)
        if arriving is not None and arriving.incarnation > search.void.get(arriving.node, 0):
            return arriving.node, arriving.incarnation
        return None

    def _known_then(self, search: SessionSearch, due: _Due) -> tuple[str, int] | None:
        """One that could not be asked when the clean session began, and is not asked yet."""
        for node, incarnation in due.holders:
            is_asked = node in search.silent or incarnation <= search.void.get(node, 0)
            if not is_asked and self._members.get(node) is not None:
                return node, incarnation
        return None

    def _conclude(self, client_id: str, found: _Found) -> None:
        """Forget what is to be ended when it is sure that nothing is left."""
        if not found.is_whole:
            self._whole.pop(client_id, None)
        elif self._now() - self._whole.setdefault(client_id, self._now()) >= SURE:
            self._forget(client_id)

    def _is_open(self, search: SessionSearch, clean: DirectoryEntry) -> bool:
        return clean.node != self._members.name and clean.order not in search.closed

    def _follow(
        self, search: SessionSearch, node: str, incarnation: int, due: _Due
    ) -> Procedure[None]:
        """Follow a kept session to its holder."""
        trail: dict[str, int] = {}
        for _ in range(HOPS):
            trail[node] = incarnation
            if node == self._members.name:
                break  # what is here the clean session ends itself
            if not search.is_wanted():
                return  # the client may be elsewhere by now, with a session that is newer
            request = self._request(search.client_id, incarnation, due)
            reply = yield from self._arrivals.ask_holder(node, request)
            if isinstance(reply, Discarded | MovedTo | NotHeld):
                search.silent.pop(node, None)
            match reply:
                case Discarded():
                    trail[node] = max(incarnation, reply.incarnation)
                    self._whole.pop(search.client_id, None)
                    break
                case MovedTo() if reply.incarnation > incarnation:
                    node, incarnation = reply.node, reply.incarnation
                case NotHeld() | MovedTo():
                    break
                case Kept():
                    self._forget(search.client_id)
                    search.is_overtaken = True
                    return
                case _:
                    search.silent[node] = incarnation
                    return
        for name, until in trail.items():
            search.void[name] = max(search.void.get(name, 0), until)
            search.generation = max(search.generation, until)
        search.go_on = True

    def _close(self, search: SessionSearch, clean: DirectoryEntry, due: _Due) -> Procedure[None]:
        """Close a connection of the id at another node."""
        if not search.is_wanted():
            return
        request = self._request(search.client_id, clean.generation, due)
        reply = yield from ask(clean.node, request)
        if isinstance(reply, Discarded | NotHeld | MovedTo):
            search.closed.add(clean.order)
            search.go_on = True
        search.is_overtaken = isinstance(reply, Kept)
        if isinstance(reply, Discarded):
            search.generation = max(search.generation, reply.incarnation)

    def _request(self, client_id: str, incarnation: int, due: _Due) -> Discard:
        age = None if due.began is None else due.began.age(self._moment())
        return Discard(
            client_id=client_id,
            incarnation=incarnation,
            through=due.generation,
            age=UNKNOWN if age is None else age,
        )

    def _remember(self, search: SessionSearch, began: MachineTime) -> Procedure[None]:
        client_id = search.client_id
        self._due.pop(client_id, None)
        self._whole.pop(client_id, None)
        due = _Due(generation=search.generation, began=began, holders=tuple(search.silent.items()))
        self._due[client_id] = due
        self._table.put(client_id.encode(), due.record)
        while len(self._due) > LIMIT:
            self._forget(next(iter(self._due)))
        yield AwaitDurable()

    def _forget(self, client_id: str) -> None:
        self._whole.pop(client_id, None)
        if self._due.pop(client_id, None) is not None:
            self._table.delete(client_id.encode())


def _due_from(record: bytes) -> _Due:
    """Of an earlier version, too, which noted a generation alone."""
    (generation, *rest), _ = unpack(record)
    began, holders = rest or ((), ())
    return _Due(
        generation=generation,
        began=moment_from(began),
        holders=tuple((node, incarnation) for node, incarnation in holders),
    )


@attrs.frozen(kw_only=True)
class _Found:
    """
    `is_known`: the site has nothing more of the id, `is_whole`: nor has any other. `incarnation` of
    a clean session that was closed.
    """

    is_known: bool = False
    is_whole: bool = False
    incarnation: int = 0
