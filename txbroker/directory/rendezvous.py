"""
Rendezvous hashing: which nodes of a site keep the directory's entry of a client id.

Every node works this out for itself from the names of the members, and all of them come to the same
result. A member more or less changes the place of those ids only that it keeps.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

KEEPERS = 3
"""Nodes that keep an entry, where the site has as many."""


class Rendezvous:
    """The members of one site as places for entries."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(sorted(names))
        # The name is hashed once; each id goes on from there. A digest is no secret: 8 bytes spread
        # evenly, and `blake2b` gives the same in every process, as `hash` does not.
        self._seeds = tuple(
            (blake2b(name.encode() + b"\0", digest_size=8), name) for name in self.names
        )

    def keepers(self, client_id: str) -> tuple[str, ...]:
        """The first `KEEPERS` members for an id, the first one first; all where there are fewer."""
        if len(self._seeds) == 1:
            return self.names
        key = client_id.encode()
        scores = []
        for seed, name in self._seeds:
            digest = seed.copy()
            digest.update(key)
            scores.append((digest.digest(), name))
        scores.sort(reverse=True)
        return tuple(name for _, name in scores[:KEEPERS])


def majority(count: int) -> int:
    """How many of `count` are more than half; 1 of 1, 2 of 2, 2 of 3."""
    return count // 2 + 1
