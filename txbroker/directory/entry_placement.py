"""
The keepers of this node's sessions, while members join and leave.

The keepers of each id are cached. A change of the members is processed in slices. A newcomer is
compared with an id's earlier keepers. Only the loss of a keeper needs a look at all members. A
request for the keepers of a stale id updates that id first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from txbroker.directory.members import Members

Keepers = tuple[str, ...]


class EntryPlacement:
    """
    The keepers of the ids of one node; `ids` returns all ids.

    `moved` gets an id whose keepers changed, with the keepers before and since.
    """

    def __init__(
        self,
        members: Members,
        ids: Callable[[], Iterable[str]],
        moved: Callable[[str, Keepers, Keepers], None],
    ) -> None:
        self._members = members
        self._ids = ids
        self._moved = moved
        self._places = members.places
        self._at: dict[str, Keepers] = {}
        self._behind: dict[str, int] = {}
        self._changes: list[tuple[frozenset[str], frozenset[str]]] = []
        self._since: dict[int, tuple[frozenset[str], frozenset[str]]] = {}

    @property
    def is_behind(self) -> bool:
        """True if ids remain that were not examined since the members changed."""
        return bool(self._behind)

    def keepers(self, client_id: str) -> Keepers:
        """Return the present keepers of an id; ids that were passed to `add` are cached."""
        self.update(client_id)
        known = self._at.get(client_id)
        return self._places.keepers(client_id) if known is None else known

    def update(self, client_id: str) -> None:
        """
        Update a stale id.

        Callers do so before its entry is gone: afterwards the earlier keepers would not learn its
        end.
        """
        if client_id in self._behind:
            self._update(client_id)

    def add(self, client_id: str) -> None:
        """Cache the keepers of an id from now on."""
        if not self._members.is_alone and client_id not in self._at:
            self._at[client_id] = self._places.keepers(client_id)

    def forget(self, client_id: str) -> None:
        """Forget an id without an entry here."""
        self._at.pop(client_id, None)
        self._behind.pop(client_id, None)

    def on_members(self) -> tuple[frozenset[str], frozenset[str]]:
        """Note a change of the members; return those that joined, and those that left."""
        before, now = frozenset(self._places.names), frozenset(self._members.places.names)
        was_alone = len(before) == 1
        joined, left = now - before, before - now
        if joined or left:
            self._places = self._members.places
            self._changes.append((joined, left))
            self._since.clear()
            if was_alone:  # a node that was alone has sent no id to any keeper, itself included
                self._at.clear()
            ids = self._ids() if was_alone else self._at
            self._behind = dict.fromkeys(ids, len(self._changes) - 1) | self._behind
        return joined, left

    def advance(self, count: int) -> None:
        """Update at most `count` stale ids."""
        for client_id in list(islice(self._behind, count)):
            self.update(client_id)

    # internal

    def _update(self, client_id: str) -> None:
        index = self._behind.pop(client_id)
        before = self._at.get(client_id, ())
        joined, left = self._changed_since(index)
        if not before or left.intersection(before):
            now = self._places.keepers(client_id)
        else:
            now = self._places.best(client_id, (*before, *joined))
        self._at[client_id] = now
        if not self._behind:
            self._changes.clear()
            self._since.clear()
        if now != before:
            self._moved(client_id, before, now)

    def _changed_since(self, index: int) -> tuple[frozenset[str], frozenset[str]]:
        known = self._since.get(index)
        if known is None:
            joined = frozenset[str]().union(*(one for one, _ in self._changes[index:]))
            left = frozenset[str]().union(*(one for _, one in self._changes[index:]))
            known = self._since[index] = joined.intersection(self._places.names), left
        return known
