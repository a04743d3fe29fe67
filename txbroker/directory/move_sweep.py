"""
Moves whose session no longer exists: the node discards the state that it retains for them.

The new holder of a session notifies the earlier holders when they may discard that state. Three
holders notify no node. One ended the session, one was removed, and one was away for longer than
sessions live. The sweep finds the first by a read of the directory, which names no session of the
id. The sweep finds the last by the age of the move.

A removed holder may have given the session to another node before. That node asks for the state as
soon as it can. So the state stays while the directory names a session whose holder does not answer
this node. A holder that answers at two sweeps, and has not asked in between, needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from txbroker.directory.directory_parts import DirectoryParts
from txbroker.directory.effects import Procedure, SendRequest
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.quorum_read import SessionMayExist
from txbroker.directory.requests import Ping, Reply
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
        self._unwanted: set[Move] = set()

    def due(self) -> Iterator[tuple[tuple[str, ...], Procedure[None]]]:
        """
        Yield the procedures to run, each with a key.

        A move is examined from its second sweep on, a move to a removed node at its first one.
        """
        if not self._open and self._now() >= self._next:
            self._next = self._now() + EVERY
            self._forget_old()
            moves = dict.fromkeys(self._host.moves())
            moves.update(((one.token, id_), None) for id_, one in self._ownership.tombstones())
            self._open = [move for move in moves if move in self._known or self._is_lost(move)]
            self._known = set(moves)
            self._unwanted &= self._known
        for token, client_id in self._open[:AT_ONCE]:
            yield ("sweep", client_id, token.hex()), self._examine((token, client_id))
        del self._open[:AT_ONCE]

    def _forget_old(self) -> None:
        for client_id, one in list(self._ownership.tombstones()):
            if self._is_old(one.since):
                self._let_go((one.token, client_id))

    def _examine(self, move: Move) -> Procedure[None]:
        sites = (self._members.site, *self._members.sites())
        search = SessionSearch(move[1])
        found = (yield from self._takeovers.lookups.ask_keepers(search, sites)).values()
        holders = {one.node for one in found if isinstance(one, DirectoryEntry)}
        was_unwanted = move in self._unwanted
        self._unwanted.discard(move)
        if any(isinstance(one, SessionMayExist) for one in found):
            return
        if not holders:
            self._let_go(move)
        elif self._is_lost(move) and (yield from self._all_answer(holders)):
            if was_unwanted and self._is_lost(move):
                self._let_go(move)
            elif move in self._known:
                self._unwanted.add(move)

    def _is_lost(self, move: Move) -> bool:
        """True if the session's next holder was removed, and no later holder has asked for it."""
        taker = self._ownership.unconfirmed_taker(move[1], move[0])
        return taker is not None and self._members.get(taker) is None

    def _all_answer(self, nodes: set[str]) -> Procedure[bool]:
        heard: set[str] = set()

        def take(name: str, reply: Reply | None) -> bool:
            if reply is not None:
                heard.add(name)
            return heard == nodes

        yield SendRequest(calls=tuple((name, Ping()) for name in nodes), take=take)
        return heard == nodes
