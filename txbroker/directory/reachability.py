"""
Members that do not answer this node, and for how long, as the calling shell has observed.

In a site of two members the entry of a client id has two keepers, and a majority is both. A node
whose peer is *known* to be away stands for both. Such a node may begin sessions. The nodes merge
them when they meet, as those of a site that was cut off. Proof is several unanswered calls, over a
longer time than a quick restart.

A member may also be slow, as all nodes of a busy machine are. The node measures how long each
member takes to answer, as TCP does, and waits as much longer. Otherwise each answer would come too
late, and the repeated calls would keep the machine busy.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from txbroker.directory.requests import Ping, Register, Request

AWAY = 2.0
"""Seconds of unanswered calls after which a member is known to be away."""

CALLS = 2
"""Lower bound of unanswered calls in that time."""

SHORTEST = 1.0
LONGEST = 10.0
"""Seconds to wait for an answer: of a member that answers in time, and of any member."""

REMEMBERED = 60.0
"""Seconds for which the time of an answer counts: a member that was busy must not stay slow."""

ATTEMPTS = 200
"""Upper bound of repeated calls a second of all members together, while nobody answers in time."""

GRACE = 0.1
"""Seconds by which the end of a call may come early."""

ANY = ""
"""The place of all members together: a member that has not answered yet is as slow as these."""


@attrs.define(slots=True)
class _AnswerTime:
    """The mean and the mean deviation of a member's answers; the last one came at `noted`."""

    mean: float
    deviation: float
    noted: float

    def add(self, seconds: float, now: float) -> None:
        """Count one more answer (RFC 6298)."""
        self.deviation += (abs(seconds - self.mean) - self.deviation) / 4
        self.mean += (seconds - self.mean) / 8
        self.noted = now

    @property
    def patience(self) -> float:
        """Return the seconds after which an answer is late."""
        return min(max(self.mean + 4 * self.deviation, SHORTEST), LONGEST)


class Reachability:
    """The record of the module; `now` in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._silent: dict[str, tuple[float, int]] = {}
        self._times: dict[str, _AnswerTime] = {}

    def record_contact(self, name: str) -> None:
        """Note that the member answered, or asked something."""
        self._silent.pop(name, None)

    def answered(self, name: str, began: float) -> None:
        """Note that the member answered a call that began at `began`."""
        now = self._now()
        for key in (name, ANY):
            known = self._recent(key)
            if known is None:
                self._times[key] = _AnswerTime(now - began, (now - began) / 2, now)
            else:
                known.add(now - began, now)

    def patience(self, name: str) -> float:
        """Return the seconds to wait for an answer of the member."""
        known = self._recent(name) or self._recent(ANY)
        if known is None:
            return SHORTEST
        return known.patience

    def longest_wait(self, name: str, members: int) -> float:
        """
        Return the seconds after which the member's answer is given up, in a site of so many.

        A late answer saves a repetition and tells how slow the member is. But nothing else is sent
        meanwhile: in a small site, which repetitions cannot overload, the wait is short.
        """
        return min(max(2 * self.patience(name), members**2 / ATTEMPTS), LONGEST)

    def reply_wait(self, name: str, request: Request, members: int) -> float:
        """Return the seconds to wait for the member's reply, in a site of so many."""
        match request:
            case Register():
                return self.longest_wait(name, members)
            case Ping():
                return self.patience(name)
            case _:
                return SHORTEST  # a client may wait for the reply

    def is_early(self, began: float, waited: float) -> bool:
        """
        True if answers take longer by now than the `waited` seconds of a call that got none.

        A call that was refused before its time has its answer, in effect.
        """
        known = self._recent(ANY)
        is_over = self._now() - began > waited - GRACE
        return is_over and known is not None and known.patience > waited

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
        for name in [name for name in self._times if name != ANY and not is_known(name)]:
            del self._times[name]

    # internal

    def _recent(self, name: str) -> _AnswerTime | None:
        known = self._times.get(name)
        return None if known is None or self._now() - known.noted >= REMEMBERED else known
