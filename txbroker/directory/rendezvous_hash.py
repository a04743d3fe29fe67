"""
Rendezvous hashing: which nodes of a site keep the directory's entry of a client id.

Every node works this out for itself from the names of the members, and all of them come to the same
result. A member more or less changes the place of those ids only that it keeps.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Iterable
from hashlib import blake2b

KEEPERS = 3
"""Nodes that keep an entry, where the site has as many."""

REMEMBERED = 4_096
"""Ids whose keepers are remembered: one that connects is looked up several times."""


class RendezvousHash:
    """The members of one site as places for entries."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(sorted(names))
        # The name is hashed once; each id goes on from there. A digest is no secret: 8 bytes spread
        # evenly, and `blake2b` gives the same in every process, as `hash` does not.
        self._seeds = {name: _seed(name) for name in self.names}
        self._known: dict[str, tuple[str, ...]] = {}
        self._ring: tuple[str, ...] = ()

    def __contains__(self, name: str) -> bool:
        return name in self._seeds

    def changed(self, joined: Collection[str], left: Collection[str]) -> RendezvousHash:
        """The same with some members more, and others less; the rest is not worked out anew."""
        places = RendezvousHash(())
        seeds = {name: seed for name, seed in self._seeds.items() if name not in left}
        seeds |= {name: _seed(name) for name in joined}
        places.names, places._seeds = tuple(sorted(seeds)), seeds
        return places

    def keepers(self, client_id: str) -> tuple[str, ...]:
        """The first `KEEPERS` members for an id, the first one first; all where there are fewer."""
        if len(self.names) == 1:
            return self.names
        known = self._known.get(client_id)
        if known is None:
            known = self.best(client_id, self.names)
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[client_id] = known
        return known

    def best(self, client_id: str, names: Iterable[str]) -> tuple[str, ...]:
        """The first `KEEPERS` of these for an id, be they members or not."""
        key, seeds = client_id.encode(), self._seeds
        scores = [(_score(seeds.get(name) or _seed(name), key), name) for name in names]
        scores.sort(reverse=True)
        return tuple(name for _, name in scores[:KEEPERS])

    def is_among(self, name: str, client_id: str) -> bool:
        """True if `name` is one of the keepers of an id, or would be, were it a member."""
        key, above = client_id.encode(), 0
        mine = _score(self._seeds.get(name) or _seed(name), key), name
        for other, seed in self._seeds.items():
            if other != name and (_score(seed, key), other) > mine:
                above += 1
                if above == KEEPERS:
                    return False
        return True

    def ring(self, name: str) -> tuple[str, ...]:
        """All other members in one order that all nodes know; those after `name` first."""
        if not self._ring:
            # Not by name: neighbours by name are neighbours in a rack, and die together.
            order = sorted((seed.digest(), name) for name, seed in self._seeds.items())
            self._ring = tuple(name for _, name in order)
        place = bisect(self._ring, (_seed(name).digest(), name), key=lambda n: (self._place(n), n))
        others = self._ring[place:] + self._ring[:place]
        return others[:-1] if others and others[-1] == name else others

    def _place(self, name: str) -> bytes:
        return self._seeds[name].digest()


def majority(count: int) -> int:
    """How many of `count` are more than half; 1 of 1, 2 of 2, 2 of 3."""
    return count // 2 + 1


def _seed(name: str) -> blake2b:
    return blake2b(name.encode() + b"\0", digest_size=8)


def _score(seed: blake2b, key: bytes) -> bytes:
    digest = seed.copy()
    digest.update(key)
    return digest.digest()
