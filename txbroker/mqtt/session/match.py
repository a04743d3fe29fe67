"""
Joins the subscriptions of one session that match one message: the client gets one copy.

The copy has the highest QoS, and the identifiers of all subscriptions that count (MQTT 5.0, section
3.3.4). A subscription with `NO_LOCAL` does not count for a message of the session's own client.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from txbroker.mqtt.session.cursor import Subscription
from txbroker.mqtt.wire.subscription_options import AS_PUBLISHED, NO_LOCAL


class Match(NamedTuple):
    """
    The match of one message with a session.

    - `subscription`: the one of the highest QoS.
    - `identifiers`: the subscription identifiers that the packet carries.
    - `is_as_published`: True if the packet keeps the RETAIN flag of the publisher.
    """

    subscription: Subscription
    identifiers: tuple[int, ...] = ()
    is_as_published: bool = False


def match_of(found: Iterable[Subscription], *, is_own: bool) -> Match | None:
    """
    Return the match of a session's subscriptions; None: the session does not get the message.

    `is_own`: the session's client has published the message.
    """
    best: Subscription | None = None
    best_rank = False, -1
    options = 0
    identifiers: list[int] = []
    for subscription in found:
        if is_own and subscription.options & NO_LOCAL:
            continue
        known = rank(subscription)
        if known > best_rank:
            best, best_rank = subscription, known  # [MQTT-3.3.5-1]
        options |= subscription.options
        if subscription.identifier:
            identifiers.append(subscription.identifier)
    return None if best is None else Match(best, tuple(identifiers), bool(options & AS_PUBLISHED))


def wants_publishers(subscriptions: Iterable[Subscription]) -> bool:
    """True if any of the subscriptions depends on who published a message."""
    return any(subscription.options & NO_LOCAL for subscription in subscriptions)


def rank(subscription: Subscription) -> tuple[bool, int]:
    """
    Return the sort key of a matching subscription: SUBACK sent before SUBACK due, then by QoS.
    """
    return not subscription.is_held, subscription.qos
