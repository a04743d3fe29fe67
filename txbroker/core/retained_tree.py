"""
The last value of each topic, found by filter.

`RetainedTree` knows nothing of messages. The caller has the values, and the rule that an empty
payload clears a topic. A tree may have very many topics. Each costs its bytes, and two places in
sorted lists. The topics below a level begin with the same bytes. So a walk goes from one such range
to the next, in the order of the topics' bytes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

V = TypeVar("V")

LOAD = 512
"""Topics of a list when it was split: what one that is added moves is at most twice that."""

_BEHIND = b"0"
"""The byte after a slash: a level and this byte come right behind all topics below the level."""

_DOLLAR, _BEHIND_DOLLAR = b"$", b"%"


class RetainedTree(Generic[V]):
    """
    A mapping of topic to value; a topic's name is its UTF-8.

    Topics, filters and apexes are expected to be valid. The tree may be changed during a walk: the
    walk shows a topic as it is when its turn comes.
    """

    def __init__(self) -> None:
        self._firsts: list[bytes] = []  # no name of a list, but the first one's, is below its own
        self._names: list[list[bytes]] = []
        self._values: list[list[V]] = []
        self._count = 0
        self._changes = 0

    def __len__(self) -> int:
        return self._count

    def get(self, topic: str) -> V | None:
        """The value of the topic, or None."""
        found = self.entry(topic.encode())
        return None if found is None else found[1]

    def entry(self, name: bytes) -> tuple[bytes, V] | None:
        """The name of the topic as it is kept here, and its value."""
        at, place = self._seek(name)
        if not self._has(name, at, place):
            return None
        return self._names[at][place], self._values[at][place]

    def set(self, topic: str, value: V) -> V | None:
        """Set or replace the value of the topic; that of before."""
        return self.put(topic.encode(), value)

    def put(self, name: bytes, value: V) -> V | None:
        """
        Set or replace the topic's value by name; the value of before. A new topic keeps the name.
        """
        at, place = self._seek(name)
        if self._has(name, at, place):
            before, self._values[at][place] = self._values[at][place], value
            return before
        if not self._names:
            self._firsts, self._names, self._values = [name], [[]], [[]]
        names, values = self._names[at], self._values[at]
        names.insert(place, name)
        values.insert(place, value)
        self._count += 1
        self._changes += 1
        if len(names) > 2 * LOAD:
            self._firsts.insert(at + 1, names[LOAD])
            self._names[at : at + 1] = [names[:LOAD], names[LOAD:]]
            self._values[at : at + 1] = [values[:LOAD], values[LOAD:]]
        return None

    def remove(self, topic: str) -> V | None:
        """Take the topic out; its value, or None when it had none."""
        name = topic.encode()
        at, place = self._seek(name)
        if not self._has(name, at, place):
            return None
        del self._names[at][place]
        value = self._values[at].pop(place)
        self._count -= 1
        self._changes += 1
        if not self._names[at]:
            del self._firsts[at], self._names[at], self._values[at]
        return value

    def match(self, topic_filter: str) -> Iterator[tuple[str, V]]:
        """The `(topic, value)` pairs that a new subscription to the filter is sent."""
        return ((name.decode(), value) for name, value in self.find(topic_filter))

    def find(self, topic_filter: str) -> Iterator[tuple[bytes, V]]:
        """The pairs of `match`, by name."""
        return (found for found in self.walk(topic_filter) if found is not None)

    def walk(self, topic_filter: str) -> Iterator[tuple[bytes, V] | None]:
        """
        The pairs of `find`, step by step; None: a step has found nothing, and there may be very
        many.
        """
        name = topic_filter.encode()
        if b"+" not in name and b"#" not in name:
            yield self.entry(name)
            return
        levels = name.split(b"/")
        # The prefix that all names have, its number of levels, and the place to look from.
        stack = [(b"", 0, b"")]
        while stack:
            yield None
            prefix, depth, start = stack.pop()
            level, left = levels[depth], levels[depth + 1 :]
            if level == b"#":
                yield from self._below(prefix) if depth else self._shared()
            elif level == b"+":
                yield from self._step(prefix, start, depth, left, stack)
            else:
                name = prefix + level
                found = self.entry(name) if left in ([], [b"#"]) else None
                if found is not None:
                    yield found
                if left:
                    stack.append((name + b"/", depth + 1, name + b"/"))

    def within(self, apex: str) -> Iterator[tuple[str, V]]:
        """The pairs at or below the apex; `""` gives all, those that start with `$` included."""
        return ((name.decode(), value) for name, value in self.find_within(apex))

    def find_within(self, apex: str) -> Iterator[tuple[bytes, V]]:
        """The pairs of `within`, by name."""
        top = apex.encode()
        found = self.entry(top) if top else None
        if found is not None:
            yield found
        yield from self._below(top + b"/" if top else b"")

    def discard_within(self, apex: str) -> int:
        """Take out what is at or below the apex; how many topics that were."""
        topics = [topic for topic, _ in self.within(apex)]
        for topic in topics:
            self.remove(topic)
        return len(topics)

    # -- internal

    def _seek(self, name: bytes) -> tuple[int, int]:
        """Which list a name is in, and where in that; or would be."""
        if not self._names:
            return 0, 0
        at = max(bisect_right(self._firsts, name) - 1, 0)
        return at, bisect_left(self._names[at], name)

    def _has(self, name: bytes, at: int, place: int) -> bool:
        return self._count > 0 and place < len(self._names[at]) and self._names[at][place] == name

    def _from(self, start: bytes) -> Iterator[tuple[bytes, V]]:
        """All from this name on."""
        changes, (at, place) = self._changes, self._seek(start)
        while at < len(self._names):
            if place == len(self._names[at]):
                at, place = at + 1, 0
                continue
            name = self._names[at][place]
            yield name, self._values[at][place]
            place += 1
            if changes != self._changes:
                changes, (at, place) = self._changes, self._seek(name + b"\0")

    def _below(self, prefix: bytes) -> Iterator[tuple[bytes, V]]:
        for name, value in self._from(prefix):
            if not name.startswith(prefix):
                return
            yield name, value

    def _shared(self) -> Iterator[tuple[bytes, V]]:
        """The pairs for which a leading wildcard stands [MQTT-4.7.2-1]."""
        for name, value in self._from(b""):
            if name.startswith(_DOLLAR):
                yield from self._from(_BEHIND_DOLLAR)
                return
            yield name, value

    def _step(
        self,
        prefix: bytes,
        start: bytes,
        depth: int,
        left: list[bytes],
        stack: list[tuple[bytes, int, bytes]],
    ) -> Iterator[tuple[bytes, V] | None]:
        """Names that end with the level of a `+`, up to one with others below, which is next."""
        is_end = left in ([], [b"#"])
        for name, value in self._from(start):
            if not name.startswith(prefix):
                return
            if not depth and name.startswith(_DOLLAR):
                stack.append((prefix, depth, _BEHIND_DOLLAR))
                return
            slash = name.find(b"/", len(prefix))
            if slash >= 0:
                stack.append((prefix, depth, name[:slash] + _BEHIND))
                if left:
                    below = name[: slash + 1]
                    stack.append((below, depth + 1, below))
                return
            yield (name, value) if is_end else None
