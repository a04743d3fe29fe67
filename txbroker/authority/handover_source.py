"""A handover of a subtree to another node, at the present owner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from txbroker.authority.edge_peers import EdgePeers
from txbroker.authority.retained_messages import RetainedMessages
from txbroker.delegation.zone_snapshot import MarkKey, ZoneSnapshot, in_parts
from txbroker.model.topics import is_within
from txbroker.model.zone_cut import ZoneCut


class HandedZone(Protocol):
    """The port of a handover to the authority: the state that moves."""

    @property
    def retained(self) -> RetainedMessages:
        """Return the messages that the zone retains."""

    @property
    def peers(self) -> EdgePeers:
        """Return the edges and their interests."""

    @property
    def marks(self) -> Mapping[MarkKey, int]:
        """Return the mark of each publish stream."""

    def cuts(self) -> tuple[ZoneCut, ...]:
        """Return every cut of the zone."""


class HandoverSource:
    """A handover of `apex` to another node; at most one for an apex at a time."""

    def __init__(self, authority: HandedZone, apex: str) -> None:
        self.apex = apex
        self._authority = authority
        self._changed: set[str] = set()

    def bulk(self) -> Iterator[ZoneSnapshot]:
        """Yield the present retained messages; later changes come with `rest`."""
        return in_parts(list(self._authority.retained.within(self.apex)))

    def mark_changed(self, topic: str) -> None:
        """Note that the retained message of a topic changed."""
        if is_within(topic, self.apex):
            self._changed.add(topic)

    def rest(self) -> Iterator[ZoneSnapshot]:
        """
        Yield all that `bulk` lacks; call only after the fence, when the authority has settled.
        """
        now = {topic: self._authority.retained.get(topic) for topic in sorted(self._changed)}
        yield from in_parts([message for message in now.values() if message is not None])
        yield ZoneSnapshot(
            cleared=tuple(topic for topic, message in now.items() if message is None),
            interests=tuple(self._authority.peers.within(self.apex)),
            delegations=tuple(
                cut for cut in self._authority.cuts() if is_within(cut.apex, self.apex)
            ),
            marks=tuple(self._authority.marks.items()),
        )
