"""The stream from an outbox of this node to the node's own zone."""

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
    """Port to the node's own zone, for the stream of an outbox."""

    @property
    def is_serving(self) -> bool:
        """True if the zone is served here."""

    def accept(
        self, message: Message, key: MarkKey, sequence: int, taken: Callable[[], None]
    ) -> PublishVerdict:
        """Publish a message, with its id in this stream; `taken` runs when it is durable."""

    def when_settled(self, action: Callable[[], None]) -> None:
        """Run `action` when all accepted publishes are durable and delivered."""

    def cut_for(self, topic: str) -> ZoneCut | None:
        """Return the cut that covers a refused topic."""


class LocalOutboxStream:
    """
    The publish stream of an outbox (`OutStream`); each entry is accepted, refused or parked.

    After a refused or parked entry the stream is stopped: later entries are skipped until
    `restart`.
    """

    def __init__(self, zone: LocalZone, key: MarkKey, user: StreamUser) -> None:
        self._zone = zone
        self._key = key
        self._user = user
        self._is_stopped = False
        self._parked: OutboxEntry | None = None

    def send(self, entries: Sequence[OutboxEntry]) -> None:
        """Publish entries at the authority, up to the first that is not accepted."""
        for entry in entries:
            if self._is_stopped:
                return
            taken = partial(self._user.on_accepted, entry.number)
            verdict = self._zone.accept(entry.message, self._key, entry.number, taken)
            if verdict is TAKEN:
                continue
            self._is_stopped = True
            if verdict is PublishVerdict.PARKED:
                self._parked = entry
            else:
                self._refuse(entry, self._zone.cut_for(entry.message.topic), retry=False)

    def restart(self) -> None:
        """Accept entries again after a refusal."""
        self._is_stopped = False

    def unpark(self) -> None:
        """
        Refuse the parked entry, as the fence was lifted or became a cut; its drain sends it anew.
        """
        entry, self._parked = self._parked, None
        if entry is not None:
            cut = self._zone.cut_for(entry.message.topic)
            self._refuse(entry, cut, retry=cut is None and self._zone.is_serving)

    def _refuse(self, entry: OutboxEntry, cut: ZoneCut | None, *, retry: bool) -> None:
        refuse = partial(self._user.on_refused, entry.number, cut, retry=retry)
        self._zone.when_settled(refuse)
