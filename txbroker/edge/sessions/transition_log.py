"""
The transitions of zones that changed hands, and which of them this edge has gone through.

A connected edge gets each transition at its place among the deliveries. An edge that was away for
one transition derives it from its own position and the zone's present owner. After several
transitions the edge derives the last one only. A zone may have come back to its parent and have
been delegated again. Then no owner serves the part in between any more. So owners announce the last
transitions of their topics.

A transition is new, then gone through: the session cursors follow each new one once, in order. The
session store persists the names of those gone through.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from txbroker.edge.sessions.session_cursors import SessionCursors
from txbroker.edge.sessions.session_store import SessionStore
from txbroker.model.epoch_transition import FOREVER, EpochTransition
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.session import Session

KNOWN = 1_000
"""Transitions, and restored zones, that are remembered for sessions that move here."""


class TransitionLog:
    """The transitions of one edge; `keeper` persists which ones the edge has gone through."""

    def __init__(self, cursors: SessionCursors, session_store: SessionStore) -> None:
        self._cursors = cursors
        self._session_store = session_store
        self._known: dict[EpochTransition, None] = {}
        self._restored: dict[str, JournalId] = {}

    def follow_owner(self, told: Iterable[EpochTransition]) -> list[JournalId]:
        """
        Follow an owner's last transitions that are new; return the parts that are over by them.
        """
        transitions = tuple(told)
        self._know(transitions)
        news = [transition for transition in transitions if not self._has_gone_through(transition)]
        for transition in news:
            is_alone = not any(p.affects(transition.apex) for p in news if p is not transition)
            self._cursors.on_passage(transition, is_alone=is_alone)
        for transition in news:
            self._session_store.stored.note_transition(_name(transition))
        return [transition.left.part for transition in news if transition.is_return]

    def on_restored(self, part: JournalId) -> None:
        """
        Note that the owner of a zone was restored, and serves it in this part.

        The owner knows nothing of its lives since the copy, nor of transitions that lead on from
        them.
        """
        self._restored.pop(part.zone, None)
        self._restored[part.zone] = part
        _forget_oldest(self._restored)
        self._cursors.on_restored(part)

    def follow_read(self, met: Iterable[EpochTransition]) -> None:
        """
        Follow transitions that a journal read met, for sessions that are behind there.

        These transitions say nothing of other sessions, which follow the edge's streams.
        """
        for transition in met:
            self._cursors.follow_transition(
                transition, at_end=not self._has_gone_through(transition)
            )

    def record_start(self, part: JournalId, *, is_return: bool) -> None:
        """Note that the part begins, or that its zone came back and the part ends."""
        self._session_store.stored.note_transition(_change(part, "ends" if is_return else "begins"))

    def record_return(self, part: JournalId, place: LogPosition) -> None:
        """
        Follow the return of a zone: its part ends, and an owner's stream has the topics behind
        `place`.

        The rest of the part may come much later, and from its own stream or from another node.
        """
        transition = EpochTransition(apex=part.zone, left=LogPosition(part, FOREVER), entered=place)
        self._know((transition,))
        if not self._has_gone_through(transition):
            self._cursors.on_passage(transition, is_alone=False)
            self.record_start(part, is_return=True)

    def follow(self, session: Session) -> None:
        """
        Follow the known transitions for a session that moved here: its earlier node may have missed
        them.
        """
        begun: set[JournalId] = set()
        for transition in self._known:
            # A session at the last offset of a part that goes on may have followed already. To
            # follow again would deliver the new part's records twice. In a part that this edge
            # follows now such a session would have its place.
            entered = transition.entered.part
            is_now = self._cursors.follows_now(entered)
            at_end = transition.is_return or transition.left.part in begun or is_now
            if self._cursors.follow(session, transition, at_end=at_end):
                begun.add(entered)
        for part in self._restored.values():
            self._cursors.follow_part(session, part)

    def reached_from(self, needs: Iterable[tuple[LogPosition, ...]]) -> Iterator[LogPosition]:
        """Yield the positions of sessions, and where known transitions lead on from there."""
        onward: dict[JournalId, list[EpochTransition]] = {}
        for transition in self._known:
            onward.setdefault(transition.left.part, []).append(transition)
        for places in needs:
            found = {place.part: place for place in places}
            unread = list(places)
            while unread:
                part, offset = unread.pop()
                for transition in onward.get(part, ()):
                    entered = transition.entered
                    if offset <= transition.left.offset and entered.part not in found:
                        found[entered.part] = entered
                        unread.append(entered)
            yield from found.values()

    # internal

    def _know(self, transitions: Iterable[EpochTransition]) -> None:
        self._known.update(dict.fromkeys(transitions))
        _forget_oldest(self._known)

    def _has_gone_through(self, transition: EpochTransition) -> bool:
        return self._session_store.stored.has_gone_through(_name(transition))


def _forget_oldest(known: dict[Any, Any]) -> None:
    while len(known) > KNOWN:
        del known[next(iter(known))]


def _name(transition: EpochTransition) -> bytes:
    if transition.is_return:
        return _change(transition.left.part, "ends")
    # The announcement of a cut tells that the part begins, and nothing of earlier lives of the
    # zone's node. Under one name, the edge would skip a renewal that it has not gone through.
    return _change(transition.entered.part, "goes on" if transition.is_renewal else "begins")


def _change(part: JournalId, what: str) -> bytes:
    return f"{part.zone} {part.epoch} {what}".encode()
