"""
Sets of places in journals, kept part by part.

Messages that go on together have their places in one part. So one operation on a set of offsets
serves the places of a whole run. No object is made for each place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from txbroker.model.log_position import JournalId, LogPosition


class PlaceSet:
    """A set of `LogPosition`."""

    __slots__ = ("_parts",)

    def __init__(self, places: Iterable[LogPosition] = ()) -> None:
        self._parts: dict[JournalId, set[int]] = {}
        for place in places:
            self.add(place)

    def __len__(self) -> int:
        return sum(map(len, self._parts.values()))

    def __bool__(self) -> bool:
        return bool(self._parts)

    def __contains__(self, place: LogPosition) -> bool:
        return place.offset in self._parts.get(place.part, ())

    def __iter__(self) -> Iterator[LogPosition]:
        for part, offsets in self.parts():
            for offset in offsets:
                yield LogPosition(part, offset)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlaceSet) and self._parts == other._parts

    __hash__ = None  # type: ignore[assignment]

    def parts(self) -> Iterator[tuple[JournalId, Sequence[int]]]:
        """Yield each part with its offsets, in ascending order."""
        for part, offsets in list(self._parts.items()):
            yield part, sorted(offsets)

    def of(self, part: JournalId) -> Set[int]:
        """Return the offsets of a part."""
        return self._parts.get(part, frozenset())

    def add(self, place: LogPosition) -> None:
        """Add a place."""
        self._parts.setdefault(place.part, set()).add(place.offset)

    def discard(self, place: LogPosition) -> bool:
        """Remove a place; return True if it was here."""
        return bool(self.take(place.part, (place.offset,)))

    def update(self, part: JournalId, offsets: Iterable[int]) -> None:
        """Add places of a part."""
        known = self._parts.get(part)
        if known is None:
            known = set(offsets)
            if known:
                self._parts[part] = known
        else:
            known.update(offsets)

    def take(self, part: JournalId, offsets: Iterable[int]) -> Set[int]:
        """Remove those of these places that are here, and return them."""
        known = self._parts.get(part)
        if known is None:
            return frozenset()
        found = known.intersection(offsets)
        known -= found
        if not known:
            del self._parts[part]
        return found

    def merge(self, other: PlaceSet) -> None:
        """Add all places of another set."""
        for part, offsets in other._parts.items():
            self.update(part, offsets)

    def has_any(self, part: JournalId, offsets: Iterable[int]) -> bool:
        """True if one of these places is here."""
        known = self._parts.get(part)
        return known is not None and not known.isdisjoint(offsets)

    def has_common(self, other: PlaceSet) -> bool:
        """True if a place is in both sets."""
        return any(self.has_any(part, offsets) for part, offsets in other._parts.items())

    def clear(self) -> None:
        """Remove all places."""
        self._parts.clear()
