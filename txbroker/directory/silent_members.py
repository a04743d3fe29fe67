"""
Which members have fallen silent, so that their clients' wills are due.

If each member showed each other one that it lives, a site would carry the square of its members in
signs of life. So each is *watched* by the three that follow it in one order of all members, and
shows itself to those. Who is silent is passed over: of many that die at once, the last one in the
order is watched by one that lives, then the last three, and so on. A watcher asks a silent member
itself; if that gives no answer, all others are told. They ask once more before they act on it.

Whoever keeps wills of a member that it does not watch asks for it now and then, too, in case that
its watchers are of an older version, or tell nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from txbroker.directory.heartbeat import patience
from txbroker.directory.members import Members

WATCHERS = 3
"""Members that watch one."""

TOLD = 1_000
"""Silent members that are believed of one that tells of them."""

RARELY = 3.0
"""Times `after` in which a member is asked that is not watched here; longer in a large site."""


class SilentMembers:
    """What node `members.name` knows; `after` seconds of silence make a member absent."""

    def __init__(self, members: Members, after: float, now: Callable[[], float]) -> None:
        self.version = 0
        self._members = members
        self._after = after
        self._patience = patience(after)
        self._now = now
        self._start = now()
        self._heard: dict[str, float] = {}
        self._seen: dict[str, None] = {}
        self._told: dict[str, frozenset[str]] = {}
        self._silent: dict[str, None] = {}
        self._places = members.places
        self._around: tuple[frozenset[str], frozenset[str]] | None = None
        members.when_changed(self._on_members)

    # from those who hear members, or do not

    def heard(self, name: str) -> None:
        """The member said something, or answered."""
        self._heard[name] = self._now()
        if name in self._silent:
            del self._silent[name]
            self._around = None
        if name in self._seen:
            del self._seen[name]
            self.version += 1

    def missed(self, name: str) -> None:
        """The member is due and did not answer."""
        self._believe(name)
        if name in self.watched and name not in self._seen:
            self._seen[name] = None
            self.version += 1

    def told(self, source: str, silent: Iterable[str]) -> None:
        """Another member says that these do not answer it, and all others that it watches do."""
        known = self._told.get(source, frozenset())
        news = frozenset(list(silent)[:TOLD])
        if news == known:
            return
        if news:
            self._told[source] = news
        else:
            self._told.pop(source, None)
        for name in news - known:
            if self._members.is_peer(name):
                self._believe(name)
        for name in known - news:
            if name in self._silent and name not in self._seen:
                del self._silent[name]
                self._around = None

    # from those who ask

    @property
    def silent(self) -> tuple[str, ...]:
        """The members watched here that do not answer: what others are told."""
        return tuple(self._seen)

    def last_heard(self, name: str) -> float:
        """When that was."""
        return self._heard.get(name, self._start)

    def is_due(self, name: str) -> bool:
        """True if the member should be asked, as it was not heard for so long."""
        if name in self._silent or not self._members.is_peer(name):
            return True
        is_watched = name in self.watched
        rarely = max(RARELY * self._after, float(len(self._places.names)))
        since = self._now() - self.last_heard(name)
        return since >= (self._patience if is_watched else rarely)

    def due(self) -> list[str]:
        """Members watched here that should be asked."""
        return [name for name in self.watched if self.is_due(name)]

    @property
    def watched(self) -> frozenset[str]:
        """The members that this node watches."""
        return self._neighbours()[0]

    @property
    def watchers(self) -> frozenset[str]:
        """The members that watch this node."""
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
        """Up to the third one that is not silent."""
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
            self.version += 1
