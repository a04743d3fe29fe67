"""
The rules of `history` about messages and the sessions that they are for: loss, duplicates, order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterator

import attrs

from .events import (
    Acknowledged,
    Calm,
    Connected,
    Connecting,
    Delivered,
    Disconnected,
    Event,
    Faulted,
    Overdue,
    Reclaimed,
    Ruined,
    Sent,
    Settled,
    Subscribed,
    SubscribeSent,
)
from .losses import Loss, Losses, has_served
from .payloads import of_will
from .rules import Report, Violation, is_in_zone, matches

Id = tuple[str, int]
"""A message: its publisher's client id and number."""


@attrs.define(kw_only=True)
class _Message:
    """
    `owed` are the sessions that it must reach, `sends` counts its PUBLISH packets, `anew` those in
    a session that knew nothing of it. `session` counts those of its publisher.
    """

    topic: str
    qos: int
    session: int
    owed: frozenset[str]
    sends: int = 1
    anew: int = 0
    is_late: bool = False


@attrs.define(kw_only=True)
class _Copy:
    """One delivery; `is_over` once its acknowledgement had been read before a calm."""

    connection: int
    packet_id: int
    is_settled: bool = False
    is_over: bool = False

    def is_before(self, event: Delivered) -> bool:
        """True if the event may be the same delivery, sent again as the client reconnected."""
        return self.packet_id == event.packet_id and self.connection < event.connection


@attrs.define(kw_only=True)
class _Subscription:
    """`qos` None until granted; `is_firm` once every zone has surely confirmed it."""

    qos: int | None = None
    was_calm: bool
    is_firm: bool = False


@attrs.define
class _Session:
    """A subscriber: its filters, what it got, in which order."""

    client: str
    is_known: bool = False
    subscriptions: dict[str, _Subscription] = attrs.field(factory=dict)
    ever: set[str] = attrs.field(factory=set)  # filters that it has ever asked for
    copies: dict[Id, list[_Copy]] = attrs.field(factory=dict)
    first: list[Id] = attrs.field(
        factory=list
    )  # messages owed to it, in the order in which they came
    newest: dict[tuple[str, str, int, int], int] = attrs.field(factory=dict)
    half: dict[int, Id] = attrs.field(factory=dict)  # QoS 2, by packet identifier
    unsettled: dict[int, _Copy] = attrs.field(factory=dict)  # by packet identifier
    is_merging: bool = False  # with one at another site; until the next calm

    def is_owed(self, topic: str) -> bool:
        """True if a QoS 1/2 message that is sent now must come."""
        return any(
            each.is_firm and each.qos and matches(text, topic)
            for text, each in self.subscriptions.items()
        )

    def took(self, event: Delivered) -> _Copy:
        """A copy that is not acknowledged yet."""
        copy = _Copy(connection=event.connection, packet_id=event.packet_id)
        self.unsettled[event.packet_id] = copy
        return copy

    def granted(self, topic: str) -> set[int]:
        """The QoS granted to filters that match; undecided ones may have any."""
        found: set[int] = set()
        for text, each in self.subscriptions.items():
            if matches(text, topic):
                found |= {0, 1, 2} if each.qos is None else {each.qos}
        return found


