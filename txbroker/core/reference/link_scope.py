"""Decides which topics the owner at the other end of a link serves: its zone less its cuts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from txbroker.model.topics import is_within


class LinkScope:
    """
    The topics within which publishes are plain on one link; at first the whole root zone.

    `_cuts` end with a slash, are sorted, and none encloses another. So only the last cut before a
    topic can enclose it.
    """

    def __init__(self) -> None:
        self._apex = ""
        self._cuts: list[str] = []

    def set(self, apex: str) -> None:
        """Set the scope to the zone of this apex, without cuts."""
        self._apex = apex
        self._cuts = []

    def put(self, apex: str) -> None:
        """Cut the subtree of this apex off."""
        key = apex + "/"
        begin = end = bisect_right(self._cuts, key)
        if begin and key.startswith(self._cuts[begin - 1]):
            return
        while end < len(self._cuts) and self._cuts[end].startswith(key):
            end += 1
        self._cuts[begin:end] = [key]

    def drop(self, apex: str) -> None:
        """Return the subtree of this apex to the scope, if it was cut off."""
        key = apex + "/"
        at = bisect_left(self._cuts, key)
        if at < len(self._cuts) and self._cuts[at] == key:
            del self._cuts[at]

    def has(self, topic: str) -> bool:
        """True if the scope has this topic."""
        if not is_within(topic, self._apex):
            return False
        key = topic + "/"
        at = bisect_right(self._cuts, key)
        return not at or not key.startswith(self._cuts[at - 1])
