"""
The evacuation of a node that retires: its kept sessions move to another node.

The heir fetches the sessions one by one, as if their clients had connected there. Thus a cut or a
crash leaves each session at one of the two nodes. The node may leave when no node will ask it any
more. Three conditions hold then:

- the new holders use their copies;
- the keepers know where the sessions are;
- owners retain for the new holders the records that the sessions wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from txbroker.directory.directory_ports import SessionHost
from txbroker.directory.effects import Pause, Procedure, SendRequest
from txbroker.directory.members import Members
from txbroker.directory.requests import Entrust
from txbroker.directory.session_ownership import SessionOwnership

AT_ONCE = 50
"""Sessions that one step offers."""

RETRY = 0.1
"""Seconds between two steps."""

PATIENCE = 20.0
"""Seconds in which at least one more session must leave."""


class SessionEvacuation:
    """The procedure of the module; `now` in seconds."""

    def __init__(
        self,
        members: Members,
        ownership: SessionOwnership,
        host: SessionHost,
        now: Callable[[], float],
    ) -> None:
        self._members = members
        self._ownership = ownership
        self._host = host
        self._now = now

    def evacuate(self, heir: str, is_wanted: Callable[[], bool]) -> Procedure[str]:
        """
        Move all sessions to the node `heir`; return "", or one line that names what cannot move.

        `is_wanted` returns False: the operator has cancelled the retirement.
        """
        fewest, since = 1 << 62, self._now()
        while is_wanted() and (left := self._remaining()):
            if len(left) < fewest:
                fewest, since = len(left), self._now()
            if self._now() - since >= PATIENCE:
                more = f" and {len(left) - 1} more" if len(left) > 1 else ""
                name = next(iter(left))
                if name not in self._ownership.held:
                    reason = "is given, and what it waits for is not confirmed by its zones' nodes"
                    return f"session {name!r}{more} {reason} (`txbroker tree`)"
                return (
                    f"session {name!r}{more} cannot be given to node {heir!r}; it may have no room"
                    " (`limits.sessions`)"
                )
            yield from self._offer(heir)
            yield Pause(seconds=RETRY)
        return ""

    def _offer(self, heir: str) -> Procedure[None]:
        held = islice(self._ownership.held.items(), AT_ONCE)
        calls = tuple(
            (heir, Entrust(client_id=client_id, incarnation=owned.incarnation))
            for client_id, owned in held
        )
        if calls:
            yield SendRequest(calls=calls, take=lambda _name, _reply: False)

    def _remaining(self) -> dict[str, None]:
        """Return the client ids for which other nodes still need this node."""
        ownership = self._ownership
        left = dict.fromkeys([*ownership.held, *ownership.arriving])
        for client_id in ownership.tombstone_ids:
            if ownership.is_awaited(client_id, self._members.get):
                left[client_id] = None
        left |= {client_id: None for _, client_id in self._host.moves()}
        return left
