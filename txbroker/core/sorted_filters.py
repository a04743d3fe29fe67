"""
Topic filters and apexes in the order of their texts: which of them meet at all.

The texts below a level begin with the same text, so they stand together. A question looks only at
texts that may be an answer. An apex that changes costs the filters that it meets, a filter the
apexes that it meets. Each text costs its place in a list. Answers come in lists, as they stand.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

LOAD = 512
"""Texts of a list when it was split: what one that is added moves is at most twice that."""


class SortedTexts:
    """A set of texts of levels, in their order."""

    def __init__(self) -> None:
        self._firsts: list[str] = []  # no text of a list, but the first one's, is below its own
        self._lists: list[list[str]] = []

    def __len__(self) -> int:
        return sum(map(len, self._lists))

    def __contains__(self, text: str) -> bool:
        at, place = self._seek(text)
        return at < len(self._lists) and self._lists[at][place : place + 1] == [text]

    def add(self, text: str) -> None:
        """Put it in, where it is not."""
        if not self._lists:
            self._firsts, self._lists = [text], [[]]
        at, place = self._seek(text)
        texts = self._lists[at]
        if place < len(texts) and texts[place] == text:
            return
        texts.insert(place, text)
        if len(texts) > 2 * LOAD:
            self._firsts.insert(at + 1, texts[LOAD])
            self._lists[at : at + 1] = [texts[:LOAD], texts[LOAD:]]

    def discard(self, text: str) -> None:
        """Take it out, where it is in."""
        if not self._lists:
            return
        at, place = self._seek(text)
        texts = self._lists[at]
        if place < len(texts) and texts[place] == text:
            del texts[place]
            if not texts:
                del self._firsts[at], self._lists[at]

    def has(self, prefix: str) -> bool:
        """True if a text begins with this."""
        return self._next(prefix).startswith(prefix) if self._lists else False

    def starting(self, prefix: str) -> Iterator[list[str]]:
        """All that begin with this, which ends with a slash; with "": all."""
        if not prefix:
            yield from map(list, list(self._lists))
            return
        first, start = self._seek(prefix)
        last, end = self._seek(prefix[:-1] + "0")  # what follows a slash
        if first == last:
            if start < end:
                yield self._lists[first][start:end]
            return
        yield self._lists[first][start:]
        yield from map(list, self._lists[first + 1 : last])
        yield self._lists[last][:end]

    def within(self, apex: str) -> Iterator[list[str]]:
        """The apex itself, and all that is below it."""
        if not apex:
            yield from self.starting("")
            return
        if not self.has(apex):
            return
        if apex in self:
            yield [apex]
        yield from self.starting(apex + "/")

    def _seek(self, text: str) -> tuple[int, int]:
        """Which list a text is in, and where in that; or would be."""
        if not self._lists:
            return 0, 0
        at = bisect_right(self._firsts, text, 1) - 1  # What comes before all is in the first list.
        return at, bisect_left(self._lists[at], text)

    def _next(self, text: str) -> str:
        """The first one that is this or comes after it; "" where there is none."""
        at, place = self._seek(text)
        if place == len(self._lists[at]):
            at, place = at + 1, 0
        return self._lists[at][place] if at < len(self._lists) else ""


class SortedFilters(SortedTexts):
    """Topic filters, found by apex."""

    def wild(self, apex: str, may_branch: Callable[[int], bool]) -> Iterator[list[str]]:
        """
        The filters that may match within the apex, with a wildcard in the place of one of its
        levels.

        `may_branch` says of a depth, in levels, whether those count whose first one is there.
        """
        levels = apex.split("/") if apex else []
        prefix = ""
        for depth, level in enumerate(levels):
            if not self.has(prefix):
                return
            if may_branch(depth):
                if prefix + "#" in self:
                    yield [prefix + "#"]
                yield from self._below(prefix + "+", depth + 1, levels)
            prefix += level + "/"

    def touching(self, apex: str) -> Iterator[list[str]]:
        """All that may match within the apex."""
        yield from self.within(apex)
        yield from self.wild(apex, lambda depth: True)

    def _below(self, text: str, depth: int, levels: list[str]) -> Iterator[list[str]]:
        """
        The filters that begin with these levels, and go on as the apex does, or with wildcards.
        """
        stack = [(text, depth)]
        while stack:
            text, depth = stack.pop()
            base = text + "/"
            if depth == len(levels):
                if text in self:
                    yield [text]
                yield from self.starting(base)
            elif self.has(base):
                if base + "#" in self:
                    yield [base + "#"]
                stack += ((base + "+", depth + 1), (base + levels[depth], depth + 1))


class SortedApexes(SortedTexts):
    """Apexes of zones, found by filter."""

    def met_by(self, topic_filter: str) -> Iterator[str]:
        """The apexes within which the filter may match something."""
        levels = topic_filter.split("/")
        stack = [("", 0)]
        while stack:
            prefix, depth = stack.pop()
            level = levels[depth]
            if level == "#":
                for texts in self.starting(prefix):
                    yield from texts
                continue
            found = [prefix + level] if level != "+" else self._steps(prefix)
            for text in found:
                if text in self:
                    yield text
                if depth + 1 < len(levels) and self.has(text + "/"):
                    stack.append((text + "/", depth + 1))

    def _steps(self, prefix: str) -> Iterator[str]:
        """The texts one level below the prefix."""
        found = self._next(prefix) if self._lists else ""
        while found and found.startswith(prefix):
            text = prefix + found[len(prefix) :].partition("/")[0]
            # Others stand between a level and what is below it: `a`, `a!`, `a/b`.
            if found == text or text not in self:
                yield text
            found = self._next(text + "\0" if found == text else text + "0")
