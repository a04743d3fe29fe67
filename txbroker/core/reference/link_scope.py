"""What the owner at the other end of a link answers for: its zone, less the cuts it has told of."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from txbroker.model.topics import is_within


class LinkScope:
    """
    Within which topics publishes are plain on one link; at first the root zone's.

    `_cuts` have a slash at their ends, are in order, and none of them is within another: the only
    one that a topic may be within is the last one before it.
    """

    def __init__(self) -> None:
        self._apex = ""
        self._cuts: list[str] = []

    def set(self, apex: str) -> None:
        """The zone of this apex, all of it."""
        self._apex = apex
        self._cuts = []

    def put(self, apex: str) -> None:
        """This is cut off from here on."""
        key = apex + "/"
        begin = end = bisect_right(self._cuts, key)
        if begin and key.startswith(self._cuts[begin - 1]):
            return
        while end < len(self._cuts) and self._cuts[end].startswith(key):
            end += 1
        self._cuts[begin:end] = [key]

    def drop(self, apex: str) -> None:
        """This is the zone's again, if it was cut off."""
        key = apex + "/"
        at = bisect_left(self._cuts, key)
        if at < len(self._cuts) and self._cuts[at] == key:
            del self._cuts[at]

    def has(self, topic: str) -> bool:
        """True if the zone has this topic."""
        if not is_within(topic, self._apex):
            return False
        key = topic + "/"
        at = bisect_right(self._cuts, key)
        return not at or not key.startswith(self._cuts[at - 1])
