"""
The last value of each topic, found by filter.

`RetainedTree` knows nothing of messages: values are the caller's, and so is the rule that an empty
payload clears a topic. Walks visit only nodes that the filter leads to, in a stable order: depth
first, a topic before those below it, levels in the order in which they first appeared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from txbroker.matching.levels import Node, find, prune, reach

V = TypeVar("V")


class RetainedTree(Generic[V]):
    """
    A mapping of topic to value.

    Topics, filters and apexes are expected to be valid. The tree may be changed during a walk: the
    walk shows a topic as it is when its turn comes, and may miss one that was set meanwhile.
    """

    def __init__(self, weigh: Callable[[V], int] = lambda _: 0) -> None:
        """`weigh` says what a value adds to `size`."""
        self._root: Node[tuple[str, V]] = Node()
        self._nodes: dict[str, Node[tuple[str, V]]] = {}
        self._weigh = weigh
        self.size = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, topic: str) -> V | None:
        """The value of the topic, or None."""
        node = self._nodes.get(topic)
        return None if node is None or node.item is None else node.item[1]

    def set(self, topic: str, value: V) -> None:
        """Set or replace the value of the topic."""
        node = self._nodes.get(topic)
        if node is None:
            node = self._nodes[topic] = reach(self._root, topic)
        elif node.item is not None:
            self.size -= self._weigh(node.item[1])
        node.item = (topic, value)
        self.size += self._weigh(value)

    def remove(self, topic: str) -> V | None:
        """Take the topic out; its value, or None when it had none."""
        node = self._nodes.pop(topic, None)
        if node is None or node.item is None:
            return None
        _, value = node.item
        self.size -= self._weigh(value)
        prune(self._root, topic)
        return value

    def match(self, topic_filter: str) -> Iterator[tuple[str, V]]:
        """The `(topic, value)` pairs that a new subscription to the filter is sent."""
        levels = topic_filter.split("/")
        stack = [(self._root, 0)]
        while stack:
            node, depth = stack.pop()
            if depth == len(levels):
                if node.item is not None:
                    yield node.item
            elif levels[depth] == "#" and depth:
                yield from _walk([node])
            elif levels[depth] == "#":
                yield from _walk(self._shared())
            elif levels[depth] == "+":
                children = reversed(node.children.values()) if depth else self._shared()
                stack.extend((child, depth + 1) for child in children)
            elif levels[depth] in node.children:
                stack.append((node.children[levels[depth]], depth + 1))

    def within(self, apex: str) -> Iterator[tuple[str, V]]:
        """The pairs at or below the apex; `""` gives all, those that start with `$` included."""
        top = find(self._root, apex) if apex else self._root
        return _walk([] if top is None else [top])

    def discard_within(self, apex: str) -> int:
        """Take out what is at or below the apex; how many topics that were."""
        topics = [topic for topic, _ in self.within(apex)]
        for topic in topics:
            self.remove(topic)
        return len(topics)

    # -- internal

    def _shared(self) -> list[Node[tuple[str, V]]]:
        """The nodes of the first level that a leading wildcard stands for, last one first."""
        # [MQTT-4.7.2-1]
        first = reversed(self._root.children.items())
        return [node for level, node in first if not level.startswith("$")]


def _walk(stack: list[Node[tuple[str, V]]]) -> Iterator[tuple[str, V]]:
    """Every item at or below the nodes, beginning with the last of them."""
    while stack:
        node = stack.pop()
        if node.item is not None:
            yield node.item
        stack.extend(reversed(node.children.values()))
