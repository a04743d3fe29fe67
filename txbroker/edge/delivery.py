"""
Who of an edge's clients gets a message, and how: the way from a zone's stream to the sessions.

Of a session's overlapping subscriptions one counts. What a session has had, or is to read from the
journal in its turn, does not come live; what waits for a SUBACK is held until that has left.
"""

from __future__ import annotations

from txbroker.edge.interests import Interests
from txbroker.edge.subscribing import HELD_LIMIT
from txbroker.edge.zonemap import ZoneMap
from txbroker.matching.index import SubscriptionIndex
from txbroker.message import Message
from txbroker.mqtt.cursor import Subscription
from txbroker.mqtt.session import Session
from txbroker.place import Place


class Delivery:
    """For the clients that are here; `delivered` counts a message once for each of them."""

    def __init__(self, zones: ZoneMap, interests: Interests, *, cache_limit: int) -> None:
        self.delivered = 0
        self._zones = zones
        self._interests = interests
        self._subscribers: SubscriptionIndex[str, tuple[Session, Subscription]] = SubscriptionIndex(
            cache_limit=cache_limit
        )

    # from the clients' sessions

    def listen(self, session: Session, subscription: Subscription) -> None:
        """From now on the client gets what matches."""
        self._subscribers.add(subscription.topic_filter, session.client_id, (session, subscription))

    def ignore(self, session: Session, topic_filter: str) -> None:
        """No more, or the client has left."""
        self._subscribers.remove(topic_filter, session.client_id)

    def set_cache_limit(self, limit: int) -> None:
        """For how many topics it is kept who gets them."""
        self._subscribers.cache_limit = limit

    def filters(self) -> list[str]:
        """The filters of the clients that are here, each once."""
        return list(self._subscribers.filters())

    # from the edge

    def deliver(self, place: Place | None, message: Message, *, is_read: bool = False) -> None:
        """
        A message to every session that is here and wants it.

        `place` is where it lies in its zone's journal, offset 0 for QoS 0; None: `$SYS`. `is_read`:
        who gets it at QoS 1 or 2 reads it there.
        """
        apex = None if place is None else place.part.zone
        best: dict[Session, Subscription] = {}
        for _, (session, subscription) in self._subscribers.match(message.topic):
            if subscription.pending and apex in subscription.pending:
                continue
            known = best.get(session)
            if known is None or _rank(subscription) > _rank(known):
                best[session] = subscription  # [MQTT-3.3.5-1]
        for session, subscription in best.items():
            qos = min(subscription.qos, message.qos)
            if qos and place is not None:
                if not is_read:
                    self._give(session, subscription, message, qos, place)
            elif subscription.held is not None and subscription.is_fresh:
                self._hold(session, subscription, message)
            else:
                self._give_qos0(session, message, place)
        self.delivered += len(best)

    # internal

    def _give(
        self,
        session: Session,
        subscription: Subscription,
        message: Message,
        qos: int,
        place: Place,
    ) -> None:
        part, places, sender = place.part, session.places, session.sender
        cursor = places.behind.get(part)
        if cursor is not None:
            if cursor.waiting is not None:
                cursor.waiting.add(message)
            return  # it comes from the journal, in its turn
        if places.had and places.has_had(place, message.topic):
            return
        if places.ahead:
            ahead = places.ahead.get(part, 0)
            if place.offset <= ahead:
                return  # it came from the journal
            places.forget_ahead(part)
        is_held = subscription.held is not None and subscription.is_fresh
        if is_held or sender.is_late(part) or not sender.deliver(message, qos, place):
            places.fall_behind(place)
        elif not session.clean:
            places.taken[part] = place.offset

    def _give_qos0(self, session: Session, message: Message, place: Place | None) -> None:
        if place is None:
            session.sender.deliver_qos0(message)
        elif not self._is_past(session, place):
            session.sender.deliver_qos0_after(message, place.part)

    def _is_past(self, session: Session, place: Place) -> bool:
        """Whether the session, which moved here, had what comes now at the node before."""
        part = place.part
        cursor = session.places.behind.get(part)
        reached = session.places.ahead.get(part, 0) if cursor is None else cursor.offset
        if not reached:
            return False
        route = self._zones.get(part.zone)
        position = None if route is None else route.position
        come = place.offset or (0 if position is None else position.offset + 1)
        return come <= reached

    def _hold(self, session: Session, subscription: Subscription, message: Message) -> None:
        assert subscription.held is not None
        subscription.held.append((message, False))
        if len(subscription.held) >= HELD_LIMIT:
            self._stop_holding(session, subscription)

    def _stop_holding(self, session: Session, subscription: Subscription) -> None:
        for subscribing in self._interests.of(session):
            if subscribing.subscriptions.get(subscription.topic_filter) is subscription:
                subscribing.finish()


def _rank(subscription: Subscription) -> tuple[bool, int]:
    """Of those that match, one whose SUBACK has left counts before one that waits for it."""
    return not (subscription.held is not None and subscription.is_fresh), subscription.qos
