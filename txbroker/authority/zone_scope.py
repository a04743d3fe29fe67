"""
The topics that a node serves now: all within its zone's apex, without its cuts and fences.

DNS calls this a server's bailiwick. A fence stops publishes and interests (protocol rule 12).
Otherwise a subtree's next owner would never hear of an interest from after the fence.
"""

from __future__ import annotations

from collections.abc import Container

from txbroker.authority.edge_peer import TAKEN, EdgePeer, ParkedInterest, PublishVerdict
from txbroker.core import Router
from txbroker.core.topic_cache import TopicCache
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.model.topics import is_sys, is_within, may_match_within

TOPICS_JUDGED = 10_000
"""
The most topics whose verdict is cached. To judge anew costs microseconds, while each topic that
came once takes some 160 bytes.
"""


class ZoneScope:
    """
    The scope of the zone `apex`; `ours` contains topics that were judged TAKEN, as a short cut.
    """

    def __init__(self, apex: str, table: DelegationTable, router: Router) -> None:
        self._router = router
        self._judged: TopicCache[PublishVerdict] = TopicCache(TOPICS_JUDGED)
        self.ours: Container[str] = self._judged.young
        self._apex = apex
        self._table = table
        self._fences: set[str] = set()
        self._parked: list[ParkedInterest] = []

    def judge(self, topic: str) -> PublishVerdict:
        """Return the verdict on a publish to this topic, while the zone is served."""
        if self._judged.again(topic) is not None:
            return TAKEN
        if not is_within(topic, self._apex) or self._table.lookup(topic):
            return PublishVerdict.NOT_AUTHORITATIVE
        if is_sys(topic):  # each node has its own `$SYS` topics
            return PublishVerdict.NOT_AUTHORITATIVE
        if any(is_within(topic, apex) for apex in self._fences):
            return PublishVerdict.PARKED
        self._judged.put(topic, TAKEN)
        return TAKEN

    def judge_anew(self) -> None:
        """Discard all verdicts, as the served topics have changed."""
        self._judged.clear()
        self._router.bounds.replace(
            {
                self._apex: TAKEN,
                **dict.fromkeys(self._fences, PublishVerdict.PARKED),
                **{cut.apex: PublishVerdict.NOT_AUTHORITATIVE for cut in self._table.cuts()},
            }
        )

    # fences

    @property
    def is_fenced(self) -> bool:
        """True if a fence stands."""
        return bool(self._fences)

    def fence(self, apex: str) -> None:
        """Accept no more publishes and interests for the subtree."""
        self._fences.add(apex)
        self.judge_anew()

    def lift(self, apex: str) -> list[ParkedInterest]:
        """Lift the fence; return all parked interests, which the caller must request again."""
        self._fences.discard(apex)
        self.judge_anew()
        parked, self._parked = self._parked, []
        return parked

    def park(self, asked: ParkedInterest) -> bool:
        """Park an interest that a fence stops; return True if it was parked."""
        is_fenced = any(may_match_within(asked.topic_filter, apex) for apex in self._fences)
        if is_fenced:
            self._parked.append(asked)
        return is_fenced

    def withdraw(self, peer: EdgePeer, topic_filter: str) -> None:
        """Drop a parked interest that its edge has withdrawn."""
        if self._parked:
            self._parked = [
                asked
                for asked in self._parked
                if (asked.peer, asked.topic_filter) != (peer, topic_filter)
            ]
