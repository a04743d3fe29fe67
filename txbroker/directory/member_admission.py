"""
The admission of members that another node names: a member counts once it has answered this node.

Theory of operation. A member keeps entries, so a majority of a client's keepers needs it. The word
of one node alone makes no member. Otherwise one message with ten thousand invented members would
leave durable clients without a majority. This node asks a node that a child or a call names, at the
named address. The named node is no member before its answer.

Members that this node's own parent names are believed, since the parent has asked. So all nodes of
a site reach the same list, and a cut moves no entry. A node that is cut off stays a member.

A member's new address is asked, too, before use. A removal needs no answer: a command makes it, of
a node that does not answer. The command reaches unanswered members, too. Until the removal other
nodes count them as keepers, and see other members than this node.

Questions leave at a bounded rate, in turn for each source. Members beyond the room of a source are
left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import attrs

from txbroker.delegation.peer_checks import AHEAD
from txbroker.directory.members import Member, Members

WAITING = 10_000
"""Upper bound of unanswered members, over all sources."""

AT_ONCE = 16
"""Concurrent questions."""

BURST = 200.0
RATE = 20.0
"""Questions that may leave at once, and each second from then on."""

SHARED = 3
"""Members that may share one address: a new one, and others that had it before."""

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
"""Seconds until a silent node is asked again, doubled from the first on; and the upper bound."""

KEPT = 60.0
"""
Seconds for which a call's members are remembered; a stream's members stay until the stream ends.
"""


@attrs.define(slots=True, eq=False)
class _Waiting:
    """
    An unanswered member: forgotten at `until` (None: never), last asked at `since`, again at `due`.
    """

    member: Member
    until: float | None
    due: float
    since: float = float("-inf")
    pause: float = FIRST_PAUSE
    is_asked: bool = False


@attrs.frozen(kw_only=True)
class MemberProbe:
    """The question to the node at `member.grpc` whether it is that member, which `source` named."""

    source: object
    member: Member


class MemberAdmission:
    """The admission of the module; `wake` is called when a question is due."""

    def __init__(
        self, members: Members, now: Callable[[], float], wake: Callable[[], object]
    ) -> None:
        self._members = members
        self._now = now
        self._wake = wake
        self._waiting: dict[object, dict[str, _Waiting]] = {}
        self._count = 0
        self._asked = 0
        self._left = BURST
        self._since = now()
        self._next_look = 0.0  # before that time no question is due

    # from the node

    def store_members(
        self, source: object, members: Iterable[Member], *, is_stream: bool = False
    ) -> None:
        """Store the members that a node names, over its join stream or in a call."""
        believed: list[Member] = []
        until = None if is_stream else self._now() + KEPT
        for member in members:
            if self._is_believed(member):
                believed.append(member)
            elif self._is_news(member):
                self._wait(source, member, until)
        self._members.merge(believed, source)

    def forget(self, source: object) -> None:
        """Forget the members of a stream that ended; the source sends all again when it returns."""
        for name in list(self._waiting.get(source, ())):
            self._drop(source, name)

    def on_call(self, name: str) -> None:
        """Ask a member soon that calls this node: it is there, however long it was silent."""
        for mine in self._waiting.values():
            if name in mine:
                waiting = mine[name]
                waiting.due = min(waiting.due, waiting.since + FIRST_PAUSE)
                self._next_look = 0.0

    def find(self, name: str) -> Member | None:
        """Return the newest record of a member, answered or not; None: no node names it."""
        found = [mine[name].member for mine in self._waiting.values() if name in mine]
        member = self._members.get(name)
        if member is not None:
            found.append(member)
        return max(found, key=lambda record: record.rank, default=None)

    def remove(self, name: str) -> None:
        """Remove a member by command: no node relies on it any more."""
        member = self.find(name)
        for source in [source for source, mine in self._waiting.items() if name in mine]:
            self._drop(source, name)
        if member is not None:
            self._members.remove_record(member)

    def due(self) -> list[MemberProbe]:
        """Return the questions to send now; `answered` reports each outcome."""
        now = self._now()
        self._left = min(self._left + (now - self._since) * RATE, BURST)
        self._since = now
        found: list[MemberProbe] = []
        # The caller asks in each turn: thousands of silent members must cost nothing then.
        if now < self._next_look or not self._may_ask():
            return found
        self._next_look = self._next_due()
        for asked in self._in_turn(now):
            if not self._may_ask():
                self._next_look = 0.0
                break
            self._asked += 1
            self._left -= 1.0
            self._waiting[asked.source][asked.member.name].is_asked = True
            found.append(asked)
        return found

    def answered(self, asked: MemberProbe, *, is_member: bool) -> None:
        """End a question; `is_member` False: another node, or none, answered at the address."""
        self._asked -= 1
        member = asked.member
        waiting = self._waiting.get(asked.source, {}).get(member.name)
        if waiting is None:
            return
        waiting.is_asked = False
        if waiting.member != member:
            return  # the source sent a newer record meanwhile
        if is_member:
            self._drop(asked.source, member.name)
            if self._is_news(member):
                self._members.merge([member], asked.source)
            return
        waiting.since = self._now()
        waiting.due = waiting.since + waiting.pause
        waiting.pause = min(waiting.pause * 2, LONGEST_PAUSE)
        self._next_look = min(self._next_look, waiting.due)

    @property
    def waiting(self) -> int:
        """Return how many named members have not answered."""
        return self._count

    # internal

    def _may_ask(self) -> bool:
        return self._asked < AT_ONCE and self._left >= 1.0

    def _next_due(self) -> float:
        """Return when the next member is due or forgotten, of those that are not yet due."""
        now = self._now()
        times = (
            at
            for mine in self._waiting.values()
            for waiting in mine.values()
            for at in (waiting.due, waiting.until)
            if at is not None and at > now
        )
        return min(times, default=math.inf)

    def _is_believed(self, member: Member) -> bool:
        """True if no question is needed: the record makes no new place, or repeats a known one."""
        known = self._members.get(member.name)
        if member.removed or member.name == self._members.name:
            return True
        return known is not None and (member.grpc, member.site, member.identity) == (
            known.grpc,
            known.site,
            known.identity,
        )

    def _is_news(self, member: Member) -> bool:
        known = self._members.record(member.name)
        if known is None:
            return member.version <= AHEAD and self._members.count_at(member.grpc) < SHARED
        return known.rank < member.rank and member.version <= known.version + AHEAD

    def _wait(self, source: object, member: Member, until: float | None) -> None:
        mine = self._waiting.setdefault(source, {})
        known = mine.get(member.name)
        if known is not None and known.member.rank >= member.rank:
            known.until = until
            return
        if known is None:
            if self._count >= WAITING and not self._make_room(source):
                return
            self._count += 1
        mine[member.name] = _Waiting(member, until, self._now())
        self._next_look = 0.0
        self._wake()

    def _make_room(self, source: object) -> bool:
        """Forget a member of the source that names most; return False if that is `source`."""
        most = max(self._waiting, key=lambda one: len(self._waiting[one]))
        if most == source:
            return False
        self._drop(most, next(reversed(self._waiting[most])))
        return True

    def _drop(self, source: object, name: str) -> None:
        mine = self._waiting[source]
        del mine[name]
        self._count -= 1
        if not mine:
            del self._waiting[source]

    def _in_turn(self, now: float) -> Iterator[MemberProbe]:
        """Yield one question of each source in turn."""
        for source, mine in list(self._waiting.items()):
            for name in [n for n, w in mine.items() if w.until is not None and w.until <= now]:
                self._drop(source, name)
        queues = [
            (source, iter([w for w in mine.values() if not w.is_asked and w.due <= now]))
            for source, mine in self._waiting.items()
        ]
        while queues:
            left = []
            for source, queue in queues:
                waiting = next(queue, None)
                if waiting is not None:
                    yield MemberProbe(source=source, member=waiting.member)
                    left.append((source, queue))
            queues = left
