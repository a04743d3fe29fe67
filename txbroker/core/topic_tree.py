"""
The tree that both look-ups are built on: one node per topic level, the root above the first level.

A node holds its children by level text. A node has at most one item, the value of the topic or
filter that ends there. Nothing recurses, because a topic may have tens of thousands of levels.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")


class TopicNode(Generic[T]):
    """A level of a tree; `item` is None where nothing ends."""

    __slots__ = ("children", "item")

    def __init__(self) -> None:
        self.children: dict[str, TopicNode[T]] = _NO_CHILDREN
        self.item: T | None = None


# Most nodes are leaves, and an empty dict of its own would double the size of each.
# Only `reach` adds children, and gives the node its own dict first.
_NO_CHILDREN: Final[dict[str, Any]] = {}


def reach(root: TopicNode[T], text: str) -> TopicNode[T]:
    """The node at which `text` ends, made with all nodes above it where they are missing."""
    node = root
    for level in text.split("/"):
        child = node.children.get(level)
        if child is None:
            child = TopicNode()
            if node.children is _NO_CHILDREN:
                node.children = {}
            node.children[level] = child
        node = child
    return node


def prune(root: TopicNode[T], text: str) -> None:
    """Take the item off the node at which `text` ends, and every branch that is empty then."""
    levels = text.split("/")
    path = [root]
    for level in levels:
        path.append(path[-1].children[level])
    path[-1].item = None
    for parent, level, node in zip(path[-2::-1], levels[::-1], path[:0:-1], strict=True):
        if node.children or node.item is not None:
            return
        del parent.children[level]
