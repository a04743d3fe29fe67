"""An outbox of this node, as the node's own zone takes what is in it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from txbroker.authority.edge_peer import TAKEN, PublishVerdict
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.owner_port import StreamUser
from txbroker.edge.routing.stored_outbox import OutboxEntry
from txbroker.model.zone_cut import ZoneCut

if TYPE_CHECKING:
    from txbroker.edge.local.local_link import LocalLink


class LocalOutboxStream:
    """What comes from an outbox (`OutStream`); taken, or refused, one by one."""

    def __init__(self, zone: LocalLink, key: MarkKey, user: StreamUser) -> None:
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
