"""
What this edge's sessions missed of zones that changed hands while it was away.

An edge that is there hears of each change in its place among the deliveries, and one that was away
for a single change sees from where it stood and from who serves the zone now what it missed. Of
several changes it sees the last one only: a zone that came back to its parent and went out again
leaves a part in between that nobody serves any more. So owners tell the last passages of their
topics, and those that this edge has not gone through are gone through now, in their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from txbroker.edge.sessions.session_cursors import SessionCursors
from txbroker.edge.sessions.session_store import SessionStore
from txbroker.model.epoch_transition import FOREVER, EpochTransition
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.session import Session

KNOWN = 1_000
"""Passages, and zones that were restored, that are remembered for sessions that move here."""


class TransitionLog:
    """The passages of one edge; `keeper` remembers which it has gone through."""

    def __init__(self, positions: SessionCursors, keeper: SessionStore) -> None:
        self._positions = positions
        self._keeper = keeper
        self._known: dict[EpochTransition, None] = {}
        self._restored: dict[str, JournalId] = {}

    def learn(self, told: Iterable[EpochTransition]) -> list[JournalId]:
        """An owner tells the last ones of its topics; the parts that are over, and that is news."""
        passages = tuple(told)
        self._known.update(dict.fromkeys(passages))
        news = [passage for passage in passages if not self._has_gone_through(passage)]
        for passage in news:
            is_alone = not any(p.concerns(passage.apex) for p in news if p is not passage)
            self._positions.on_passage(passage, is_alone=is_alone)
        for passage in news:
            self._keeper.go_through(_name(passage))
        _forget_oldest(self._known)
        return [passage.left.part for passage in news if passage.is_return]

    def on_restored(self, part: JournalId) -> None:
        """
        The owner of a zone was restored, and serves it in this part. Of lives since its copy it
        knows nothing, nor of a passage that leads on from there.
        """
        self._restored.pop(part.zone, None)
        self._restored[part.zone] = part
        _forget_oldest(self._restored)
        self._positions.on_restored(part)

    def meet(self, met: Iterable[EpochTransition]) -> None:
        """
        A part that is read for sessions comes by these.

        That says nothing of the others: how far the streams are they know themselves.
        """
        for passage in met:
            self._positions.meet(passage, at_end=not self._has_gone_through(passage))

    def went(self, part: JournalId, *, is_return: bool) -> None:
        """This edge has heard that the part begins, or that it came back and ends."""
        self._keeper.go_through(_change(part, "ends" if is_return else "begins"))

    def came_back(self, part: JournalId, place: LogPosition) -> None:
        """
        An owner's stream says that the zone of a part, which ends, is its own behind the place.

        What the part still has may come much later, from its own stream or not from there.
        """
        passage = EpochTransition(apex=part.zone, left=LogPosition(part, FOREVER), entered=place)
        if not self._has_gone_through(passage):
            self._positions.on_passage(passage, is_alone=False)
            self.went(part, is_return=True)

    def follow(self, session: Session) -> None:
        """A session came from another node, which may have been away for longer than this one."""
        begun: set[JournalId] = set()
        for passage in self._known:
            # At the very end of a part that goes on it may have been, and what comes then as well.
            at_end = passage.is_return or passage.left.part in begun
            if self._positions.follow(session, passage, at_end=at_end):
                begun.add(passage.entered.part)
        for part in self._restored.values():
            self._positions.go_on(session, part)

    def _has_gone_through(self, passage: EpochTransition) -> bool:
        return self._keeper.has_gone_through(_name(passage))


def _forget_oldest(known: dict[Any, Any]) -> None:
    while len(known) > KNOWN:
        del known[next(iter(known))]


def _name(passage: EpochTransition) -> bytes:
    if passage.is_return:
        return _change(passage.left.part, "ends")
    # A cut that is told says that the part begins, and nothing of earlier lives of its node.
    return _change(passage.entered.part, "goes on" if passage.is_renewal else "begins")


def _change(part: JournalId, what: str) -> bytes:
    return f"{part.zone} {part.epoch} {what}".encode()
