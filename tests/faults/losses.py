"""
What may be lost with a node that is gone for good, disk and all: what it alone had. Pure.

- Messages of the zones that it served, acknowledged before: their journal was there.
- Other messages that were sent to it, acknowledged before: they may have been in its outbox. If any
  session gets one, the topic's owner has it, and every other session is owed it as ever.
- Sessions that it held, or that may have been on their way to it, with all that waited for them.
- Retained values among these messages.

Nothing else is. What was acknowledged elsewhere for one of its zones once it was gone waits in
outboxes, and reaches all. What it had taken and not answered is published again, to some for the
second time.

A root that comes back with an empty disk serves the zones of its children, until they are back, and
then gives them what it has taken meanwhile. So what is published until the next calm may come late
and twice, but does come; and a client may find no session there, though it has one elsewhere.
"""

from __future__ import annotations

import enum
from collections import defaultdict

import attrs

from .events import Acknowledged, Connected, Connecting, Event, Ruined, Sent
from .rules import is_in_zone

GRACE = 1.0
"""Seconds after which an acknowledgement that another node had from the lost one has come."""

Id = tuple[str, int]


class Loss(enum.Enum):
    """Why a message may be lost: it was in the journal that is gone, or maybe in an outbox."""

    JOURNAL = "journal"
    OUTBOX = "outbox"


@attrs.define(slots=True)
class _Message:
    topic: str
    sends: list[tuple[float, str]] = attrs.Factory(list)  # when, to which node
    acknowledged: float | None = None


def has_served(ruin: Ruined, topic: str) -> bool:
    """True if the topic is of a zone that the lost node served, and of none below that is kept."""
    found = [zone for zone in (*ruin.zones, *ruin.kept) if is_in_zone(topic, zone)]
    return bool(found) and max(found, key=len) in ruin.zones


class Losses:
    """Feed it every event, before the rules that ask it."""

    def __init__(self) -> None:
        self.sessions: set[str] = set()  # clients whose sessions the last `Ruined` may have taken
        self._ruins: list[Ruined] = []
        self._nodes: dict[int, str] = {}  # connection: node
        self._at: dict[str, set[str]] = defaultdict(set)  # client: where its session may be
        self._messages: dict[Id, _Message] = {}

    def feed(self, event: Event) -> None:
        match event:
            case Connecting():
                self._nodes[event.connection] = event.node
                self._at[event.client].add(event.node)
            case Connected(code=0):
                self._at[event.client] = {self._nodes[event.connection]}
            case Sent():
                self._on_sent(event)
            case Acknowledged(number=int(number), kind="PUBACK" | "PUBREC"):
                message = self._messages[event.client, number]
                if message.acknowledged is None:
                    message.acknowledged = event.at
            case Ruined():
                self._ruins.append(event)
                lost = set(event.nodes)
                self.sessions = {client for client, at in self._at.items() if at & lost}

    def of(self, number: Id) -> Loss | None:
        """Why this message may be lost; None: it must not be."""
        message = self._messages.get(number)
        found = None
        for ruin in self._ruins if message is not None else ():
            assert message is not None
            sent_to = {node for at, node in message.sends if at <= ruin.at}
            acknowledged = message.acknowledged
            if not sent_to or acknowledged is None or acknowledged > ruin.at + GRACE:
                continue
            if has_served(ruin, message.topic):
                return Loss.JOURNAL
            if sent_to.intersection(ruin.nodes):
                found = Loss.OUTBOX
        return found

    def _on_sent(self, event: Sent) -> None:
        message = self._messages.setdefault((event.client, event.number), _Message(event.topic))
        node = self._nodes.get(event.connection)
        if node is not None:
            message.sends.append((event.at, node))
