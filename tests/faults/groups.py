"""
What a group of a shared subscription owes: the rule `group` of `history`.

Each acknowledged message that was sent while the group's subscription was firm is processed by a
member. At QoS 2 it is processed once: the sessions of the members last. What is lent when a disk is
lost for good, or while a member begins a session elsewhere, may be processed twice. So may what was
processed since the last calm at a node that died: the answer may have died with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

import attrs

from .events import (
    Acknowledged,
    Calm,
    Connected,
    Connecting,
    Down,
    Event,
    Overdue,
    Processed,
    Reclaimed,
    Ruined,
    Sent,
    Subscribed,
)
from .losses import Losses
from .rules import Report, matches

Id = tuple[str, int]

PREFIX = "$share/crew/"


@attrs.define(slots=True)
class _Message:
    topic: str
    qos: int
    is_owed: bool
    sends: int = 1
    is_acknowledged: bool = False


class Groups:
    """Feed it every event; `missing` has what the group has still to process."""

    def __init__(self, report: Report, losses: Losses, begun_elsewhere: Container[int]) -> None:
        self._report = report
        self._losses = losses
        self._begun_elsewhere = begun_elsewhere
        self._filter = ""
        self._is_firm = False
        self._is_plain = True  # no session, disk or zone of the group was lost
        self._messages: dict[Id, _Message] = {}
        self._processed: Counter[Id] = Counter()
        self._nodes: dict[int, str] = {}  # of connections
        # What was processed since the last calm, with the node that has to tell of it.
        self._answered_at: dict[Id, str] = {}
        self._untold: set[Id] = set()  # messages whose node has died since

    @property
    def missing(self) -> set[Id]:
        """Messages that a member has still to process."""
        return {
            number
            for number, message in self._messages.items()
            if message.is_owed
            and message.is_acknowledged
            and not self._processed[number]
            and self._losses.of(number) is None
        }

    def feed(self, event: Event) -> None:
        match event:
            case Subscribed():
                for text, _ in event.filters:
                    if text.startswith(PREFIX):
                        self._filter = text.removeprefix(PREFIX)
            case Connecting():
                self._nodes[event.connection] = event.node
            case Connected(code=0):
                self._is_plain &= event.connection not in self._begun_elsewhere
            case Sent():
                self._on_sent(event)
            case Acknowledged(number=int(number), kind="PUBACK" | "PUBREC"):
                self._messages[event.client, number].is_acknowledged = True
            case Processed():
                self._on_processed(event)
            case Ruined() | Reclaimed():
                # The group's place in the journals may have been there.
                self._is_plain = self._is_firm = False
                for message in self._messages.values():
                    message.is_owed = False
            case Down():
                self._untold |= {n for n, node in self._answered_at.items() if node == event.node}
            case Overdue():
                self._report_missing(event)
            case Calm():
                self._report_missing(event)
                self._answered_at.clear()
                self._is_firm = bool(self._filter)

    def _on_sent(self, event: Sent) -> None:
        known = self._messages.get((event.client, event.number))
        if known is not None:
            known.sends += 1
            return
        is_owed = self._is_firm and event.qos > 0 and matches(self._filter, event.topic)
        self._messages[event.client, event.number] = _Message(event.topic, event.qos, is_owed)

    def _on_processed(self, event: Processed) -> None:
        number = event.publisher, event.number
        self._processed[number] += event.is_fresh
        message = self._messages.get(number)
        is_twice = event.is_fresh and self._processed[number] > 1
        self._answered_at[number] = self._nodes[event.connection]
        is_strict = self._is_plain and number not in self._untold
        if is_twice and is_strict and message is not None and message.qos == 2:
            self._report.add("group", event, f"{number} on {message.topic} is processed twice")

    def _report_missing(self, event: Event) -> None:
        for number in sorted(self.missing):
            message = self._messages[number]
            message.is_owed = False
            what = f"nobody processed {number} on {message.topic}, QoS {message.qos}"
            self._report.add("group", event, what)
