"""Items for an owner: single publishes, or runs of one client's publishes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import repeat
from typing import ClassVar, Final

import attrs

from txbroker.core import Run
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.model.topics import deepest_enclosing, is_within
from txbroker.mqtt.session.inbound_publish import InboundPublish
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.message import Message


@attrs.define(slots=True, eq=False)
class Publication:
    """
    A message on its way to its owner.

    `flow` is the client's packet id and its state, None for QoS 0. `done` is called when the owner
    has accepted a QoS 1/2 message, or when an outbox has made it durable. `expires_at`: the moment
    at which the message expires, if it does.
    """

    message: Message
    session: Session | None = None
    flow: InboundPublish | None = None
    done: Callable[[], None] | None = None
    expires_at: float | None = None

    count: ClassVar[int] = 1

    @property
    def qos(self) -> int:
        """QoS of the message."""
        return self.message.qos

    @property
    def size(self) -> int:
        """Bytes for which the message counts in limits."""
        return self.message.size

    @property
    def client_id(self) -> str:
        """The client that published the message."""
        return self.message.client_id

    @property
    def needs_durable_id(self) -> bool:
        """True if the origin id must be durable before the publish leaves (protocol rule 16)."""
        flow, session = self.flow, self.session
        return flow is not None and flow.qos == 2 and session is not None and not session.clean

    @property
    def is_withdrawn(self) -> bool:
        """
        True if the session moved to another node, or ended, before the client was answered.

        The session's new node resends the publish under its origin id. Under any other id the
        publish would be accepted twice, so this node sends it no more.
        """
        if self.flow is None or self.session is None:
            return False
        return self.session.is_over and not self.session.clean

    def begin(self, now: float) -> None:
        """Note when the message expires: it has come now."""
        expiry = self.message.expiry
        if expiry is not None and self.expires_at is None:
            self.expires_at = now + expiry

    def age(self, now: float) -> None:
        """Take off the interval for how long the message was here; 0: it has expired."""
        if self.expires_at is not None:
            self.message = self.message.with_expiry(max(self.expires_at - now, 0.0))

    def settle(self) -> None:
        """Acknowledge the publish to its client: the message is safe at its owner, or here."""
        if self.done is not None:
            self.done()
        if self.flow is not None and self.session is not None:
            self.session.receiver.on_accepted(self.flow)

    def set_origin(self, key: MarkKey | None, sequence: int) -> Session:
        """
        Set the origin id of a publish that `needs_durable_id`, or clear it (None); return the
        session to save.
        """
        assert self.flow is not None and self.session is not None
        self.flow.origin = None if key is None else (key, sequence)
        self.session.receiver.mark_changed(self.flow)
        return self.session

    def set_entry(self, key: MarkKey, number: int) -> Session:
        """Set the outbox entry of a publish that `needs_durable_id`; return the session to save."""
        assert self.flow is not None and self.session is not None
        self.flow.entry = key, number
        self.session.receiver.mark_changed(self.flow)
        return self.session


UNAGED: Final = 1.0
"""Seconds for which a run may wait as it is: what is left of an interval is rounded up."""

Item = Publication | Run
"""An item for an owner: one publish, or many of one client, all of QoS 0 or none."""


def unfold(items: Iterable[Item]) -> list[Publication]:
    """Split items into single publishes: from here on each is answered, and ages, by itself."""
    found: list[Publication] = []
    for item in items:
        if isinstance(item, Publication):
            found.append(item)
            continue
        messages = [item.message(index) for index in range(item.count)]
        if item.qos:
            flows = item.session.receiver.adopt(item)
            publications = list(map(Publication, messages, repeat(item.session), flows))
        else:
            publications = list(map(Publication, messages, repeat(item.session)))
        if item.came is not None:
            for publication in publications:
                publication.begin(item.came)
        found += publications
    return found


def topics_of(item: Item) -> list[str]:
    """Return the topics of an item's messages."""
    return [item.message.topic] if isinstance(item, Publication) else item.topics()


@attrs.frozen(kw_only=True)
class InDoubt:
    """
    Publishes that a lost link left unanswered.

    `first` is the sequence of the first one. `is_repeat`: an earlier process sent them, and their
    client sends them again.
    """

    key: MarkKey
    first: int
    publications: tuple[Publication, ...]
    is_repeat: bool = False

    @property
    def last(self) -> int:
        """Sequence of the last publish."""
        return self.first + len(self.publications) - 1

    def home(self, apexes: Collection[str]) -> str | None:
        """Return the deepest of the apexes that encloses all topics of the doubt, if any does."""
        topics = [publication.message.topic for publication in self.publications]
        apex = deepest_enclosing(topics[0], apexes) if topics else None
        while apex and not all(is_within(topic, apex) for topic in topics):
            apex = deepest_enclosing(apex.rpartition("/")[0], apexes)
        return apex or None
