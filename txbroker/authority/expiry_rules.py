"""
The intervals that a zone gives to its messages by topic, whatever their publishers asked for.

The owner writes the interval into the message before anything else sees it. So the journal, the
retained messages and each session treat it like a publisher's own.
"""

from __future__ import annotations

from collections.abc import Iterable

from txbroker.core import Router
from txbroker.core.subscription_index import SubscriptionIndex
from txbroker.mqtt.wire.message import Message

_KEY = "expiry"


class ExpiryRules:
    """
    The rules of one zone: filters with seconds; of several that match, the shortest counts.

    A topic with an interval is one of the router's `singles`: its runs would pass this place by.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._rules: SubscriptionIndex[int, int] = SubscriptionIndex()
        self._filters: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self._rules)

    def set(self, rules: Iterable[tuple[str, int]]) -> None:
        """Replace the rules; they count for what is published from now on."""
        for topic_filter in self._filters:
            self._router.singles.remove(topic_filter, _KEY)
        self._rules = SubscriptionIndex()
        for number, (topic_filter, seconds) in enumerate(found := tuple(rules)):
            self._rules.add(topic_filter, number, seconds)
            self._router.singles.add(topic_filter, _KEY, None)
        self._filters = tuple(topic_filter for topic_filter, _ in found)

    def limit(self, message: Message) -> Message:
        """Return the message with the zone's interval, unless its own is shorter."""
        found = self._rules.match(message.topic)
        if not found:
            return message
        seconds = min(seconds for _, seconds in found)
        own = message.expiry
        return message if own is not None and own <= seconds else message.expiring(seconds)
