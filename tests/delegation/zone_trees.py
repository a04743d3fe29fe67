"""
Random trees of zones, and what their nodes answer where they are honest.
"""

from __future__ import annotations

import attrs
from hypothesis import strategies as st

from txbroker.delegation.delegation_table import nest
from txbroker.delegation.resolution import AnswerKind, ZoneAnswer
from txbroker.delegation.tree_walk import NodeAnswer
from txbroker.model.topics import is_below, is_filter_within, may_match_within
from txbroker.model.zone_cut import ZoneCut

LEVELS = st.sampled_from("abc")
APEXES = st.lists(LEVELS, max_size=4).map("/".join)
FILTERS = st.lists(st.sampled_from([*"abcd", "+"]), min_size=1, max_size=5).map("/".join)
QUESTIONS = st.one_of(FILTERS, FILTERS.map(lambda text: f"{text}/#"), st.just("#"))


def cut_of(apex: str, epoch: int = 1) -> ZoneCut:
    """The zone of this apex; its node and address have names of their own."""
    name = apex.replace("/", "-") or "root"
    return ZoneCut(apex=apex, epoch=epoch, node=f"n-{name}", grpc=f"{name}:1")


@attrs.frozen
class ZoneTree:
    """Zones, and those of them whose nodes do not answer."""

    apexes: frozenset[str]
    away: frozenset[str] = frozenset()

    def below(self, apex: str) -> list[ZoneCut]:
        """The cuts at any depth."""
        return [cut_of(other) for other in sorted(self.apexes) if is_below(other, apex)]

    def cuts(self, apex: str) -> list[ZoneCut]:
        """The cuts of the zone itself."""
        below = self.below(apex)
        return [c for c in below if not any(is_below(c.apex, d.apex) for d in below)]

    def lineage(self, apex: str) -> tuple[ZoneCut, ...]:
        """The zones above, root first."""
        above = sorted((one for one in self.apexes if is_below(apex, one)), key=len)
        return tuple(map(cut_of, above))

    def owners(self, question: str) -> set[str]:
        """The zones that hold topics that the question may match."""
        return {
            apex
            for apex in self.apexes
            if may_match_within(question, apex)
            and not any(is_filter_within(question, cut.apex) for cut in self.cuts(apex))
        }

    def resolve(self, apex: str, question: str) -> ZoneAnswer | None:
        """The answer of the zone's node to a question of a walk."""
        if apex in self.away:
            return None
        kind, lineage = AnswerKind.NOT_AUTHORITATIVE, self.lineage(apex)
        if not may_match_within(question, apex):
            return ZoneAnswer(kind=kind, zone=cut_of(apex), ttl=1, lineage=lineage)
        cuts = self.cuts(apex)
        referrals = tuple(cut for cut in cuts if may_match_within(question, cut.apex))
        return ZoneAnswer(
            kind=AnswerKind.REFERRAL if referrals else AnswerKind.AUTHORITATIVE,
            zone=cut_of(apex),
            ttl=1,
            is_local=not any(is_filter_within(question, cut.apex) for cut in cuts),
            referrals=referrals,
            lineage=lineage,
        )

    def status(self, apex: str) -> NodeAnswer | None:
        """What the zone's node tells of itself and of those around it."""
        if apex in self.away:
            return None
        return NodeAnswer(
            own=cut_of(apex),
            lineage=self.lineage(apex),
            zones=nest(self.below(apex)),
        )


@st.composite
def zone_trees(draw: st.DrawFn, *, with_away: bool = False) -> ZoneTree:
    """Some zones below the root's; the root's node always answers."""
    apexes = draw(st.frozensets(APEXES, max_size=8)) | {""}
    away = draw(st.frozensets(st.sampled_from(sorted(apexes)))) if with_away else frozenset()
    return ZoneTree(apexes, away - {""})
