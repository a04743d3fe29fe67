"""
Moves whose session no longer exists: the node discards the state that it retains for them.

The new holder of a session notifies the earlier holders when they may discard that state. Three
holders notify no node. One ended the session, one was removed, and one was away for longer than
sessions live. The sweep finds the first by a read of the directory, which names no session of the
id. The sweep finds the others by the members and the age of the move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from txbroker.directory.directory_parts import DirectoryParts
from txbroker.directory.effects import Procedure
from txbroker.directory.quorum_read import NoSession
from txbroker.directory.session_lookups import SessionSearch
from txbroker.directory.session_takeover import SessionTakeovers

EVERY = 20.0
"""Seconds between two sweeps of all moves."""

AT_ONCE = 50
"""Moves that one tick examines."""

Move = tuple[bytes, str]
"""The token of a move, and the client id."""


class MoveSweep:
    """
    The moves from one node for which its `host` or its `holdings` retain state.

    `let_go` discards that state. `is_old` gets a reading of the node's lived time, in microseconds.
    The call returns True if sessions of that time have expired.
    """

    def __init__(
        self,
        parts: DirectoryParts,
        takeovers: SessionTakeovers,
        *,
        let_go: Callable[[Move], None],
        is_old: Callable[[int], bool],
    ) -> None:
        self._members = parts.members
        self._takeovers = takeovers
        self._ownership = parts.ownership
        self._host = parts.host
        self._let_go = let_go
        self._is_old = is_old
        self._now = parts.now
        self._next = 0.0
        self._known: set[Move] = set()
        self._open: list[Move] = []

    def due(self) -> Iterator[tuple[tuple[str, ...], Procedure[None]]]:
        """
        Yield the procedures to run, each with a key; a move is examined from its second sweep on.
        """
        if not self._open and self._now() >= self._next:
            self._next = self._now() + EVERY
            self._forget_lost()
            moves = dict.fromkeys(self._host.moves())
            moves.update(((one.token, id_), None) for id_, one in self._ownership.tombstones())
            self._open = [move for move in moves if move in self._known]
            self._known = set(moves)
        for token, client_id in self._open[:AT_ONCE]:
            yield ("sweep", client_id, token.hex()), self._examine((token, client_id))
        del self._open[:AT_ONCE]

    def _forget_lost(self) -> None:
        for client_id, one in list(self._ownership.tombstones()):
            if self._members.get(one.node) is None or self._is_old(one.since):
                self._let_go((one.token, client_id))

    def _examine(self, move: Move) -> Procedure[None]:
        sites = (self._members.site, *self._members.sites())
        decisions = yield from self._takeovers.lookups.ask_keepers(SessionSearch(move[1]), sites)
        if all(isinstance(decision, NoSession) for decision in decisions.values()):
            self._let_go(move)
