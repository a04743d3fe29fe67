"""
The stored form of durable sessions.

The part that changes rarely is a `StoredSession`; the window, which changes with each message, is
in `window_format`. Both together are a `SessionMove`: a session on its way to another node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from google.protobuf.message import DecodeError

from txbroker.delegation.peer_checks import (
    check,
    check_filters,
    check_groups,
    check_names,
    check_properties,
    check_topics,
)
from txbroker.edge.sessions.window_format import (
    RestoredWindow,
    decode_window,
    encode_window,
    length_prefix,
    part_of,
    stored_place,
)
from txbroker.model.errors import PeerError
from txbroker.model.log_position import LogPosition
from txbroker.mqtt.session.cursor import Subscription
from txbroker.mqtt.session.group_sender import GroupSender
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.shared_subscription import SharedSubscription
from txbroker.mqtt.wire.packets import LEVEL_4
from txbroker.mqtt.wire.subscription_options import DELIVERY_BITS
from txbroker.v1 import state_pb2

MOST_IDENTIFIER: Final = 268_435_455
"""The highest subscription identifier (MQTT 5.0, section 3.8.2.1.2)."""


def encode_session(session: Session, away_since: int, *, is_whole: bool = True) -> bytes:
    """
    Encode the part that changes rarely.

    `away_since` is in the node's lived time, 0 while the client is connected. Unless `is_whole`,
    the subscriptions have rows of their own.
    """
    stored = state_pb2.StoredSession(
        incarnation=session.incarnation,
        away_since=away_since,
        dropped=session.sender.dropped,
        expiry=session.expiry,
        level=session.level,
    )
    for shared in session.shared.values():
        stored.shared.add(
            filter=shared.topic_filter,
            qos=shared.qos,
            options=shared.options,
            identifier=shared.identifier,
        )
    if isinstance(session.sender, GroupSender):
        stored.edges.extend(sorted(session.sender.edges))
    if not is_whole:
        stored.number = session.number
        return stored.SerializeToString()
    pieces = [stored.SerializeToString()]
    for topic_filter, rest in encode_subscriptions(session.subscriptions.values()):
        name = topic_filter.encode()
        named = b"\x0a" + length_prefix(len(name)) + name
        pieces += (b"\x1a", length_prefix(len(named) + len(rest)), named, rest)
    return b"".join(pieces)


def encode_subscriptions(subscriptions: Iterable[Subscription]) -> Iterator[tuple[str, bytes]]:
    """
    Yield each subscription's filter and the encoding of the rest.

    Most subscriptions of a session differ in their filter alone, so equal rests are encoded once.
    Otherwise a client with thousands of filters would stop the node at each SUBSCRIBE.
    """
    rests: dict[tuple[int, int, int, frozenset[str], int], bytes] = {}
    for subscription in subscriptions:
        kind = (
            subscription.qos,
            subscription.options,
            subscription.identifier,
            subscription.pending,
            id(subscription.starts),
        )
        rest = rests.get(kind)
        if rest is None:
            rest = rests[kind] = _encode_rest(subscription)
        yield subscription.topic_filter, rest


def _encode_rest(subscription: Subscription) -> bytes:
    """Encode a `StoredSubscription` without its filter."""
    kept = state_pb2.StoredSubscription(
        qos=subscription.qos,
        pending=sorted(subscription.pending),
        options=subscription.options,
        identifier=subscription.identifier,
    )
    kept.starts.extend(stored_place(LogPosition(p, o)) for p, o in subscription.starts.items())
    return kept.SerializeToString()


def decode_session(value: bytes, session: Session) -> tuple[int, int]:
    """
    Restore the session's rare part; return `away_since` and the session's number in the tables.
    """
    stored = state_pb2.StoredSession.FromString(value)
    session.incarnation = stored.incarnation
    session.sender.dropped = stored.dropped
    session.expiry = stored.expiry if stored.HasField("expiry") else None
    session.level = stored.level or LEVEL_4
    for kept in stored.subscriptions:
        _add_subscription(session, kept.filter, kept)
    for kept in stored.shared:
        session.share(SharedSubscription(kept.filter, kept.qos, kept.options, kept.identifier))
    if isinstance(session.sender, GroupSender):
        session.sender.edges = frozenset(stored.edges)
    return stored.away_since, stored.number


def decode_subscription(topic_filter: str, value: bytes, session: Session) -> None:
    """Restore a subscription of the session from a row of its own."""
    _add_subscription(session, topic_filter, state_pb2.StoredSubscription.FromString(value))


def _add_subscription(
    session: Session, topic_filter: str, kept: state_pb2.StoredSubscription
) -> None:
    starts = {part_of(start.part): start.offset for start in kept.starts}
    subscription = Subscription(topic_filter, kept.qos, frozenset(kept.pending), starts)
    subscription.options, subscription.identifier = kept.options, kept.identifier
    session.add(subscription)


def encode_move(session: Session) -> bytes:
    """Encode the whole session for its move to another node."""
    return state_pb2.SessionMove(
        session=encode_session(session, 0), window=encode_window(session, whole=True)
    ).SerializeToString()


def decode_move(value: bytes, session: Session) -> RestoredWindow:
    """Restore a new session from another node's state; the flows are for `Session.restore`."""
    move = state_pb2.SessionMove.FromString(value)
    decode_session(move.session, session)
    return decode_window(move.window, session, lambda _: None)


def check_move(value: bytes) -> None:
    """Check a session that another node sent; raises `PeerError` (protocol rule 28)."""
    try:
        move = state_pb2.SessionMove.FromString(value)
        session = state_pb2.StoredSession.FromString(move.session)
        window = state_pb2.StoredWindow.FromString(move.window)
    except DecodeError:
        raise PeerError("a session that cannot be read") from None
    check(session)
    check_filters(entry.filter for entry in session.subscriptions)
    check_groups(entry.filter for entry in session.shared)
    check_names(session.edges)
    check_groups(flow.group for flow in window.flows if flow.group)
    for had in window.had:
        check_filters(had.filters)
    check_topics("", (flow.topic for flow in window.flows if flow.topic))
    check_properties(flow.properties for flow in window.flows)
    identifiers = [i for flow in window.flows for i in flow.identifiers]
    subscriptions = [*session.subscriptions, *session.shared]
    identifiers += (entry.identifier for entry in subscriptions if entry.identifier)
    if not all(0 < identifier <= MOST_IDENTIFIER for identifier in identifiers):
        raise PeerError("a subscription identifier that no client can set")
    if any(entry.options & ~DELIVERY_BITS or entry.qos > 2 for entry in subscriptions):
        raise PeerError("subscription options that are not kept")