class Deliveries:
    """
    The sessions' state is kept up to date with each event. `begun_elsewhere`: connections that
    began a new session while the client's own may have been away; `losses` says what nodes that
    are gone for good alone had.
    """

    def __init__(self, report: Report, losses: Losses, begun_elsewhere: Container[int]) -> None:
        self._missing: set[tuple[str, Id]] = set()
        self._losses = losses
        self._begun_elsewhere = begun_elsewhere
        self._anew: set[str] = set()
        self._begun: Counter[str] = Counter()  # client: sessions begun elsewhere
        self._report = report
        self._messages: dict[Id, _Message] = {}
        self._sessions: dict[str, _Session] = {}
        self._is_calm = True
        self._is_void = False
        self._wills: list[_Message] = []  # of connections that have ended since the last calm

    def feed(self, event: Event) -> None:
        match event:
            case Faulted():
                self._is_calm = False
            case Calm():
                self._on_calm(event)
            case Overdue():
                self._report_missing(event)
            case Connecting() if event.will:
                self._on_will(event)
            case Disconnected():
                self._on_disconnected(event)
            case Connected(code=0):
                self._on_connected(event)
            case SubscribeSent():
                self._on_subscribe(event)
            case Subscribed():
                self._on_subscribed(event)
            case Sent():
                self._on_sent(event)
            case Acknowledged(number=int(number), kind="PUBACK" | "PUBREC"):
                self._on_acknowledged((event.client, number))
            case Delivered():
                self._on_delivered(event)
            case Reclaimed():
                for message in self._messages.values():
                    message.is_late |= is_in_zone(message.topic, event.zone)
            case Ruined():
                self._on_ruined(event)
            case Settled():
                copy = self._session(event.client).unsettled.pop(event.packet_id, None)
                if copy is not None and copy.connection == event.connection:
                    copy.is_settled = True

    @property
    def missing(self) -> set[tuple[str, Id]]:
        """Deliveries, as (client, message), that are due."""
        return {(client, number) for client, number in self._missing if not self._is_lost(number)}

    def disagreements(self) -> Iterator[Violation]:
        """Pairs of messages of a topic and QoS that two sessions saw in opposite order."""
        by_topic: dict[tuple[str, int], dict[str, list[Id]]] = defaultdict(dict)
        for client, session in self._sessions.items():
            for number in session.first:
                message = self._messages[number]
                # Sent again at QoS 1, it may stand twice in its owner's order.
                if message.qos == 2 or (message.qos == 1 and message.sends == 1):
                    key = (message.topic, message.qos)
                    by_topic[key].setdefault(client, []).append(number)
        for (topic, qos), sequences in by_topic.items():
            for one, other, earlier, later in _opposite(sequences):
                what = f"{one} saw {earlier} before {later}, {other} after it: {topic}, QoS {qos}"
                yield Violation("disagreement", 0.0, what)

    # subscriptions

    def _session(self, client: str) -> _Session:
        return self._sessions.setdefault(client, _Session(client))

    def _on_connected(self, event: Connected) -> None:
        session = self._session(event.client)
        is_elsewhere = event.connection in self._begun_elsewhere
        if session.is_known and not event.session_present:
            session.subscriptions.clear()
            session.half.clear()
        if is_elsewhere:
            # What is found there may be another session than the last one.
            session.is_merging = True
            session.first.clear()
        session.is_known = True
        self._begun[event.client] += is_elsewhere
        # Elsewhere it may have begun on a connection that was lost before its CONNACK.
        if event.session_present and not is_elsewhere:
            self._anew.discard(event.client)
        else:
            self._anew.add(event.client)

    def _on_subscribe(self, event: SubscribeSent) -> None:
        session = self._session(event.client)
        for text, _ in event.filters:
            session.ever.add(text)
            if text not in session.subscriptions:
                session.subscriptions[text] = _Subscription(was_calm=self._is_calm)

    def _on_subscribed(self, event: Subscribed) -> None:
        session = self._session(event.client)
        for text, qos in event.filters:
            subscription = session.subscriptions[text]
            subscription.qos = qos
            subscription.is_firm |= subscription.was_calm and self._is_calm

    def _on_calm(self, event: Calm) -> None:
        self._is_calm = True
        self._wills.clear()
        self._is_void = False
        self._report_missing(event)
        for session in self._sessions.values():
            session.is_merging = False
            for subscription in session.subscriptions.values():
                subscription.is_firm = subscription.qos is not None
            for copies in session.copies.values():
                for copy in copies:
                    copy.is_over |= copy.is_settled

    def owed(self, topic: str) -> frozenset[str]:
        """The sessions that a QoS 1/2 message must reach that is sent now."""
        return frozenset(c for c, session in self._sessions.items() if session.is_owed(topic))

    # messages

    def _on_will(self, event: Connecting) -> None:
        """Whether it comes, and to whom, is judged by `wills`; here, that it comes once."""
        self._messages[of_will(event.client), event.connection] = _Message(
            topic=event.will,
            qos=event.will_qos,
            owed=frozenset(),
            session=self._begun[event.client],
            is_late=self._is_void,
        )

    def _on_disconnected(self, event: Disconnected) -> None:
        """A will is sent then, if there is one, and may be on its way until the calm."""
        will = self._messages.get((of_will(event.client), event.connection))
        if will is not None:
            will.is_late |= self._is_void
            self._wills.append(will)

    def _on_sent(self, event: Sent) -> None:
        message = self._messages.get((event.client, event.number))
        if message is not None:
            message.is_late |= self._is_void
            message.sends += 1
            message.session = self._begun[event.client]
            message.anew += event.client in self._anew
            return
        self._messages[event.client, event.number] = _Message(
            topic=event.topic,
            qos=event.qos,
            owed=self.owed(event.topic),
            session=self._begun[event.client],
            is_late=self._is_void,
        )

    def _on_acknowledged(self, number: Id) -> None:
        for client in self._messages[number].owed:
            if number not in self._sessions[client].copies:
                self._missing.add((client, number))

    def _is_lost(self, number: Id) -> bool:
        """True if a node that is gone may have had it alone; nobody else has it then."""
        loss = self._losses.of(number)
        if loss is Loss.OUTBOX:
            return not any(number in session.copies for session in self._sessions.values())
        return loss is Loss.JOURNAL

    def _on_ruined(self, event: Ruined) -> None:
        self._is_void |= event.is_void
        for will in self._wills:
            will.is_late |= event.is_void
        for number, message in self._messages.items():
            message.owed -= self._losses.sessions
            message.is_late |= has_served(event, message.topic)
            self._missing -= {(client, number) for client in self._losses.sessions}
        for client in self._losses.sessions & self._sessions.keys():
            for subscription in self._sessions[client].subscriptions.values():
                subscription.is_firm = False

    def _report_missing(self, event: Event) -> None:
        for client, (publisher, number) in sorted(self.missing):
            message = self._messages[publisher, number]
            what = f"{client} never got {publisher} {number} on {message.topic}, QoS {message.qos}"
            self._report.add("lost", event, what)
        self._missing.clear()

    # deliveries

    def _on_delivered(self, event: Delivered) -> None:
        session = self._session(event.client)
        number = (event.publisher, event.number)
        message = self._messages.get(number)
        if message is None or not event.is_intact:
            self._report.add("packet", event, f"nobody sent this: {event}")
            return
        if not any(matches(text, event.topic) for text in session.ever):
            self._report.add("packet", event, f"no subscription for {event.topic}")
            return
        if event.retain:
            return
        granted = session.granted(event.topic)
        if event.qos not in {min(message.qos, qos) for qos in granted}:
            what = f"{number} came at QoS {event.qos}, sent {message.qos}, granted {granted}"
            self._report.add("packet", event, what)
        if not event.is_fresh:
            self._on_half_known(event, session, number)
            return
        if event.qos == 2:
            session.half[event.packet_id] = number
        if number in session.copies:
            self._on_again(event, session, number, message)
        else:
            self._on_first(event, session, number, message)

    def _on_half_known(self, event: Delivered, session: _Session, number: Id) -> None:
        expected = session.half.get(event.packet_id)
        if expected != number and not session.is_merging:
            what = f"{number} with packet identifier {event.packet_id}, which {expected} has"
            self._report.add("packet", event, what)

    def _on_first(self, event: Delivered, session: _Session, number: Id, message: _Message) -> None:
        session.copies[number] = [session.took(event)]
        self._missing.discard((event.client, number))
        if event.client not in message.owed or session.is_merging or message.is_late:
            return
        session.first.append(number)
        key = (event.publisher, event.topic, message.qos, message.session)
        newest = session.newest.get(key, 0)
        if event.number < newest:
            what = f"{number} on {event.topic}, QoS {message.qos}, came after {newest}"
            self._report.add("order", event, what)
        session.newest[key] = max(newest, event.number)

    def _on_again(self, event: Delivered, session: _Session, number: Id, message: _Message) -> None:
        copies = session.copies[number]
        for copy in copies:
            # A new session knows no packet identifiers: what was in flight in the old one is new.
            is_again = copy.connection < event.connection and not copy.is_over
            if session.is_merging and event.qos and is_again:
                copies[copies.index(copy)] = session.took(event)
                return
            if event.qos == 1 and event.dup and copy.is_before(event):
                if copy.is_over:
                    self._report.add("duplicate", event, f"{number}, acknowledged before a calm")
                copies[copies.index(copy)] = session.took(event)
                return
        copies.append(session.took(event))
        allowed = 1 + message.anew if message.qos == 2 else message.sends
        # What the dead owner had taken and not answered was published again, and is replayed. An
        # empty root hands on each copy that it took, and has delivered it before.
        allowed *= 1 + message.is_late
        if not event.qos or len(copies) > allowed:
            what = f"{number} for the {len(copies)}. time, sent {message.sends} times: {event}"
            self._report.add("duplicate", event, what)


def _opposite(sequences: dict[str, list[Id]]) -> Iterator[tuple[str, str, Id, Id]]:
    """For each two sequences, the first pair of elements that they have in opposite order."""
    names = sorted(sequences)
    for place, one in enumerate(names):
        ranks = {number: rank for rank, number in enumerate(sequences[one])}
        for other in names[place + 1 :]:
            common = [number for number in sequences[other] if number in ranks]
            for earlier, later in zip(common, common[1:], strict=False):
                if ranks[earlier] > ranks[later]:
                    yield one, other, earlier, later
                    break
