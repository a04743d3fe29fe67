"""
Members that are silent, so that their clients' wills are due (protocol rule 25).

Theory of operation. Signs of life from each member to each other would cost a site the square of
its members. So all members stand in one order, and the three that follow a member *watch* it. A
member shows signs of life to its three watchers. A silent member is skipped in that order. If many
members die at once, a living member watches the last of them, then the last three, and so on.

A watcher asks a silent member itself. If no answer comes, the watcher notifies all others, which
ask once more before they act.

A keeper of wills also asks, rarely, each member that it does not watch. Otherwise watchers of an
older version, or watchers that notify no member, would hide a dead node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from txbroker.directory.heartbeat import patience
from txbroker.directory.members import Members

WATCHERS = 3
"""Members that watch one member."""

TOLD = 1_000
"""Upper bound of silent members that one member's report may name."""

RARELY = 3.0
"""Multiples of `after` between questions to an unwatched member; more in a large site."""


REPORTS = 200
"""
Upper bound of messages a second that all members together send with reports of silent members.

Members of a busy machine answered late, and each such member was reported to all, and again when it
answered. These reports kept the machine busy.
"""


class SilentMembers:
    """
    The silent members as this node knows them; `after` seconds of silence make a member absent.

    `silent` is the report for others: the watched members that do not answer. `version` grows with
    each report.
    """

    def __init__(self, members: Members, after: float, now: Callable[[], float]) -> None:
        self.version = 0
        self.silent: tuple[str, ...] = ()
        self._members = members
        self._after = after
        self._patience = patience(after)
        self._now = now
        self._start = now()
        self._next_report = 0.0
        self._heard: dict[str, float] = {}
        self._seen: dict[str, None] = {}
        self._told: dict[str, frozenset[str]] = {}
        self._silent: dict[str, None] = {}
        self._places = members.places
        self._around: tuple[frozenset[str], frozenset[str]] | None = None
        members.when_changed(self._on_members)

    # from the calls to members

    def record_contact(self, name: str) -> None:
        """Note that a message or an answer of the member came."""
        self._heard[name] = self._now()
        if name in self._silent:
            del self._silent[name]
            self._around = None
        self._seen.pop(name, None)

    def missed(self, name: str) -> None:
        """Note that a due member did not answer."""
        self._believe(name)
        if name in self.watched:
            self._seen[name] = None
            self.report()

    def store_report(self, source: str, silent: Iterable[str]) -> None:
        """
        Store the report of another member: these members do not answer, the others it watches do.
        """
        known = self._told.get(source, frozenset())
        # A liar's report must not fill the memory with names of no member.
        news = frozenset(filter(self._members.is_peer, islice(silent, TOLD)))
        if news == known:
            return
        if news:
            self._told[source] = news
        else:
            self._told.pop(source, None)
        for name in news - known:
            self._believe(name)
        for name in known - news:
            if name in self._silent and name not in self._seen:
                del self._silent[name]
                self._around = None

    def report(self) -> None:
        """Make a new report if its time has come and members fell silent or answered."""
        if self._now() >= self._next_report and set(self.silent) != self._seen.keys():
            self.silent = tuple(self._seen)
            self.version += 1
            self._next_report = self._now() + len(self._places.names) ** 2 / REPORTS

    # from wills and heartbeats

    def last_heard(self, name: str) -> float:
        """Return the time of the member's last message, or of this object's start."""
        return self._heard.get(name, self._start)

    def is_due(self, name: str) -> bool:
        """True if the member was silent for so long that this node should ask it."""
        if name in self._silent or not self._members.is_peer(name):
            return True
        is_watched = name in self.watched
        rarely = max(RARELY * self._after, float(len(self._places.names)))
        since = self._now() - self.last_heard(name)
        return since >= (self._patience if is_watched else rarely)

    def due(self) -> list[str]:
        """Return the watched members that this node should ask."""
        return [name for name in self.watched if self.is_due(name)]

    @property
    def watched(self) -> frozenset[str]:
        """Return the members that this node watches."""
        return self._neighbours()[0]

    @property
    def watchers(self) -> frozenset[str]:
        """Return the members that watch this node."""
        return self._neighbours()[1]

    # internal

    def _believe(self, name: str) -> None:
        if name not in self._silent:
            self._silent[name] = None
            self._around = None

    def _neighbours(self) -> tuple[frozenset[str], frozenset[str]]:
        if self._around is None:
            ring = self._places.ring(self._members.name)
            self._around = self._next(reversed(ring)), self._next(ring)
        return self._around

    def _next(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names up to the third that is not silent."""
        found: set[str] = set()
        living = 0
        for name in names:
            found.add(name)
            living += name not in self._silent
            if living == WATCHERS:
                break
        return frozenset(found)

    def _on_members(self) -> None:
        if self._members.places is self._places:
            return
        self._places = self._members.places
        self._around = None
        for known in (self._heard, self._told, self._silent):
            for name in [name for name in known if not self._members.is_peer(name)]:
                del known[name]
        for name in [name for name in self._seen if not self._members.is_peer(name)]:
            del self._seen[name]
        self.silent = tuple(name for name in self.silent if self._members.is_peer(name))
