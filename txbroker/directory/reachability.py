"""
Which members do not answer this node, and for how long: what the shell that calls them has seen.

In a site of two the entry of a client id has two keepers, and a majority of the two is both. A node
whose peer is *known* to be away stands for both: it may begin sessions, which are merged when the
two meet, as those of a site that was cut off. Several calls show it, over a longer time than a
quick restart takes.
"""

from __future__ import annotations

from collections.abc import Callable

AWAY = 2.0
"""Seconds without an answer, calls being made, after which a member is known to be away."""

CALLS = 2
"""Calls in that time that were not answered, at the least."""


class Reachability:
    """See the module's text; `now` in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._silent: dict[str, tuple[float, int]] = {}

    def heard(self, name: str) -> None:
        """The member answered, or asked something."""
        self._silent.pop(name, None)

    def missed(self, name: str, began: float) -> None:
        """A call to the member, begun then, was not answered."""
        since, calls = self._silent.get(name, (began, 0))
        self._silent[name] = since, calls + 1

    def is_away(self, name: str) -> bool:
        """Whether the member is known to be away."""
        since, calls = self._silent.get(name, (self._now(), 0))
        return calls >= CALLS and self._now() - since >= AWAY

    def keep(self, is_known: Callable[[str], bool]) -> None:
        """Others are no members."""
        self._silent = {name: seen for name, seen in self._silent.items() if is_known(name)}
