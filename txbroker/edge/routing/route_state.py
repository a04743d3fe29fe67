"""
The states of a route, and which event leads from which state to which.

A route begins and ends idle. A link to another node is dialed, is online, and is lost. A zone of
this node itself is opened and is then local. An event that the table lacks cannot come: `after`
raises, so that a fault here shows at its first step. Otherwise a publish would wait for ever.
"""

from __future__ import annotations

import enum

from txbroker.model.invariant import holds


class RouteState(enum.Enum):
    """The state of the connection to the owner."""

    IDLE = "idle"  # no publish, filter or mark has needed the link yet
    CONNECTING = "connecting"  # first attempts since the link was needed or lost
    UNREACHABLE = "unreachable"  # the last attempts failed; more follow
    ONLINE = "online"
    ENDING = "ending"  # online, but another owner has announced the end of the part
    OPENING = "opening"  # this node serves the zone, and its own port is not there yet
    LOCAL = "local"  # this node serves the zone

    @property
    def told(self) -> str:
        """The state in words for operators, to whom every port is online."""
        return _TOLD.get(self, self).value


class RouteEvent(enum.Enum):
    """An event that concerns the connection to the owner."""

    DIAL = "an attempt to connect begins"
    REST = "attempts end, as nothing needs the link"
    FAIL = "several attempts failed, or nobody knows an address"
    CONNECT = "the owner is connected"
    END = "another owner announced the end of the part"
    LOSE = "the connection broke"
    SERVE = "this node serves the zone"
    LEAVE = "the zone has gone to another owner, or to none"


_S, _E = RouteState, RouteEvent

TRANSITIONS: dict[tuple[RouteState, RouteEvent], RouteState] = {
    (_S.IDLE, _E.DIAL): _S.CONNECTING,
    (_S.IDLE, _E.REST): _S.IDLE,
    (_S.IDLE, _E.FAIL): _S.UNREACHABLE,
    (_S.IDLE, _E.CONNECT): _S.ONLINE,
    (_S.IDLE, _E.SERVE): _S.OPENING,
    (_S.IDLE, _E.LEAVE): _S.IDLE,
    (_S.CONNECTING, _E.DIAL): _S.CONNECTING,
    (_S.CONNECTING, _E.REST): _S.IDLE,
    (_S.CONNECTING, _E.FAIL): _S.UNREACHABLE,
    (_S.CONNECTING, _E.CONNECT): _S.ONLINE,
    (_S.CONNECTING, _E.SERVE): _S.OPENING,
    (_S.CONNECTING, _E.LEAVE): _S.IDLE,
    (_S.UNREACHABLE, _E.DIAL): _S.UNREACHABLE,
    (_S.UNREACHABLE, _E.REST): _S.IDLE,
    (_S.UNREACHABLE, _E.FAIL): _S.UNREACHABLE,
    (_S.UNREACHABLE, _E.CONNECT): _S.ONLINE,
    (_S.UNREACHABLE, _E.SERVE): _S.OPENING,
    (_S.UNREACHABLE, _E.LEAVE): _S.IDLE,
    # A cancelled attempt may come to rest when another link is online.
    (_S.ONLINE, _E.REST): _S.ONLINE,
    (_S.ONLINE, _E.CONNECT): _S.ONLINE,
    (_S.ONLINE, _E.END): _S.ENDING,
    (_S.ONLINE, _E.LOSE): _S.CONNECTING,
    (_S.ONLINE, _E.LEAVE): _S.IDLE,
    (_S.ENDING, _E.REST): _S.ENDING,
    (_S.ENDING, _E.END): _S.ENDING,
    (_S.ENDING, _E.LOSE): _S.CONNECTING,
    (_S.ENDING, _E.LEAVE): _S.IDLE,
    (_S.OPENING, _E.REST): _S.OPENING,
    (_S.OPENING, _E.FAIL): _S.OPENING,
    (_S.OPENING, _E.CONNECT): _S.LOCAL,
    (_S.OPENING, _E.SERVE): _S.OPENING,
    (_S.OPENING, _E.LEAVE): _S.IDLE,
    (_S.LOCAL, _E.REST): _S.LOCAL,
    (_S.LOCAL, _E.CONNECT): _S.LOCAL,
    (_S.LOCAL, _E.SERVE): _S.LOCAL,
    (_S.LOCAL, _E.LEAVE): _S.IDLE,
}
"""The state after each event that may come in a state."""

CONNECTED = frozenset({_S.ONLINE, _S.ENDING, _S.LOCAL})
"""The states in which a route has a port."""

SERVED_HERE = (_S.OPENING, _S.LOCAL)
"""The states of a zone of this node; no set, as an enum's hash is a call of Python."""


_TOLD = {_S.ENDING: _S.ONLINE, _S.LOCAL: _S.ONLINE, _S.OPENING: _S.CONNECTING}


def after(state: RouteState, event: RouteEvent, *values: object) -> RouteState:
    """Return the state after an event; raises `InvariantBroken` if the event cannot come here."""
    found = TRANSITIONS.get((state, event))
    holds(event, 2, "a route's event is in the table", found is not None, state, event, *values)
    assert found is not None
    return found
