"""
Writes an edge's durable sessions to its node's delivery ledger.

A subscription holds in a part from the offset at which its zone confirmed it (`LedgerKind.START`).
The subscription holds up to the offset that the session had reached at its end (`LedgerKind.END`).
Parts that begin later, when a zone is cut or comes back, follow from the transitions of topics
(`LedgerKind.PASSAGE`). Owners know transitions exactly, so sessions write nothing for them.

From time to time every session states anew which subscriptions hold, from its present offsets on.
Retention deletes older rows, and transitions that a node did not hear of are covered from then on.

A QoS 2 message counts as delivered with its PUBREC. The client owns it from there on (MQTT 3.1.1,
section 4.3.3). The message is never sent again, and the rest of the flow concerns its packet id
alone.
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
"""Sessions that state their subscriptions in one second."""


class LedgerWriter:
    """
    Records for the sessions of one edge; `positions` returns how far the edge follows each part.
    """

    def __init__(
        self, recorder: LedgerRecorder, positions: Callable[[], dict[JournalId, int]]
    ) -> None:
        self._recorder = recorder
        self._positions = positions
        self._stating: list[Session] | None = None
        self._transitions: set[EpochTransition] = set()

    # from sessions

    def delivered(self, client_id: str, place: LogPosition | None) -> None:
        """
        Record that the client has acknowledged a message; a message without place is in no journal.
        """
        if place is not None:
            part, offset = place
            self._add(LedgerKind.DELIVERY, client_id, part=part, offset=offset)

    def dropped(self, client_id: str, part: JournalId, first: int, last: int) -> None:
        """Record that the session does not get its messages from offset `first` to `last`."""
        if first <= last:
            self._add(LedgerKind.DROPPED, client_id, part=part, offset=first, through=last)

    # from subscriptions

    def began(self, session: Session, subscription: Subscription, place: LogPosition) -> None:
        """Record that a zone has confirmed a subscription, for records behind the place."""
        if not session.clean:
            self._start(session, subscription, *place)

    def record_subscription(self, session: Session, subscription: Subscription) -> None:
        """Record that the subscription holds from the session's present offsets on."""
        if not (session.clean or is_sys(subscription.topic_filter)):
            for part, offset in self._concerned(session, subscription):
                known = subscription.starts.get(part, 0)
                self._start(session, subscription, part, max(offset, known))

    def ended(self, session: Session, subscription: Subscription) -> None:
        """Record that the client has unsubscribed, and gets no more messages than by now."""
        if not (session.clean or is_sys(subscription.topic_filter)):
            for part, offset in self._concerned(session, subscription):
                self._end(session, subscription, part, offset)

    def record_end(self, session: Session) -> None:
        """
        Record the end of a session that is at no other node: its waiting messages are dropped.
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
        """
        Begin to state the subscriptions of all these sessions, some in each second (`advance`).
        """
        self._stating = list(sessions)
        self._transitions.clear()

    @property
    def is_stating(self) -> bool:
        """True if sessions are left that have not stated their subscriptions."""
        return self._stating is not None

    def advance(self, transitions: Iterable[EpochTransition]) -> bool:
        """
        Record new transitions of the node's zone, and state some sessions; called once a second.

        Returns True if the last session has just stated its subscriptions.
        """
        for transition in transitions:
            if transition not in self._transitions:
                self._transitions.add(transition)
                self._record_transition(transition)
        if self._stating is None:
            return False
        for _ in range(min(STATED_AT_ONCE, len(self._stating))):
            self.record_subscriptions(self._stating.pop())
        if self._stating:
            return False
        self._stating = None
        return True

    def record_subscriptions(self, session: Session) -> None:
        """Record the subscriptions of a session that moved here, or states them anew."""
        if not session.is_over:
            for subscription in session.subscriptions.values():
                self.record_subscription(session, subscription)

    # internal

    def _concerned(
        self, session: Session, subscription: Subscription
    ) -> Iterator[tuple[JournalId, int]]:
        """
        Yield the parts that may have records for a subscription, and the session's offset in each.
        """
        for part, offset in reaches(session, self._positions()).items():
            is_confirmed = part.zone not in subscription.pending
            if is_confirmed and may_match_within(subscription.topic_filter, part.zone):
                yield part, offset

    def _start(
        self, session: Session, subscription: Subscription, part: JournalId, offset: int
    ) -> None:
        self._record(LedgerKind.START, session, subscription, part, offset)

    def _end(
        self, session: Session, subscription: Subscription, part: JournalId, offset: int
    ) -> None:
        self._record(LedgerKind.END, session, subscription, part, offset)

    def _record(
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

    def _record_transition(self, transition: EpochTransition) -> None:
        left, entered = transition.left, transition.entered
        self._recorder.add(
            LedgerRow(
                LedgerKind.PASSAGE,
                self._recorder.now(),
                topic_filter=transition.apex,
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
    Return the offset that a session has reached in each part; messages in flight count as reached.

    `positions` apply where the session has no offset of its own.
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
