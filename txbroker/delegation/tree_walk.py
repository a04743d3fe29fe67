"""
A walk over the nodes of a tree of zones: which node to ask next, and what the tree looks like.
Pure.

Each node tells of the nodes around it, and each of those is asked itself. A node may not answer.
Then the word of the zone above stands, also for the zones below the node: grandchildren may well be
alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from txbroker.delegation.delegation_table import Delegation, nest
from txbroker.model.zone_cut import ZoneCut


@attrs.frozen(kw_only=True)
class NodeAnswer:
    """
    A node's word on itself and on the nodes around it; `own` has the address that was asked.

    `serves`: its zone is `own.apex`, and open. The apex of a pure edge means nothing.
    """

    own: ZoneCut
    owns_zone: bool = True
    serves: bool = True
    lineage: tuple[ZoneCut, ...] = ()
    zones: tuple[Delegation, ...] = ()
    edges: tuple[ZoneCut, ...] = ()
    reclaimed: tuple[ZoneCut, ...] = ()

    @property
    def below(self) -> list[ZoneCut]:
        """The cuts of all zones below, at any depth."""
        return [cut for child in self.zones for cut in (child.cut, *child.below)]


@attrs.frozen(kw_only=True)
class TreePlace:
    """
    A zone, or a pure edge (`zone` is None), and the name of the node above it. `answer` is None
    where its node did not answer; `is_alive`: the node answers, and serves the zone.
    """

    zone: str | None
    cut: ZoneCut
    parent: str | None
    answer: NodeAnswer | None
    is_alive: bool


_Places = dict[tuple[str | None, str], TreePlace]


class TreeWalk:
    """
    A walk from some nodes on; `follow` says which of the nodes that an answer tells of to ask.

    Invariant: a node is asked once at an address, and never after it has answered.
    """

    def __init__(
        self, starts: Iterable[ZoneCut], follow: Callable[[NodeAnswer], Iterable[ZoneCut]]
    ) -> None:
        self.answers: dict[str, NodeAnswer] = {}
        """Of each node, by its name."""
        self.told: dict[tuple[str, str], ZoneCut] = {}
        """The cuts that were followed, by apex and node."""
        self._follow = follow
        self._queries = list(starts)
        self._asked: set[tuple[str, str]] = set()

    def next_queries(self) -> list[ZoneCut]:
        """Take the nodes to ask now, all at the same time; one without a name: whoever is there."""
        cuts, self._queries = self._queries, []
        queries = {(cut.node, cut.grpc): cut for cut in cuts if cut.node not in self.answers}
        new = [cut for key, cut in queries.items() if key not in self._asked]
        self._asked.update(queries)
        return new

    def accept_answer(self, asked: ZoneCut, answer: NodeAnswer | None) -> None:
        """The answer to a query; None, or that of another node: there was none."""
        if answer is None or asked.node not in ("", answer.own.node):
            return
        self.answers[answer.own.node] = answer
        for cut in self._follow(answer):
            self.told.setdefault((cut.apex, cut.node), cut)
            self._queries.append(cut)

    def missing(self) -> list[ZoneCut]:
        """The cuts whose nodes gave no answer."""
        return [cut for cut in self.told.values() if cut.node not in self.answers]

    def places(self, top: ZoneCut) -> list[TreePlace]:
        """The node of `top`, the zones below it in order of the tree, and all pure edges."""
        answer, found = self.answers[top.node], _Places()
        parent = answer.lineage[-1].node if answer.lineage else None
        self._visit(found, top, top.apex if answer.owns_zone else None, parent)
        self._visit_children(found, answer)
        return sorted(found.values(), key=lambda p: (p.zone is None, (p.zone or "").split("/")))

    # internal

    def _visit_children(self, found: _Places, answer: NodeAnswer) -> None:
        for child in answer.zones:
            self._visit(found, child.cut, child.cut.apex, answer.own.node, child.below)
        for cut in answer.edges:
            self._visit(found, cut, None, answer.own.node)

    def _visit(
        self,
        found: _Places,
        cut: ZoneCut,
        zone: str | None,
        parent: str | None,
        below: Iterable[ZoneCut] = (),
    ) -> None:
        key = (zone, cut.node if zone is None else "")
        if key in found:
            return
        answer = self.answers.get(cut.node)
        served = answer if answer and answer.serves and answer.own.apex == zone else None
        found[key] = TreePlace(
            zone=zone,
            cut=attrs.evolve(cut, epoch=served.own.epoch) if served else cut,
            parent=parent,
            answer=answer,
            is_alive=(answer if zone is None else served) is not None,
        )
        if served is not None:
            self._visit_children(found, served)
            return
        for child in nest(below):
            self._visit(found, child.cut, child.cut.apex, cut.node, child.below)
