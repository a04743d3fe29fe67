"""
The rule of `history` about wills. Pure.

Each connection has a will of its own. It may come when the connection has ended without DISCONNECT,
and must then reach every session that is owed a message on its topic. Nothing else is promised of a
node whose process has ended, by force or by order, as its clients may be back before it. A node
that cannot be reached may be taken for dead, and its clients' wills come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container

import attrs

from .deliveries import Deliveries
from .events import (
    Calm,
    Connected,
    Connecting,
    Delivered,
    Disconnected,
    Down,
    Event,
    Faulted,
    Healed,
    Overdue,
    Ruined,
)
from .payloads import client_of_will
from .rules import Report

GRACE = 2.0
"""Seconds after which a client has seen that its connection has ended."""

HIDING = {"freeze", "cut", "one-way", "isolate", "unplug", "mute", "deaf", "exchange", "lose"}
"""Faults in which somebody cannot reach somebody that lives."""


@attrs.define(kw_only=True)
class _Connection:
    """
    One with a will. `owed` are the sessions that were owed it from the start; `is_doubtful` where
    somebody may have taken its node for dead, `is_over` where that has ended or had no room.
    """

    client: str
    number: int
    node: str
    topic: str
    is_doubtful: bool
    is_calm: bool
    owed: frozenset[str] | None = None
    got: set[str] = attrs.field(factory=set)
    why: str | None = None
    is_over: bool = False


class Wills:
    """
    Feed it every event, after `deliveries`. `begun_elsewhere`: connections in a session that is
    maybe not the client's last one.
    """

    def __init__(
        self, report: Report, deliveries: Deliveries, begun_elsewhere: Container[int]
    ) -> None:
        self._report = report
        self._deliveries = deliveries
        self._begun_elsewhere = begun_elsewhere
        self._connections: dict[int, _Connection] = {}
        self._due: dict[int, set[str]] = {}  # connection: sessions that still lack its will
        self._suspects: list[tuple[Delivered, _Connection]] = []
        self._hiding: Counter[tuple[str, ...]] = Counter()
        self._full: set[str] = set()  # nodes that have no room for a will
        self._is_calm = True
        self._is_ruined = False

    @property
    def missing(self) -> list[str]:
        """Wills that are due and have not reached everybody, in words."""
        return [
            f"{', '.join(sorted(clients))} never got the will of connection {number} of"
            f" {self._connections[number].client} at {self._connections[number].node}"
            for number, clients in self._due.items()
        ]

    def feed(self, event: Event) -> None:
        self._judge(event)
        match event:
            case Connecting() if event.will:
                self._connections[event.connection] = _Connection(
                    client=event.client,
                    number=event.connection,
                    node=event.node,
                    topic=event.will,
                    is_doubtful=bool(self._hiding),
                    is_calm=self._is_calm,
                    is_over=event.node in self._full,
                )
            case Connected(code=0) if event.connection in self._connections:
                self._on_connected(self._connections[event.connection])
            case Disconnected() if event.connection in self._connections:
                self._on_disconnected(self._connections[event.connection], event.why)
            case Delivered():
                self._on_delivered(event)
            case Faulted():
                self._on_fault(event.what)
            case Healed():
                self._hiding.clear()
                self._full.clear()
            case Down():
                self._on_no_will(event.node)
            case Ruined():
                self._is_ruined = True
                self._due.clear()
            case Overdue():
                self._report_missing(event)
            case Calm():
                self._report_missing(event)
                self._is_calm, self._is_ruined = True, False

    # internal

    def _judge(self, event: Event) -> None:
        """Whose connection was open when its will came, and has not ended since."""
        while self._suspects and self._suspects[0][0].at + GRACE < event.at:
            delivered, connection = self._suspects.pop(0)
            if connection.why is None:
                what = f"will of connection {connection.number} of {connection.client}, which is"
                self._report.add("will", delivered, f"{what} open at {connection.node}")

    def _on_connected(self, connection: _Connection) -> None:
        connection.owed = self._deliveries.owed(connection.topic)
        if connection.number in self._begun_elsewhere:
            for number in [
                n for n in self._due if self._connections[n].client == connection.client
            ]:
                del self._due[number]

    def _on_disconnected(self, connection: _Connection, why: str) -> None:
        connection.why = why
        connection.is_calm &= self._is_calm
        if why == "left: close" or connection.owed is None or connection.is_over:
            return
        lacking = connection.owed & self._deliveries.owed(connection.topic) - connection.got
        if lacking and not self._is_ruined:
            self._due[connection.number] = set(lacking)

    def _on_delivered(self, event: Delivered) -> None:
        if not client_of_will(event.publisher):
            return
        connection = self._connections.get(event.number)
        if connection is None or connection.client != client_of_will(event.publisher):
            return  # nobody has sent this
        connection.got.add(event.client)
        if connection.why is None and not connection.is_doubtful:
            self._suspects.append((event, connection))
        if connection.why == "left: close" and connection.is_calm:
            what = f"will of connection {connection.number} of {connection.client}, which has said"
            self._report.add("will", event, f"{what} DISCONNECT to {connection.node}")
        due = self._due.get(event.number, set())
        due.discard(event.client)
        if not due:
            self._due.pop(event.number, None)

    def _on_fault(self, what: str) -> None:
        self._is_calm = False
        words = what.split()
        at = next((place for place, word in enumerate(words) if word[0].isalpha()), 0)
        verb, targets = words[at], tuple(words[at + 1 :])
        if verb in HIDING and (verb, *targets) != ("lose",):
            self._hiding[verb, *targets] += 1
            self._doubt(lambda connection: True)
        else:
            self._hiding -= Counter(key for key in self._hiding if _is_end_of(verb, targets, key))
        if verb in ("stall", "go-on"):
            self._doubt(lambda connection: connection.client in targets)
        if verb == "free":
            self._full.difference_update(targets)
        if verb == "fill":
            self._full.update(targets)
            self._on_no_will(*targets)

    def _on_no_will(self, *nodes: str) -> None:
        """The connections that these nodes have had by now may end without their wills."""
        for connection in self._connections.values():
            if connection.node in nodes:
                connection.is_over = True
                self._due.pop(connection.number, None)

    def _doubt(self, is_meant: Callable[[_Connection], bool]) -> None:
        for connection in self._connections.values():
            connection.is_doubtful |= connection.why is None and is_meant(connection)

    def _report_missing(self, event: Event) -> None:
        for what in self.missing:
            self._report.add("will", event, what)
        self._due.clear()


def _is_end_of(verb: str, targets: tuple[str, ...], begun: tuple[str, ...]) -> bool:
    """True if the step ends what began so."""
    if verb == "lose":
        return begun[0] == "lose"
    ends = "thaw" if begun[0] == "freeze" else f"mend-{begun[0]}"
    return (verb, *targets) == (ends, *begun[1:])
