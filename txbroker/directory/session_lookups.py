"""
Asking the keepers of a client id which node holds its session.

A site's keepers are asked at once; a majority of them decides for the site (`QuorumRead`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from txbroker.directory.directory_parts import DirectoryParts
from txbroker.directory.effects import Procedure, SendRequest
from txbroker.directory.entry import DirectoryEntry, Order
from txbroker.directory.quorum_read import Decision, NoSession, QuorumRead, SessionMayExist
from txbroker.directory.rendezvous_hash import majority
from txbroker.directory.requests import (
    Answers,
    Reply,
)
from txbroker.directory.requests import Lookup as LookupRequest


@attrs.define(slots=True, eq=False)
class SessionSearch:
    """
    The state of one search for the session of `client_id`.

    - `void` and `is_of_all`: as in `QuorumRead`.
    - `generation`: the greatest generation that the search has found.
    - `claimed`: the generation of the last claim; 0: none.
    - `closed`: clean sessions that have ended.
    - `silent`: holders that did not answer, each with the incarnation that the directory names.
    - `sites`, `unasked`: other sites that were asked, and those of them that did not answer.
    - `is_overtaken`: the client connected elsewhere since.
    - `until`: the time at which the search follows no further trail.
    """

    client_id: str
    void: dict[str, int] = attrs.Factory(dict)
    generation: int = 0
    claimed: int = 0
    closed: set[Order] = attrs.Factory(set)
    silent: dict[str, int] = attrs.Factory(dict)
    sites: tuple[str, ...] = ()
    unasked: set[str] = attrs.Factory(set)
    clean: list[DirectoryEntry] = attrs.Factory(list)
    reason: str = ""
    is_wanted: Callable[[], bool] = lambda: True
    is_merging: bool = False
    is_of_all: bool = False
    go_on: bool = False
    is_overtaken: bool = False
    until: float = math.inf


class SessionLookups:
    """The questions of one node to keepers."""

    def __init__(self, parts: DirectoryParts) -> None:
        self._members = parts.members
        self._reach = parts.reach

    def ask_keepers(
        self, search: SessionSearch, sites: tuple[str, ...]
    ) -> Procedure[dict[str, Decision]]:
        """Ask the keepers of all these sites at once for the session's holder."""
        members, client_id = self._members, search.client_id
        keepers = {site: members.keepers(client_id, site) for site in sites}
        lookups = {
            site: QuorumRead(names, search.void, self.needed(names), is_of_all=search.is_of_all)
            for site, names in keepers.items()
        }
        site_of = {name: site for site in sites for name in keepers[site]}
        open_sites = set(sites)

        def take(name: str, reply: Reply | None) -> bool:
            answer = reply.answers[0] if isinstance(reply, Answers) else None
            if lookups[site_of[name]].add_answer(name, answer):
                open_sites.discard(site_of[name])
            return not open_sites

        calls = tuple(
            (name, LookupRequest(view=members.view_of(site), client_ids=(client_id,)))
            for name, site in site_of.items()
        )
        if calls:
            yield SendRequest(calls=calls, take=take)
        for lookup in lookups.values():
            search.generation = max(search.generation, lookup.generation)
        return {site: lookup.decide() for site, lookup in lookups.items()}

    def find_here(self, search: SessionSearch) -> Procedure[Decision]:
        """Ask the keepers of this site for the session's holder."""
        decisions = yield from self.ask_keepers(search, (self._members.site,))
        decision = decisions[self._members.site]
        if isinstance(decision, NoSession) and decision.clean is not None:
            search.generation = max(search.generation, decision.clean.generation)
        return decision

    def find_elsewhere(self, search: SessionSearch) -> Procedure[DirectoryEntry | None]:
        """Ask the keepers of all other sites; return the greatest entry of a kept session."""
        sites = search.sites = self._members.sites()
        search.unasked, search.clean = set(), []
        if not sites:
            return None
        decisions = yield from self.ask_keepers(search, sites)
        best: DirectoryEntry | None = None
        for site, decision in decisions.items():
            if isinstance(decision, DirectoryEntry):
                best = decision if best is None or decision.order > best.order else best
                search.unasked.add(site)
            elif isinstance(decision, SessionMayExist):
                search.unasked.add(site)
            elif decision.clean is not None:
                search.clean.append(decision.clean)
        return best

    def has_no_other(self, decision: Decision) -> bool:
        """True if a site's keepers know no session of the client, or the session at this node."""
        is_here = isinstance(decision, DirectoryEntry) and decision.node == self._members.name
        return is_here or isinstance(decision, NoSession)

    def is_cut_off(self, client_id: str) -> bool:
        """True if too many keepers of the id are known to be away for a majority."""
        keepers = self._members.keepers(client_id)
        heard = [name for name in keepers if not self._reach.is_away(name)]
        return len(heard) < majority(len(keepers))

    def needed(self, keepers: tuple[str, ...]) -> int:
        """
        Return how many keepers of an id must agree: a majority.

        In a site of two, this node is enough if its peer is known to be away (protocol rule 19).
        """
        me = self._members.name
        if len(keepers) == 2 and me in keepers:
            (other,) = (name for name in keepers if name != me)
            if self._members.is_settled and self._reach.is_away(other):
                return 1
        return majority(len(keepers))
