"""What goes to an owner: publishes, one by one or many of one client together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import ClassVar

import attrs

from txbroker.core import Run
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.mqtt.session.inbound_publish import InboundPublish
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.message import Message


@attrs.define(slots=True, eq=False)
class Publication:
    """
    A message on its way to its owner; `flow` is the client's packet id, None for QoS 0. `done` is
    called when its owner has a QoS 1/2 message, or it is durable here.
    """

    message: Message
    session: Session | None = None
    flow: InboundPublish | None = None
    done: Callable[[], None] | None = None

    count: ClassVar[int] = 1

    @property
    def qos(self) -> int:
        """Of the message."""
        return self.message.qos

    @property
    def size(self) -> int:
        """Bytes that it counts for."""
        return self.message.size

    @property
    def client_id(self) -> str:
        """Who published it."""
        return self.message.client_id

    @property
    def keeps_id(self) -> bool:
        """Whether what it is sent with has to be durable before it leaves (protocol rule 16)."""
        flow, session = self.flow, self.session
        return flow is not None and flow.qos == 2 and session is not None and not session.clean

    @property
    def is_withdrawn(self) -> bool:
        """
        Whether its session went to another node, or ended, before its client was answered: who has
        it now sends it again, as what it was sent here, so here it is not sent as anything else.
        """
        if self.flow is None or self.session is None:
            return False
        return self.session.is_over and not self.session.clean

    def note_origin(self, key: MarkKey | None, sequence: int) -> Session:
        """One that `keeps_id` is sent as this now, or (None) as nothing; the session to save."""
        assert self.flow is not None and self.session is not None
        self.flow.origin = None if key is None else (key, sequence)
        self.session.receiver.note(self.flow)
        return self.session

    def note_entry(self, key: MarkKey, number: int) -> Session:
        """One that `keeps_id` becomes this entry of an outbox; the session to save."""
        assert self.flow is not None and self.session is not None
        self.flow.entry = key, number
        self.session.receiver.note(self.flow)
        return self.session


Item = Publication | Run
"""What goes to an owner: one publish, or many of one client, all of QoS 0 or none."""


def unfold(items: Iterable[Item]) -> list[Publication]:
    """Each publish by itself: from here on each has a fate of its own."""
    found: list[Publication] = []
    for item in items:
        if isinstance(item, Publication):
            found.append(item)
            continue
        messages = [item.message(index) for index in range(item.count)]
        if item.qos:
            flows = item.session.receiver.adopt(item)
            found += map(Publication, messages, repeat(item.session), flows)
        else:
            found += map(Publication, messages, repeat(item.session))
    return found


def topics_of(item: Item) -> list[str]:
    """The topics of its messages."""
    return [item.message.topic] if isinstance(item, Publication) else item.topics()


@attrs.frozen(kw_only=True)
class InDoubt:
    """
    Publishes that a lost link left open: `first` is the sequence of the first. `is_repeat`: it is
    not this node's process that sent them, but their client sends them again.
    """

    key: MarkKey
    first: int
    publications: tuple[Publication, ...]
    is_repeat: bool = False

    @property
    def last(self) -> int:
        """Sequence of the last one."""
        return self.first + len(self.publications) - 1
