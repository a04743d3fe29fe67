"""
From a SUBSCRIBE to its SUBACK, over all the zones that the filters touch.

Each zone is asked for its retained messages, whether the edge had the filter there or not. The zone
answers at one point of its delivery stream. From that point on, and only from then, the
subscription gets the zone's live messages (protocol rule 9).

For each (filter, zone) the request is open, then answered; a new subscription is pending in the
zone meanwhile. The SUBACK leaves when no zone is open, after the wait, or when `HELD_LIMIT`
messages are held. Zones that are still open stay pending, and count from their answer on (rule 8).
Messages of answered zones are held until the SUBACK has left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Set
from functools import partial

import attrs

from txbroker.edge.routing.filter_zone_pairs import FilterZonePairs
from txbroker.edge.sessions.ledger_writer import LedgerWriter
from txbroker.edge.sessions.retained_feeds import Retained, RetainedFeeds, deliver_once
from txbroker.model.log_position import LogPosition
from txbroker.model.timers import Cancellable
from txbroker.model.topics import is_within
from txbroker.mqtt.session.cursor import Subscription
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.message import Message

HELD_LIMIT = 10_000
"""Messages held for one SUBSCRIBE; at this number the SUBACK leaves early."""


@attrs.define(slots=True, eq=False)
class SubscribeRequest:
    """
    A SUBSCRIBE packet on its way.

    - `zoned`: the filters for which zones are asked (`$SYS` is the node's own).
    - `fresh`: the filters that the session did not have; live messages of the others are not
      interrupted [MQTT-3.8.4-3].
    - `open`, `answered`: sets of (filter, apex).
    - `acknowledge`: sends the SUBACK; None if no SUBACK is due any more.
    - `put`: sets the session behind at a place.
    - `commit`: runs an action when the subscriptions are durable, or at once for a clean session.
    - `note_pending`: gets the apexes of zones that the SUBACK does not wait for any longer.
    - `recording`: the delivery ledger, which records where subscriptions begin.
    - `is_moved`: the request stands for a session that came from another node. The session has had
      its retained messages. The session takes no live message before this edge knows how far its
      zones have come.
    - `unretained`: the filters for which the client wants no retained messages.
    - `is_resumed`: the request stands for filters that were pending when the earlier process ended,
      or at another node. Zones that had answered are not asked again.
    - `count`: the number of filters in the packet.
    """

    session: Session
    subscriptions: dict[str, Subscription]
    zoned: frozenset[str]
    fresh: frozenset[str]
    acknowledge: Callable[[], None] | None
    put: Callable[[Session, LogPosition], None]
    commit: Callable[[Callable[[], None]], None]
    feeds: RetainedFeeds
    open: FilterZonePairs = attrs.Factory(FilterZonePairs)
    answered: FilterZonePairs = attrs.Factory(FilterZonePairs)
    alarm: Cancellable | None = None
    recording: LedgerWriter | None = None
    is_moved: bool = False
    is_resumed: bool = False
    unretained: frozenset[str] = frozenset()
    note_pending: Callable[[Collection[str]], None] = lambda _: None
    count: int = 1

    @property
    def is_done(self) -> bool:
        """True if no zone is awaited, including zones that are not known here yet."""
        is_waiting = self.is_resumed and any(s.pending for s in self.subscriptions.values())
        return not self.open and not is_waiting

    def needs_zone(self, topic_filter: str, apex: str) -> bool:
        """True if the zone has to be asked for the filter."""
        if not self.is_resumed:
            return True
        subscription = self.subscriptions[topic_filter]
        if apex in subscription.pending:
            return True
        has_answered = any(part.zone == apex for part in subscription.starts)
        # Zones below a pending one were unknown before. Without the question their messages would
        # never count.
        return not has_answered and any(is_within(apex, above) for above in subscription.pending)

    def wants_retained(self, topic_filter: str) -> bool:
        """True if the zone has to answer with its retained messages."""
        return not self.is_moved and topic_filter not in self.unretained

    def await_zone(self, topic_filter: str, apex: str) -> None:
        """Await the zone's answer; a new subscription takes no message from the zone before."""
        self.open.add((topic_filter, apex))
        if topic_filter in self.fresh:
            self.subscriptions[topic_filter].await_zone(apex)

    def answer(
        self, topic_filter: str, place: LogPosition, retained: Retained, since: int = 0
    ) -> None:
        """
        Apply a zone's answer: its messages count from this place on.

        `since`: a session that moved here is owed no record up to this offset of the same part.
        """
        apex = place.part.zone
        self.open.discard((topic_filter, apex))
        self.answered.add((topic_filter, apex))
        subscription = self.subscriptions.get(topic_filter)
        if subscription is None:
            return
        subscription.confirm((apex,))
        session = self.session
        if topic_filter in self.fresh:
            subscription.exclude(place.part, place.offset)
        if self.is_moved and place.part not in session.places.behind:
            # The zone was cut or came back during the move, so the session has no cursor there. The
            # filter's own start excludes earlier records.
            offset = max(session.places.taken.get(place.part, 0), since)
            self.put(session, LogPosition(place.part, offset))
        if session.sink is None and place.part not in session.places.behind:
            self.put(session, place)
        self.feeds.start(session, subscription, retained, partial(self.deliver_shown, subscription))
        if self.acknowledge is None:
            if self.recording is not None and topic_filter in self.fresh:
                self.recording.began(session, subscription, place)
            self.commit(lambda: None)
            session.sender.pump()  # from now on the session may have something to read

    def deliver_retained(self, topic_filter: str, message: Message) -> None:
        """Deliver a retained message that precedes the zone's answer."""
        subscription = self.subscriptions.get(topic_filter)
        if subscription is not None:
            self.deliver_shown(subscription, message)

    def deliver_shown(self, subscription: Subscription, message: Message) -> None:
        """Deliver what an answer brings: a retained message, or one that the zone has held."""
        self.deliver(subscription, message, retain=message.retain)

    def drop_zone(self, topic_filter: str, apex: str) -> None:
        """Stop awaiting a zone that the filter no longer touches."""
        self.open.discard((topic_filter, apex))
        subscription = self.subscriptions.get(topic_filter)
        if subscription is not None:
            subscription.confirm((apex,))

    def deliver(self, subscription: Subscription, message: Message, *, retain: bool) -> None:
        """Deliver to this subscription, or hold the message until the SUBACK has left."""
        if subscription.held is None:
            deliver_once(self.session, subscription, message, retain=retain)
        else:
            subscription.held.append((message, retain))
            if len(subscription.held) >= HELD_LIMIT:
                self.finish()

    def drop(self, topic_filters: Set[str]) -> None:
        """Drop filters that were unsubscribed, or that a newer SUBSCRIBE renews."""
        for topic_filter in topic_filters:
            self.subscriptions.pop(topic_filter, None)
        self.open.remove(topic_filters)

    def finish(self) -> None:
        """Send the SUBACK, then the held messages."""
        if self.acknowledge is None:
            return
        if self.alarm is not None:
            self.alarm.cancel()
            self.alarm = None
        acknowledge, self.acknowledge = self.acknowledge, None
        if self.open:
            self.note_pending(self.open.apexes())
        self._record()
        self.commit(lambda: self._finish(acknowledge))

    def _record(self) -> None:
        """
        Record the subscriptions that have begun, in one commit with those that the SUBACK waits
        for.
        """
        if self.recording is None or self.is_moved:
            return
        for topic_filter, subscription in self.subscriptions.items():
            if topic_filter not in self.fresh:
                self.recording.record_subscription(self.session, subscription)
                continue
            for part, offset in subscription.starts.items():
                self.recording.began(self.session, subscription, LogPosition(part, offset))

    def _finish(self, acknowledge: Callable[[], None]) -> None:
        acknowledge()
        for subscription in self.subscriptions.values():
            for message, retain in subscription.release():
                self.deliver(subscription, message, retain=retain)
        self.session.end_subscribing(self.count)
        if self.session.sink is None and not self.session.is_over:
            self.commit(lambda: None)
        self.session.sender.pump()
