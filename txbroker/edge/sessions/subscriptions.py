"""
The subscriptions of an edge's sessions: SUBSCRIBE, UNSUBSCRIBE, and when their answers are due.

A SUBSCRIBE asks zones through `Interests`, which knows the zones that a filter touches.
`SubscribeRequest` is one SUBSCRIBE on its way. The SUBACK leaves when all zones have answered, or
after `wait`; missing zones stay pending. Sessions that moved here, or were loaded after a restart,
bring subscriptions along. Their zones are asked in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Set
from functools import partial

import attrs

from txbroker.edge.routing.edge_parts import EdgeParts
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.sessions.delivery import Delivery
from txbroker.edge.sessions.interests import Interests
from txbroker.edge.sessions.ledger_writer import LedgerWriter
from txbroker.edge.sessions.retained_feeds import RetainedFeeds, deliver_once
from txbroker.edge.sessions.session_cursors import SessionCursors
from txbroker.edge.sessions.session_store import SessionStore
from txbroker.edge.sessions.subscribe_request import SubscribeRequest
from txbroker.edge.sessions.sys_tree import SysTree
from txbroker.model.topics import is_sys
from txbroker.mqtt.session.cursor import Subscription
from txbroker.mqtt.session.match import wants_publishers
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.packets import Subscribe
from txbroker.mqtt.wire.subscription_options import DELIVERY_BITS, QOS_BITS, retain_handling
from txbroker.runtime.deadlines import Deadlines


@attrs.frozen(kw_only=True)
class SubscriptionSources:
    """From where the messages of a subscription come: zones, journals, this node, retained ones."""

    zones: ResolverCache
    interests: Interests
    cursors: SessionCursors
    delivery: Delivery
    sys: SysTree
    feeds: RetainedFeeds


class Subscriptions:
    """See the module's text; a SUBACK waits for at most `wait` seconds (protocol rule 8)."""

    def __init__(
        self,
        parts: EdgeParts,
        sources: SubscriptionSources,
        *,
        session_store: SessionStore,
        ledger_writer: LedgerWriter | None,
        wait: float,
    ) -> None:
        self.wait = wait
        self._ledger_writer = ledger_writer
        self._zones = sources.zones
        self._interests = sources.interests
        self._delivery = sources.delivery
        self._sys = sources.sys
        self._session_store = session_store
        self._patience = Deadlines(parts.timers)
        self._feeds = sources.feeds
        self._put = sources.cursors.put
        self._reporter = parts.reporter

    # from connections

    def subscribe(
        self,
        session: Session,
        packet: Subscribe,
        acknowledge: Callable[[], None],
        note_pending: Callable[[Collection[str]], None] = lambda _: None,
    ) -> None:
        """
        Handle a client's SUBSCRIBE; `acknowledge` sends the SUBACK when it is due.

        If the SUBACK leaves before some zones have confirmed, `note_pending` gets their apexes
        first.
        """
        if self._subscribe_now(session, packet, acknowledge):
            return
        granted = dict(packet.filters)
        identifier = _identifier_of(packet)
        fresh = frozenset(f for f in granted if f not in session.subscriptions)
        self._leave_earlier(session, granted.keys())
        subscriptions = {
            f: self._subscription(session, f, options, identifier) for f, options in granted.items()
        }
        subscribing = self._subscribing(session, subscriptions, fresh, acknowledge)
        subscribing.unretained = frozenset(
            f for f, options in granted.items() if not _wants_retained(options, f in fresh)
        )
        subscribing.note_pending = note_pending
        session.start_subscribing(subscribing.count)
        session.on_subscriptions_changed()
        for topic_filter, subscription in subscriptions.items():
            if subscription.held is None:
                subscription.collect(is_fresh=topic_filter in fresh)
            if is_sys(topic_filter) and subscribing.wants_retained(topic_filter):
                for message in self._sys.match(topic_filter):
                    subscribing.deliver(subscription, message, retain=True)
        self._ask_zones(subscribing)
        self._sys.on_subscribed(granted)

    def unsubscribe(
        self, session: Session, topic_filters: Iterable[str], acknowledge: Callable[[], None]
    ) -> None:
        """Handle a client's UNSUBSCRIBE; filters that the session does not have are ignored."""
        left = dict.fromkeys(topic_filters)
        self._leave_earlier(session, left.keys())
        for topic_filter in left:
            if topic_filter in session.subscriptions:
                self._drop(session, topic_filter)
        session.on_subscriptions_changed()
        self._commit(session, acknowledge)

    # from clients: sessions that come and go

    def adopt(
        self, session: Session, topic_filters: Iterable[str], confirmed: Set[str] = frozenset()
    ) -> None:
        """
        Count filters of a session that were not counted here, and deliver live for them.

        For filters in `confirmed` the start is known by now, whatever the zones asked here answer.
        Before the turn ends, the caller has the zones asked (`resume`, `follow_zones`) or
        refreshed.
        """
        for subscribing in self._interests.of(session):
            subscribing.fresh -= confirmed
        for topic_filter in topic_filters:
            self._note_options(session.subscriptions[topic_filter])
            if session.sink is not None:
                self._delivery.listen(session, session.subscriptions[topic_filter])
            if not is_sys(topic_filter):
                self._interests.add(topic_filter)

    def resume(self, session: Session, filters: Iterable[str]) -> None:
        """Ask the zones that had not confirmed filters at another node, or before a restart."""
        subscriptions = session.subscriptions
        pending = {f: subscriptions[f] for f in filters if subscriptions[f].pending}
        if pending:
            subscribing = self._subscribing(session, pending, frozenset(pending), None)
            subscribing.is_resumed = True
            self._interests.start(subscribing)

    def follow_zones(self, session: Session, filters: Iterable[str]) -> None:
        """Ask from which offset the filters of a session that moved here hold at this node."""
        subscriptions = session.subscriptions
        known = {f: subscriptions[f] for f in filters if not subscriptions[f].pending}
        subscribing = self._subscribing(session, known, frozenset(), lambda: None)
        subscribing.is_moved = True
        subscribing.count = 1  # the client has not asked, so its connection is read meanwhile
        session.start_subscribing()
        self._ask_zones(subscribing)

    def end(self, session: Session) -> None:
        """End the subscriptions of a session that is over."""
        for subscribing in self._interests.of(session):
            self._interests.cancel(subscribing)
            if subscribing.alarm is not None:
                subscribing.alarm.cancel()
        if session.sink is not None:
            for subscription in session.subscriptions.values():
                self._delivery.ignore(session, subscription)
        self._interests.remove_all(session, (f for f in session.subscriptions if not is_sys(f)))
        session.subscriptions.clear()

    # internal

    def _subscribe_now(
        self, session: Session, packet: Subscribe, acknowledge: Callable[[], None]
    ) -> bool:
        """
        Subscribe at once: one new filter of a clean session that only this node's own zone serves.

        Equals all the steps of a SUBSCRIBE. Returns False, and does nothing, if the zone cannot
        answer now.
        """
        topic_filter, options = packet.filters[0]
        if (
            len(packet.filters) > 1
            or not session.clean
            or session.subscribing
            or topic_filter in session.subscriptions
            or is_sys(topic_filter)
        ):
            return False
        answer = self._interests.answer_locally(topic_filter)
        if answer is None:
            return False
        place, retained = answer
        subscription = _new(topic_filter, options, _identifier_of(packet))
        self._note_options(subscription)  # its topics may be another node's later
        subscription.exclude(place.part, place.offset)
        session.add(subscription)
        session.on_subscriptions_changed()
        self._delivery.listen(session, subscription)
        self._interests.add(topic_filter)
        acknowledge()
        if not _wants_retained(options, is_fresh=True):
            return True
        give = partial(deliver_once, session, subscription, retain=True)
        self._feeds.start(session, subscription, retained, give)
        return True

    def _commit(self, session: Session, action: Callable[[], None]) -> None:
        """Run the action when the subscriptions are durable; at once for a clean session."""
        if session.clean:
            action()
        else:
            self._session_store.save_all(session)
            self._session_store.when_durable(action)

    def _subscribing(
        self,
        session: Session,
        subscriptions: dict[str, Subscription],
        fresh: frozenset[str],
        acknowledge: Callable[[], None] | None,
    ) -> SubscribeRequest:
        return SubscribeRequest(
            session=session,
            subscriptions=subscriptions,
            zoned=frozenset(f for f in subscriptions if not is_sys(f)),
            fresh=fresh,
            acknowledge=acknowledge,
            put=self._put,
            commit=lambda action: self._commit(session, action),
            feeds=self._feeds,
            count=len(subscriptions),
            recording=self._ledger_writer,
        )

    def _subscription(
        self, session: Session, topic_filter: str, options: int, identifier: int
    ) -> Subscription:
        known = session.subscriptions.get(topic_filter)
        if known is not None:
            is_less = options & QOS_BITS < known.qos
            known.grant(options & QOS_BITS, options & DELIVERY_BITS, identifier)
            session.is_special = session.is_special or known.is_special
            self._note_options(known)
            if is_less and self._ledger_writer is not None:
                self._ledger_writer.record_subscription(
                    session, known
                )  # from now on, not from the SUBACK on
            return known
        subscription = _new(topic_filter, options, identifier)
        self._note_options(subscription)
        session.add(subscription)
        self._delivery.listen(session, subscription)
        if not is_sys(topic_filter):
            self._interests.add(topic_filter)
        return subscription

    def _note_options(self, subscription: Subscription) -> None:
        if wants_publishers((subscription,)):
            self._interests.wants_publishers = True

    def _drop(self, session: Session, topic_filter: str) -> None:
        if self._ledger_writer is not None:
            self._ledger_writer.ended(session, session.subscriptions[topic_filter])
        subscription = session.drop(topic_filter)
        if session.sink is not None:
            self._delivery.ignore(session, subscription)
        if not is_sys(topic_filter):
            self._interests.remove(topic_filter)

    def _leave_earlier(self, session: Session, topic_filters: Set[str]) -> None:
        for subscribing in self._interests.of(session):
            subscribing.drop(topic_filters)
            self._interests.finish_if_answered(subscribing)

    def _ask_zones(self, subscribing: SubscribeRequest) -> None:
        self._interests.start(subscribing)
        if subscribing.acknowledge is None:
            return
        if self._is_worth_waiting(subscribing):
            subscribing.alarm = self._patience.call_later(
                self.wait, lambda: self._give_up_waiting(subscribing)
            )
        else:
            self._give_up_waiting(subscribing)

    def _is_worth_waiting(self, subscribing: SubscribeRequest) -> bool:
        # A zone that has been unreachable for `wait` already delays no further SUBACK.
        since = self._patience.now() - self.wait
        for _, apex in subscribing.open:
            route = self._zones.get(apex)
            lost = route.unreachable_since if route is not None else None
            if lost is None or lost > since:
                return True
        return False

    def _give_up_waiting(self, subscribing: SubscribeRequest) -> None:
        subscribing.alarm = None
        for topic_filter, apex in sorted(subscribing.open):
            self._reporter.event(
                "interest.pending",
                filter=topic_filter,
                zone=apex,
                client_id=subscribing.session.client_id,
            )
        subscribing.finish()


def _new(topic_filter: str, options: int, identifier: int) -> Subscription:
    kept = options & DELIVERY_BITS
    return Subscription(topic_filter, options & QOS_BITS, options=kept, identifier=identifier)


def _identifier_of(packet: Subscribe) -> int:
    identifiers = packet.properties.subscription_identifiers
    return identifiers[0] if identifiers else 0


def _wants_retained(options: int, is_fresh: bool) -> bool:
    """True if the retain handling of the options asks for retained messages."""
    handling = retain_handling(options)
    return handling == 0 or (handling == 1 and is_fresh)
