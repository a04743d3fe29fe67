"""
The cuts of one zone as an edge knows them.

Zones and cuts alone decide where a filter belongs. A change of one of them concerns only the
filters that meet its apex. So the map reports changed apexes, and the interests need not check the
whole map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from txbroker.core.sorted_filters import SortedApexes
from txbroker.model.topics import deepest_enclosing
from txbroker.model.zone_cut import ZoneCut

_Route = TypeVar("_Route")


class ChangeLog(Protocol):
    """Port to the reader of changed apexes."""

    def mark_changed(self, apex: str) -> None:
        """Note that a cut came or went at this apex."""


class CutChanges(Generic[_Route]):
    """
    The news of cuts, each once, until they are taken.

    The news are apexes at which a zone or a cut came or went. They are also routes whose owners are
    to hear more than that.
    """

    def __init__(self) -> None:
        self._apexes: dict[str, None] = {}
        self._news: dict[_Route, None] = {}

    def mark_changed(self, apex: str) -> None:
        """
        Note that a zone or a cut came or went at the apex, or that the zone's cuts became known.
        """
        self._apexes[apex] = None

    def add_route(self, route: _Route) -> None:
        """Note a route whose owner has to hear of filters or claims."""
        self._news[route] = None

    def dequeue(self) -> list[str]:
        """Return the apexes noted since the last call."""
        apexes, self._apexes = self._apexes, {}
        return list(apexes)

    def dequeue_routes(self) -> list[_Route]:
        """Return the routes noted since the last call."""
        news, self._news = self._news, {}
        return list(news)


class CutMap(Mapping[str, ZoneCut]):
    """All cuts of one zone, by apex."""

    def __init__(self, cuts: Mapping[str, ZoneCut], changes: ChangeLog) -> None:
        self._cuts = dict(cuts)
        self._changes = changes
        self._apexes: SortedApexes | None = None

    def __getitem__(self, apex: str) -> ZoneCut:
        return self._cuts[apex]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cuts)

    def __len__(self) -> int:
        return len(self._cuts)

    def __contains__(self, apex: object) -> bool:
        return apex in self._cuts

    def put(self, cut: ZoneCut) -> None:
        """Add or replace a cut; another epoch or node of a known cut moves no filter."""
        if cut.apex not in self._cuts:
            if self._apexes is not None:
                self._apexes.add(cut.apex)
            self._changes.mark_changed(cut.apex)
        self._cuts[cut.apex] = cut

    def drop(self, apex: str) -> None:
        """Remove the cut at this apex, if there is one."""
        if self._cuts.pop(apex, None) is not None:
            if self._apexes is not None:
                self._apexes.discard(apex)
            self._changes.mark_changed(apex)

    def replace(self, cuts: Mapping[str, ZoneCut]) -> None:
        """Replace all cuts by these."""
        for apex in self._cuts.keys() - cuts.keys():
            self.drop(apex)
        for cut in cuts.values():
            self.put(cut)

    def within(self, apex: str) -> list[str]:
        """Return the apexes at or below an apex."""
        return [known for texts in self._order().within(apex) for known in texts]

    def above(self, topic: str) -> str | None:
        """Return the deepest apex that covers a topic."""
        return deepest_enclosing(topic, self._cuts)

    def met_by(self, topic_filter: str) -> list[str]:
        """Return, in order, the apexes within which the filter may match."""
        return sorted(self._order().met_by(topic_filter)) if self._cuts else []

    def _order(self) -> SortedApexes:
        # Most zones have few cuts and no query. The index is made at the first one, to save its
        # memory.
        if self._apexes is None:
            self._apexes = SortedApexes()
            for apex in sorted(self._cuts):
                self._apexes.add(apex)
        return self._apexes
