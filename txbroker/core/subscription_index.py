"""
The receivers of a message: subscriptions by filter, found by topic.

`SubscriptionIndex` knows nothing of clients, peers or QoS: keys and values are the caller's. The
tree of levels is walked once per topic that is new. The answer is kept until the next change: most
messages go to topics that were published to before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from txbroker.core.topic_cache import TopicCache
from txbroker.core.topic_tree import TopicNode, prune, reach

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_CACHE_BYTES = 64 * 1024 * 1024
"""Rough ceiling of what cached answers take, so that 65,535-byte topics cannot eat the memory."""


class SubscriptionIndex(Generic[K, V]):
    """
    A set of subscriptions `(filter, key) -> value`.

    Filters and topics are expected to be valid. `len()` counts subscriptions, not filters.
    `forgotten` counts how often answers went as they were too many.
    """

    def __init__(self, cache_limit: int = 100_000) -> None:
        """`cache_limit` is the number of topics whose answer is kept; 0 keeps none."""
        self._root: TopicNode[dict[K, tuple[K, V]]] = TopicNode()
        self._by_filter: dict[str, dict[K, tuple[K, V]]] = {}
        self._size = 0
        self._answers: TopicCache[list[tuple[tuple[K, V], ...]]] = TopicCache(
            cache_limit, _CACHE_BYTES, lambda known: 100 + 8 * len(known[0])
        )

    def __len__(self) -> int:
        return self._size

    def __contains__(self, topic_filter: str) -> bool:
        return topic_filter in self._by_filter

    @property
    def cache_limit(self) -> int:
        """The number of topics whose answer is kept."""
        return self._answers.limit

    @cache_limit.setter
    def cache_limit(self, limit: int) -> None:
        self._answers.limit = limit

    @property
    def forgotten(self) -> int:
        """The number of times that answers went as they were too many."""
        return self._answers.forgotten

    def filters(self) -> Iterator[str]:
        """Every filter that has a subscription, once; not to be changed while iterated."""
        return iter(self._by_filter)

    def add(self, topic_filter: str, key: K, value: V) -> bool:
        """Set the value of a key on a filter; True when the key is new there."""
        self._answers.clear()
        entries = self._by_filter.get(topic_filter)
        if entries is None:
            entries = self._by_filter[topic_filter] = {}
            reach(self._root, topic_filter).item = entries
        is_new = key not in entries
        entries[key] = (key, value)
        self._size += is_new
        return is_new

    def remove(self, topic_filter: str, key: K) -> bool:
        """Take a key off a filter; False when it was not there."""
        entries = self._by_filter.get(topic_filter)
        if entries is None or key not in entries:
            return False
        self._answers.clear()
        del entries[key]
        self._size -= 1
        if not entries:
            del self._by_filter[topic_filter]
            prune(self._root, topic_filter)
        return True

    def match(self, topic: str) -> tuple[tuple[K, V], ...]:
        """
        The `(key, value)` pairs of all filters that match the topic.

        A key comes once per matching filter, so overlapping subscriptions show as several pairs.
        """
        known = self._answers.young.get(topic) or self._answers.again(topic)
        if known is None:
            known = [self._walk(topic)]  # in a list, as an answer may be empty
            self._answers.put(topic, known)
        return known[0]

    # -- internal

    def _walk(self, topic: str) -> tuple[tuple[K, V], ...]:
        found: list[tuple[K, V]] = []
        levels = topic.split("/")
        reached = [self._root]
        if topic.startswith("$"):
            # [MQTT-4.7.2-1] The wildcards next to the root do not count.
            first = self._root.children.get(levels.pop(0))
            reached = [] if first is None else [first]
        for level in levels:
            if not reached:
                break
            below: list[TopicNode[dict[K, tuple[K, V]]]] = []
            for node in reached:
                children = node.children
                if "#" in children:
                    _collect(children["#"], found)
                if level in children:
                    below.append(children[level])
                if "+" in children:
                    below.append(children["+"])
            reached = below
        for node in reached:
            _collect(node, found)
            if "#" in node.children:  # `a/#` stands for `a` too (section 4.7.1.2)
                _collect(node.children["#"], found)
        return tuple(found)


def _collect(node: TopicNode[dict[K, tuple[K, V]]], found: list[tuple[K, V]]) -> None:
    if node.item is not None:
        found.extend(node.item.values())
