"""
Moves whose sessions are nowhere any more: what is kept for them here is let go.

The new holder of a session tells the earlier ones when nothing need be kept for it. One that has
ended the session tells nobody: it is known by then that the id has no session, or will be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from txbroker.directory.arrival import Arrivals, Search
from txbroker.directory.lookup import Nowhere
from txbroker.directory.members import Members
from txbroker.directory.ports import SessionHost
from txbroker.directory.steps import Procedure

EVERY = 20.0
"""Seconds between two looks at all moves."""

AT_ONCE = 50
"""Moves that are looked at in one tick."""


class Sweep:
    """The moves from one node that its `host` keeps something for."""

    def __init__(
        self, members: Members, arrivals: Arrivals, host: SessionHost, now: Callable[[], float]
    ) -> None:
        self._members = members
        self._arrivals = arrivals
        self._host = host
        self._now = now
        self._next = 0.0
        self._known: set[bytes] = set()
        self._open: list[tuple[bytes, str]] = []

    def due(self) -> Iterator[tuple[tuple[str, ...], Procedure[None]]]:
        """Now and then: what to look at, each with a name; moves are left alone at first."""
        if not self._open and self._now() >= self._next:
            self._next = self._now() + EVERY
            moves = list(self._host.moves())
            self._open = [move for move in moves if move[0] in self._known]
            self._known = {token for token, _ in moves}
        for token, client_id in self._open[:AT_ONCE]:
            yield ("sweep", client_id, token.hex()), self._look(token, client_id)
        del self._open[:AT_ONCE]

    def _look(self, token: bytes, client_id: str) -> Procedure[None]:
        sites = (self._members.site, *self._members.sites())
        decisions = yield from self._arrivals.look_at(Search(client_id), sites)
        if all(isinstance(decision, Nowhere) for decision in decisions.values()):
            self._host.resolved(client_id, token)
