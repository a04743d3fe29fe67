"""
Rendezvous hashing: the nodes of a site that keep the directory entry of a client id.

Every node computes the keepers from the names of the members, and all nodes reach the same result.
A member that joins or leaves changes the keepers only of the ids that it keeps.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Iterable
from hashlib import blake2b

KEEPERS = 3
"""Keepers of an entry, if the site has as many members."""

REMEMBERED = 4_096
"""Ids in the cache of keepers: a connecting id is looked up several times."""


class RendezvousHash:
    """The members of one site as places for entries."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(sorted(names))
        # The seed of a name is hashed once, and each id continues from it. A digest is no secret: 8
        # bytes spread evenly. `hash` differs between processes, and nodes would disagree; `blake2b`
        # does not.
        self._seeds = {name: _seed(name) for name in self.names}
        self._known: dict[str, tuple[str, ...]] = {}
        self._ring: tuple[str, ...] = ()

    def __contains__(self, name: str) -> bool:
        return name in self._seeds

    def changed(self, joined: Collection[str], left: Collection[str]) -> RendezvousHash:
        """Return a new hash with members added and removed; the seeds of the others are reused."""
        places = RendezvousHash(())
        seeds = {name: seed for name, seed in self._seeds.items() if name not in left}
        seeds |= {name: _seed(name) for name in joined}
        places.names, places._seeds = tuple(sorted(seeds)), seeds
        return places

    def keepers(self, client_id: str) -> tuple[str, ...]:
        """
        Return the first `KEEPERS` members for an id, the first one first; all, if there are fewer.
        """
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
        """Return the first `KEEPERS` of these names for an id; the names need not be members."""
        key, seeds = client_id.encode(), self._seeds
        scores = [(_score(seeds.get(name) or _seed(name), key), name) for name in names]
        scores.sort(reverse=True)
        return tuple(name for _, name in scores[:KEEPERS])

    def is_among(self, name: str, client_id: str) -> bool:
        """True if `name` is a keeper of the id, or would be one as a member."""
        key, above = client_id.encode(), 0
        mine = _score(self._seeds.get(name) or _seed(name), key), name
        for other, seed in self._seeds.items():
            if other != name and (_score(seed, key), other) > mine:
                above += 1
                if above == KEEPERS:
                    return False
        return True

    def ring(self, name: str) -> tuple[str, ...]:
        """
        Return all other members in one order that all nodes know, from the successor of `name` on.
        """
        if not self._ring:
            # An order by name would put nodes of one rack side by side, which die together.
            order = sorted((seed.digest(), name) for name, seed in self._seeds.items())
            self._ring = tuple(name for _, name in order)
        place = bisect(self._ring, (_seed(name).digest(), name), key=lambda n: (self._place(n), n))
        others = self._ring[place:] + self._ring[:place]
        return others[:-1] if others and others[-1] == name else others

    def _place(self, name: str) -> bytes:
        return self._seeds[name].digest()


def majority(count: int) -> int:
    """Return the least count that is more than half: 1 of 1, 2 of 2, 2 of 3."""
    return count // 2 + 1


def _seed(name: str) -> blake2b:
    return blake2b(name.encode() + b"\0", digest_size=8)


def _score(seed: blake2b, key: bytes) -> bytes:
    digest = seed.copy()
    digest.update(key)
    return digest.digest()
