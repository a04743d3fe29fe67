"""An outbox of this node, as the node's own zone takes what is in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from txbroker.authority.edge_peer import TAKEN, PublishVerdict
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.owner_port import StreamUser
from txbroker.edge.routing.stored_outbox import OutboxEntry
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.message import Message


class LocalZone(Protocol):
    """The node's own zone, as an outbox's stream sees it."""

    @property
    def is_serving(self) -> bool:
        """True if the zone is served here."""

    def take(self, message: Message, key: MarkKey | None, sequence: int) -> PublishVerdict:
        """Give a message to the authority, as it was sent in this stream."""

    def when_taken(self, action: Callable[[], None]) -> None:
        """Run `action` when what was taken last is durable."""

    def when_settled(self, action: Callable[[], None]) -> None:
        """Run `action` when all that was taken is durable."""

    def cut_for(self, topic: str) -> ZoneCut | None:
        """The cut that a refused topic lies under."""


class LocalOutboxStream:
    """What comes from an outbox (`OutStream`); taken, or refused, one by one."""

    def __init__(self, zone: LocalZone, key: MarkKey, user: StreamUser) -> None:
        self._zone = zone
        self._key = key
        self._user = user
        self._is_stopped = False
        self._parked: OutboxEntry | None = None

    def send(self, entries: Sequence[OutboxEntry]) -> None:
        """Give them to the authority, as far as it takes them."""
        for entry in entries:
            if self._is_stopped:
                return
            verdict = self._zone.take(entry.message, self._key, entry.number)
            if verdict is TAKEN:
                self._zone.when_taken(partial(self._user.on_taken, entry.number))
                continue
            self._is_stopped = True
            if verdict is PublishVerdict.PARKED:
                self._parked = entry
            else:
                self._refuse(entry, self._zone.cut_for(entry.message.topic), retry=False)

    def restart(self) -> None:
        """What is sent from now on is to be taken again."""
        self._is_stopped = False

    def unpark(self) -> None:
        """A fence was lifted, or became a cut."""
        entry, self._parked = self._parked, None
        if entry is not None:
            cut = self._zone.cut_for(entry.message.topic)
            self._refuse(entry, cut, retry=cut is None and self._zone.is_serving)

    def _refuse(self, entry: OutboxEntry, cut: ZoneCut | None, *, retry: bool) -> None:
        refuse = partial(self._user.on_refused, entry.number, cut, retry=retry)
        self._zone.when_settled(refuse)
