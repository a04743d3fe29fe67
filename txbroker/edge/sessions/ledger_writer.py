"""
What of an edge's durable sessions goes into its node's delivery ledger.

A subscription holds in a part from where its zone confirmed it (`LedgerKind.START`) up to where the
session had come when it ended (`LedgerKind.END`). Parts that begin later, as a zone is cut or comes
back, follow from the passages of topics (`LedgerKind.PASSAGE`), which owners know exactly; no
session says anything there. Once in a while every session states anew what holds for it, from where
it has come to: retention takes what was written before, and what a node did not hear of is known
from then on.

A QoS 2 message counts as delivered with its PUBREC: the client owns it from there on (MQTT 3.1.1,
section 4.3.3), it is never sent again, and what is left concerns its packet id alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from txbroker.journal.delivery_ledger import LedgerKind, LedgerRecorder, LedgerRow
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.topics import is_sys, may_match_within
from txbroker.mqtt.session.cursor import Subscription
from txbroker.mqtt.session.session import Session

STATED_AT_ONCE = 1_000
"""Sessions that state what holds for them in one second."""


class LedgerWriter:
    """Records for the sessions of one edge; `positions`: how far that follows each part."""

    def __init__(
        self, recorder: LedgerRecorder, positions: Callable[[], dict[JournalId, int]]
    ) -> None:
        self._recorder = recorder
        self._positions = positions
        self._stating: list[Session] | None = None
        self._passages: set[EpochTransition] = set()

    # from sessions

    def delivered(self, client_id: str, place: LogPosition | None) -> None:
        """The client has acknowledged a message; what has no place is not of a journal."""
        if place is not None:
            part, offset = place
            self._add(LedgerKind.DELIVERY, client_id, part=part, offset=offset)

    def dropped(self, client_id: str, part: JournalId, first: int, last: int) -> None:
        """The session does not get what is its from the one to the other offset."""
        if first <= last:
            self._add(LedgerKind.DROPPED, client_id, part=part, offset=first, through=last)

    # from subscriptions

    def began(self, session: Session, subscription: Subscription, place: LogPosition) -> None:
        """A zone has confirmed a subscription: what lies behind the place is its."""
        if not session.clean:
            self._start(session, subscription, *place)

    def holds(self, session: Session, subscription: Subscription) -> None:
        """It holds from where the session has come to."""
        if not (session.clean or is_sys(subscription.topic_filter)):
            for part, offset in self._concerned(session, subscription):
                known = subscription.starts.get(part, 0)
                self._start(session, subscription, part, max(offset, known))

    def ended(self, session: Session, subscription: Subscription) -> None:
        """The client has unsubscribed: what it has not been given by now is not its."""
        if not (session.clean or is_sys(subscription.topic_filter)):
            for part, offset in self._concerned(session, subscription):
                self._end(session, subscription, part, offset)

    def over(self, session: Session) -> None:
        """
        The session ends, and is nowhere else: it does not get what came for it and waits.
        """
        if session.clean:
            return
        come = self._positions()
        for part, offset in reaches(session, come).items():
            last = come.get(part, offset)
            self.dropped(session.client_id, part, offset + 1, last)
        for part, offset in session.durable_sender.unacknowledged():
            self.dropped(session.client_id, part, offset, offset)
        for subscription in session.subscriptions.values():
            if not is_sys(subscription.topic_filter):
                for part, offset in self._concerned(session, subscription):
                    self._end(session, subscription, part, max(offset, come.get(part, 0)))

    # from the node

    def state(self, sessions: Iterable[Session]) -> None:
        """What holds for all of these is stated from now on, a few in each second (`go_on`)."""
        self._stating = list(sessions)
        self._passages.clear()

    @property
    def is_stating(self) -> bool:
        """Whether some of them are left."""
        return self._stating is not None

    def go_on(self, passages: Iterable[EpochTransition]) -> bool:
        """
        Once a second, with the passages that the node's zone knows: True where the last session
        has stated what holds for it.
        """
        for passage in passages:
            if passage not in self._passages:
                self._passages.add(passage)
                self._pass(passage)
        if self._stating is None:
            return False
        for _ in range(min(STATED_AT_ONCE, len(self._stating))):
            self.holds_all(self._stating.pop())
        if self._stating:
            return False
        self._stating = None
        return True

    def holds_all(self, session: Session) -> None:
        """What holds for a session that came here, or has been here for long."""
        if not session.is_over:
            for subscription in session.subscriptions.values():
                self.holds(session, subscription)

    # internal

    def _concerned(
        self, session: Session, subscription: Subscription
    ) -> Iterator[tuple[JournalId, int]]:
        """The parts that may have something for a subscription, and how far the session is."""
        for part, offset in reaches(session, self._positions()).items():
            is_confirmed = part.zone not in subscription.pending
            if is_confirmed and may_match_within(subscription.topic_filter, part.zone):
                yield part, offset

    def _start(
        self, session: Session, subscription: Subscription, part: JournalId, offset: int
    ) -> None:
        self._say(LedgerKind.START, session, subscription, part, offset)

    def _end(
        self, session: Session, subscription: Subscription, part: JournalId, offset: int
    ) -> None:
        self._say(LedgerKind.END, session, subscription, part, offset)

    def _say(
        self,
        kind: LedgerKind,
        session: Session,
        subscription: Subscription,
        part: JournalId,
        offset: int,
    ) -> None:
        self._add(
            kind,
            session.client_id,
            topic_filter=subscription.topic_filter,
            qos=subscription.qos,
            part=part,
            offset=offset,
        )

    def _pass(self, passage: EpochTransition) -> None:
        left, entered = passage.left, passage.entered
        self._recorder.add(
            LedgerRow(
                LedgerKind.PASSAGE,
                self._recorder.now(),
                topic_filter=passage.apex,
                part=entered.part,
                offset=entered.offset,
                through=left.offset,
                left=left.part,
            )
        )

    def _add(
        self,
        kind: LedgerKind,
        client_id: str,
        *,
        topic_filter: str = "",
        qos: int = 0,
        part: JournalId,
        offset: int,
        through: int = 0,
    ) -> None:
        self._recorder.add(
            LedgerRow(
                kind, self._recorder.now(), client_id, topic_filter, qos, part, offset, through
            )
        )


def reaches(session: Session, positions: dict[JournalId, int]) -> dict[JournalId, int]:
    """
    How far a session has come in each part: all up to there was taken, but for what is on its way.

    `positions` hold where it says nothing else.
    """
    found = dict(positions)
    places = session.places
    for part, offset in places.ahead.items():
        found[part] = max(offset, found.get(part, 0))
    for part, offset in places.cut_off.items():
        found[part] = offset
    for part, cursor in places.behind.items():
        found[part] = cursor.offset
    for part, offset in session.durable_sender.first_queued().items():
        found[part] = min(found.get(part, offset - 1), offset - 1)
    return found
