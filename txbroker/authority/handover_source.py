"""A handover of a subtree away from its present owner, on that owner's side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from txbroker.authority.edge_peers import EdgePeers
from txbroker.authority.retained_messages import RetainedMessages
from txbroker.delegation.zone_snapshot import MarkKey, ZoneSnapshot, in_parts
from txbroker.model.topics import is_within
from txbroker.model.zone_cut import ZoneCut


class HandedZone(Protocol):
    """The authority, as a handover of a part of its zone sees it: what travels."""

    @property
    def retained(self) -> RetainedMessages:
        """The messages that the zone retains."""

    @property
    def peers(self) -> EdgePeers:
        """The edges, with what each one wants."""

    @property
    def marks(self) -> Mapping[MarkKey, int]:
        """How far each stream was taken."""

    def cuts(self) -> tuple[ZoneCut, ...]:
        """Every cut of the zone."""


class HandoverSource:
    """A handover of `apex` away from here; one at a time for an apex."""

    def __init__(self, authority: HandedZone, apex: str) -> None:
        self.apex = apex
        self._authority = authority
        self._changed: set[str] = set()

    def bulk(self) -> Iterator[ZoneSnapshot]:
        """The retained messages as they are now; what changes meanwhile comes with `rest`."""
        return in_parts(list(self._authority.retained.within(self.apex)))

    def note(self, topic: str) -> None:
        """The retained message of a topic changed."""
        if is_within(topic, self.apex):
            self._changed.add(topic)

    def rest(self) -> Iterator[ZoneSnapshot]:
        """What `bulk` did not have; only after the fence, when the authority has settled."""
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
