"""
Members that do not answer this node, and for how long, as the calling shell has observed.

In a site of two members the entry of a client id has two keepers, and a majority is both. A node
whose peer is *known* to be away stands for both. Such a node may begin sessions. The nodes merge
them when they meet, as those of a site that was cut off. Proof is several unanswered calls, over a
longer time than a quick restart.
"""

from __future__ import annotations

from collections.abc import Callable

AWAY = 2.0
"""Seconds of unanswered calls after which a member is known to be away."""

CALLS = 2
"""Lower bound of unanswered calls in that time."""


class Reachability:
    """The record of the module; `now` in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._silent: dict[str, tuple[float, int]] = {}

    def record_contact(self, name: str) -> None:
        """Note that the member answered, or asked something."""
        self._silent.pop(name, None)

    def missed(self, name: str, began: float) -> None:
        """Note that the member did not answer a call that began at `began`."""
        since, calls = self._silent.get(name, (began, 0))
        self._silent[name] = since, calls + 1

    def is_away(self, name: str) -> bool:
        """True if the member is known to be away."""
        since, calls = self._silent.get(name, (self._now(), 0))
        return calls >= CALLS and self._now() - since >= AWAY

    def forget_unknown(self, is_known: Callable[[str], bool]) -> None:
        """Delete the records of nodes that are no members."""
        self._silent = {name: seen for name, seen in self._silent.items() if is_known(name)}
