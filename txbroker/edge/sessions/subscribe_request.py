"""
From a SUBSCRIBE to its SUBACK, over all the zones that the filters touch.

Each zone is asked for its retained messages, whether the edge had the filter there or not, and
answers at one point of its delivery stream: from that point on, and only from then, the
subscription gets that zone's live messages (protocol rule 9). The SUBACK leaves when every zone has
answered, or after `wait` seconds; zones that are still missing stay pending and count from their
answer on (rule 8). What the answered zones send before the SUBACK is held back until it has left.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial

import attrs

from txbroker.edge.routing.filter_zone_pairs import FilterZonePairs
from txbroker.edge.sessions.ledger_writer import LedgerWriter
from txbroker.edge.sessions.retained_feeds import Retained, RetainedFeeds, give_once
from txbroker.model.log_position import LogPosition
from txbroker.model.timers import Cancellable
from txbroker.model.topics import is_within
from txbroker.mqtt.session.cursor import Cursor, Subscription
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.message import Message

HELD_LIMIT = 10_000
"""Messages held for one SUBSCRIBE; the SUBACK leaves early rather than hold more."""


@attrs.define(slots=True, eq=False)
class SubscribeRequest:
    """
    One SUBSCRIBE packet on its way.

    `zoned` are the filters that zones are asked for ($SYS is the node's own). `fresh` are those
    that the session had not; the others' live messages are not interrupted [MQTT-3.8.4-3].
    `open` and `answered` hold (filter, apex). `acknowledge` sends the SUBACK; None once it is gone.
    `commit` runs an action when the session's subscriptions are as safe as it needs.

    `is_moved`: no packet, but a session that came from another node. It has had its retained
    messages, and takes nothing before this edge knows how far its zones have come. `is_resumed`: no
    packet, but what was pending when the earlier process ended; zones that had answered are not
    asked again. `recording` is told where what begins. `count`: how many filters there were.
    """

    session: Session
    subscriptions: dict[str, Subscription]
    zoned: frozenset[str]
    fresh: frozenset[str]
    acknowledge: Callable[[], None] | None
    commit: Callable[[Callable[[], None]], None]
    feeds: RetainedFeeds
    open: FilterZonePairs = attrs.Factory(FilterZonePairs)
    answered: FilterZonePairs = attrs.Factory(FilterZonePairs)
    alarm: Cancellable | None = None
    recording: LedgerWriter | None = None
    is_moved: bool = False
    is_resumed: bool = False
    count: int = 1

    @property
    def is_done(self) -> bool:
        """Whether no zone is waited for, known here by now or not."""
        is_waiting = self.is_resumed and any(s.pending for s in self.subscriptions.values())
        return not self.open and not is_waiting

    def concerns(self, topic_filter: str, apex: str) -> bool:
        """Whether the zone has to be asked."""
        if not self.is_resumed:
            return True
        subscription = self.subscriptions[topic_filter]
        if apex in subscription.pending:
            return True
        has_answered = any(part.zone == apex for part in subscription.starts)
        # Zones below a pending one were not known yet.
        return not has_answered and any(is_within(apex, above) for above in subscription.pending)

    def await_zone(self, topic_filter: str, apex: str) -> None:
        """The zone is asked; a new subscription takes nothing from it before the answer."""
        self.open.add((topic_filter, apex))
        if topic_filter in self.fresh:
            self.subscriptions[topic_filter].await_zone(apex)

    def answer(
        self, topic_filter: str, place: LogPosition, retained: Retained, since: int = 0
    ) -> None:
        """
        The zone answered; messages of it count from this place on.

        `since`: nothing up to this offset of the same part is owed to a session that moved here.
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
            subscription.begin(place.part, place.offset)
        if self.is_moved and place.part not in session.places.behind:
            # The zone was cut or came back meanwhile; where a filter began says the filter.
            offset = max(session.places.taken.get(place.part, 0), since)
            session.places.begin(Cursor(place.part, offset))
        if session.sink is None and place.part not in session.places.behind:
            session.places.begin(Cursor(place.part, place.offset))
        self.feeds.begin(
            session, subscription, retained, partial(self.give, subscription, retain=True)
        )
        if self.acknowledge is None:
            if self.recording is not None and topic_filter in self.fresh:
                self.recording.began(session, subscription, place)
            self.commit(lambda: None)
            session.sender.pump()  # it may have something to read only now

    def give_retained(self, topic_filter: str, message: Message) -> None:
        """One that a zone retains; its answer is on the way."""
        subscription = self.subscriptions.get(topic_filter)
        if subscription is not None:
            self.give(subscription, message, retain=True)

    def drop_zone(self, topic_filter: str, apex: str) -> None:
        """The zone is no longer one that the filter touches."""
        self.open.discard((topic_filter, apex))
        subscription = self.subscriptions.get(topic_filter)
        if subscription is not None:
            subscription.confirm((apex,))

    def give(self, subscription: Subscription, message: Message, *, retain: bool) -> None:
        """Deliver to this subscription, or hold until the SUBACK has left."""
        if subscription.held is None:
            give_once(self.session, subscription, message, retain=retain)
        else:
            subscription.held.append((message, retain))
            if len(subscription.held) >= HELD_LIMIT:
                self.finish()

    def leave(self, topic_filters: Set[str]) -> None:
        """These subscriptions were cancelled, or a newer SUBSCRIBE renews them."""
        for topic_filter in topic_filters:
            self.subscriptions.pop(topic_filter, None)
        self.open.leave(topic_filters)

    def finish(self) -> None:
        """Send the SUBACK, then what was held."""
        if self.acknowledge is None:
            return
        if self.alarm is not None:
            self.alarm.cancel()
            self.alarm = None
        acknowledge, self.acknowledge = self.acknowledge, None
        self._record()
        self.commit(lambda: self._finish(acknowledge))

    def _record(self) -> None:
        """What has begun by now is written with what the SUBACK waits for."""
        if self.recording is None or self.is_moved:
            return
        for topic_filter, subscription in self.subscriptions.items():
            if topic_filter not in self.fresh:
                self.recording.holds(self.session, subscription)
                continue
            for part, offset in subscription.starts.items():
                self.recording.began(self.session, subscription, LogPosition(part, offset))

    def _finish(self, acknowledge: Callable[[], None]) -> None:
        acknowledge()
        for subscription in self.subscriptions.values():
            for message, retain in subscription.let_go():
                self.give(subscription, message, retain=retain)
        self.session.end_subscribing(self.count)
        if self.session.sink is None and not self.session.is_over:
            self.commit(lambda: None)
        self.session.sender.pump()
