"""
A walk to the owners of a topic or filter: which node to ask next, and what an answer means. Pure.

The walk has no cache. The walk begins at the node that it is given, else at the deepest zone above
that this node knows. Each round asks the nodes that the last round referred to, all at the same
time.

A referral names a zone strictly below the zone that gives it. No zone is asked twice at one epoch
(protocol rule 14). So a walk ends, whatever nodes say.
"""

from __future__ import annotations

from enum import StrEnum

import attrs

from txbroker.model.errors import PeerError
from txbroker.model.topics import is_below, is_filter_within
from txbroker.model.zone_cut import ZoneCut


class AnswerKind(StrEnum):
    """
    A node's answer. `START`: it does not cover the question, and tells where a walk can begin;
    `LOCAL`: the question is about `$SYS`, which each node has for itself.
    """

    AUTHORITATIVE = "authoritative"
    REFERRAL = "referral"
    NOT_AUTHORITATIVE = "not authoritative"
    START = "start"
    UNREACHABLE = "unreachable"
    LOCAL = "local"


class ResolutionError(PeerError):
    """The walk cannot go on."""


@attrs.frozen(kw_only=True)
class ZoneAnswer:
    """
    The answer of a node about its zone, good for `ttl` seconds. `is_local`: a part of the question
    is that zone's own. `lineage`: the zones above, the root first.
    """

    kind: AnswerKind
    zone: ZoneCut
    ttl: int | None = None
    is_local: bool = False
    referrals: tuple[ZoneCut, ...] = ()
    lineage: tuple[ZoneCut, ...] = ()


def start_at(address: str) -> ZoneCut:
    """Whom to ask first: the node at an address, of which nothing is known."""
    return ZoneCut(apex="", epoch=0, node="", grpc=address)


class Resolution:
    """
    The walk for one question; `is_complete`: every part of it found its owner.

    Invariant: a referral that is followed lies below the zone that gave it. No zone is referred to
    twice at one epoch.
    """

    def __init__(self, question: str, address: str) -> None:
        self.steps: list[tuple[ZoneCut, ZoneAnswer]] = []
        """The zones that were asked, each with its answer."""
        self.owners: list[ZoneCut] = []
        self.is_complete = True
        self._question = question
        self._queries = {"": start_at(address)}
        self._starts: list[ZoneCut] = []  # where the walk can begin, the deepest one last
        self._asked: dict[str, int] = {}

    def next_queries(self) -> list[ZoneCut]:
        """Take the zones to ask in this round, by apex; none: the walk is over."""
        queries, self._queries = self._queries, {}
        return sorted(queries.values(), key=lambda cut: cut.apex.split("/"))

    def accept_answer(self, asked: ZoneCut, answer: ZoneAnswer | None) -> None:
        """
        The answer to a query, None: there was none. Raises `ResolutionError` where the walk has no
        zone to begin at, or a node breaks the rules of referrals.
        """
        question, is_first = self._question, not self.steps
        told = answer or ZoneAnswer(kind=AnswerKind.UNREACHABLE, zone=asked)
        is_owner = told.kind in (AnswerKind.AUTHORITATIVE, AnswerKind.REFERRAL)
        if is_first and answer and not (is_owner and is_filter_within(question, told.zone.apex)):
            is_owner = False
            told = attrs.evolve(told, kind=AnswerKind.START, referrals=())
            self._starts = [cut for cut in told.lineage if is_filter_within(question, cut.apex)]
            if not self._starts:
                raise ResolutionError(
                    f"{asked.grpc} knows no zone that covers {question!r};"
                    " has it joined its parent?"
                )
        self.steps.append((asked, told))
        if is_owner:
            self._starts = []
            self._follow(told.zone.apex if is_first else asked.apex, asked.grpc, told)
        elif self._starts:
            start = self._starts.pop()
            self._queries[start.apex] = start
        else:
            self.is_complete = False
        if answer is None:
            self.is_complete = False  # also where the zone above knows the owners

    # internal

    def _follow(self, apex: str, address: str, answer: ZoneAnswer) -> None:
        if answer.zone.apex != apex:
            raise ResolutionError(
                f"{address} was asked about zone {apex!r} and answers about zone"
                f" {answer.zone.apex!r}; the walk ends here"
            )
        if answer.is_local:
            self.owners.append(answer.zone)
        for cut in answer.referrals:
            if not is_below(cut.apex, apex):
                raise ResolutionError(
                    f"{address} serves zone {apex!r} and refers to zone {cut.apex!r},"
                    " which is not below it; the walk ends here"
                )
            # Each zone that was told twice doubled the questions of the zones below it.
            if cut.epoch > self._asked.get(cut.apex, -1):
                self._asked[cut.apex] = cut.epoch
                self._queries[cut.apex] = cut
