"""
What of a zone is served here now: all within its apex, but for its cuts and its fences.

DNS calls what a server answers for its bailiwick. A fence is for publishes, and for interests, too
(protocol rule 12): the next owner of a subtree has not heard of one that comes after it.
"""

from __future__ import annotations

from collections.abc import Container

from txbroker.authority.edge_peer import TAKEN, EdgePeer, ParkedInterest, PublishVerdict
from txbroker.authority.edge_peers import TOPICS_REMEMBERED
from txbroker.core import Router, Run
from txbroker.core.topic_cache import TopicCache
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.model.topics import is_sys, is_within, may_match_within


class ZoneScope:
    """Of the zone `apex`; `ours` has topics that were judged to be in it, as a short cut."""

    def __init__(self, apex: str, table: DelegationTable, router: Router) -> None:
        self._router = router
        self._judged: TopicCache[PublishVerdict] = TopicCache(TOPICS_REMEMBERED)
        self.ours: Container[str] = self._judged.young
        self._apex = apex
        self._table = table
        self._fences: set[str] = set()
        self._parked: list[ParkedInterest] = []

    def judge(self, topic: str) -> PublishVerdict:
        """Whether a publish to this topic is to be taken, while the zone is served."""
        if self._judged.again(topic) is not None:
            return TAKEN
        if not is_within(topic, self._apex) or self._table.lookup(topic):
            return PublishVerdict.NOT_AUTHORITATIVE
        if is_sys(topic):  # each node's own
            return PublishVerdict.NOT_AUTHORITATIVE
        if any(is_within(topic, apex) for apex in self._fences):
            return PublishVerdict.PARKED
        self._judged.put(topic, TAKEN)
        return TAKEN

    def judge_anew(self) -> None:
        """What is served here changed."""
        self._judged.clear()
        self._router.bounds.replace(
            {
                self._apex: TAKEN,
                **dict.fromkeys(self._fences, PublishVerdict.PARKED),
                **{cut.apex: PublishVerdict.NOT_AUTHORITATIVE for cut in self._table.cuts()},
            }
        )

    def has(self, run: Run) -> bool:
        """Whether publishes to all of its topics are to be taken, while the zone is served."""
        return self._router.taken(run, TAKEN) == run.count

    # fences

    @property
    def is_fenced(self) -> bool:
        """Whether some subtree is."""
        return bool(self._fences)

    def fence(self, apex: str) -> None:
        """Take nothing more for the subtree."""
        self._fences.add(apex)
        self.judge_anew()

    def lift(self, apex: str) -> list[ParkedInterest]:
        """The fence goes; what was parked, by this one or another, is to be asked again."""
        self._fences.discard(apex)
        self.judge_anew()
        parked, self._parked = self._parked, []
        return parked

    def park(self, asked: ParkedInterest) -> bool:
        """Whether an interest has to wait for a fence; then it does."""
        is_fenced = any(may_match_within(asked.topic_filter, apex) for apex in self._fences)
        if is_fenced:
            self._parked.append(asked)
        return is_fenced

    def withdraw(self, peer: EdgePeer, topic_filter: str) -> None:
        """The edge does not want it any more."""
        if self._parked:
            self._parked = [
                asked
                for asked in self._parked
                if (asked.peer, asked.topic_filter) != (peer, topic_filter)
            ]
