"""
The claims of an edge at one owner: subtrees that the zone inherited (protocol rule 13).

An owner that inherits a subtree holds its deliveries to this edge. The deliveries wait until the
edge has processed those of the earlier owner. The edge then claims the apex. A claim is made, is
answered by the deliveries that waited (`claiming`), is complete, and stays on the list. A later
link repeats it. Sessions may read those deliveries from the journal (`read`). Then the end of the
claim has to be durable before the owner hears of it.
"""

from __future__ import annotations

from collections.abc import Collection, Set

import attrs

from txbroker.model.invariant import holds
from txbroker.model.topics import is_filter_within, is_within


@attrs.frozen(kw_only=True)
class StreamPosition:
    """The last delivery of QoS 1 or 2 that was processed."""

    epoch: int
    offset: int


class ZoneClaims:
    """
    The claims of one route. `claiming` and `read` are for others to look at, and written here
    alone.

    Invariant: read and claiming <= apexes.
    """

    __slots__ = ("_apexes", "_completing", "_reclaimed", "claiming", "read")

    def __init__(self) -> None:
        self.claiming: dict[str, StreamPosition | None] = {}
        self.read: set[str] = set()
        self._apexes: set[str] = set()
        # completed claims whose end is not durable yet, so the owner has not heard of it
        self._completing: list[str] = []
        # apexes, and the position since which they are this zone's
        self._reclaimed: dict[str, StreamPosition] = {}

    def check(self) -> None:
        """State that only what is claimed is awaited; after the end of a turn."""
        strange = (self.read | self.claiming.keys()) - self._apexes
        holds(self, 13, "only what is claimed is awaited", not strange, strange)

    @property
    def apexes(self) -> Set[str]:
        """All apexes that were claimed here."""
        return self._apexes

    @property
    def sayable(self) -> set[str]:
        """
        The claims that may be sent to the owner now.

        An apex may be claimed anew while the end of its earlier claim is not durable yet. Such a
        claim is left out: the owner would take it for the earlier one, and end both at once.
        """
        return self._apexes - (set(self._completing) & self.claiming.keys())

    def claim(self, apex: str, *, is_read: bool) -> None:
        """Claim the apex; `is_read`: sessions read what waited for the claim from the journal."""
        self._apexes.add(apex)
        self.claiming[apex] = None
        if is_read:
            self.read.add(apex)

    def withdraw(self, apex: str) -> None:
        """Drop all claims within the apex, which is another zone's now."""
        self._apexes = {claimed for claimed in self._apexes if not is_within(claimed, apex)}
        self.claiming = {a: p for a, p in self.claiming.items() if a in self._apexes}
        self.read &= self._apexes
        self._reclaimed = {a: p for a, p in self._reclaimed.items() if not is_within(a, apex)}

    def note_processed(self, topic: str, position: StreamPosition) -> None:
        """Note that a delivery was processed."""
        for apex in self.claiming:
            if is_within(topic, apex):
                self.claiming[apex] = position

    def covers_read(self, topic: str) -> bool:
        """True if every session reads what waited for the topic's claim from the journal."""
        return any(is_within(topic, apex) for apex in self.read)

    def complete(self, apexes: Collection[str]) -> bool:
        """
        Complete claims, as all deliveries that waited for them are processed.

        Returns True if the owner may hear of that only when it is durable; `finish` follows then.
        """
        # Such a claim may have completed on an earlier link, and not be durable yet. Otherwise the
        # owner would hear before sessions' cursors for its records are durable.
        is_late = not (self.read.isdisjoint(apexes) and set(self._completing).isdisjoint(apexes))
        for apex in apexes:
            self.claiming.pop(apex, None)
            self.read.discard(apex)
        if is_late:
            self._completing.extend(apexes)
        return is_late

    def finish(self, apexes: Collection[str]) -> bool:
        """Note that the end of claims is durable; return True if one was claimed anew meanwhile."""
        for apex in apexes:
            self._completing.remove(apex)
        return not self.claiming.keys().isdisjoint(apexes)

    def reclaim(self, apex: str, after: StreamPosition) -> None:
        """Note that the apex was taken back, and is the zone's behind this position."""
        self._reclaimed[apex] = after

    def since(self, topic_filter: str, epoch: int) -> int:
        """
        Return the offset up to which the epoch's part has no record that is owed for the filter.
        """
        return max(
            (
                after.offset
                for apex, after in self._reclaimed.items()
                if after.epoch == epoch and is_filter_within(topic_filter, apex)
            ),
            default=0,
        )
