"""The node-local `$SYS` tree, for this node's clients alone (protocol rule 26)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from txbroker.core.retained_tree import RetainedTree
from txbroker.edge.sessions.delivery import Delivery
from txbroker.mqtt.wire.message import Message

FEDERATION = "$SYS/federation"
"""Prefix of other nodes' values, which are below the nodes' names (protocol rule 26)."""


class SysTree:
    """The values, all retained; connected clients get each change."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._values: RetainedTree[Message] = RetainedTree()
        self._on_federation_filter: Callable[[], object] = lambda: None

    # from the node

    def when_federation_is_asked(self, action: Callable[[], object]) -> None:
        """Run `action` whenever a client subscribes to other nodes' `$SYS` values."""
        self._on_federation_filter = action

    def set(self, topic: str, payload: str | None) -> None:
        """Publish a `$SYS` value here, retained; None clears it."""
        known = self._values.get(topic)
        data = b"" if payload is None else payload.encode()
        if payload is None:
            self._values.remove(topic)
        elif known is None or known.payload != data:
            self._values.set(topic, Message(topic, data, 0, True))
        if known is None or known.payload != data:
            self._delivery.deliver(None, Message(topic, data, 0, True))

    def federation_filters(self) -> list[str]:
        """Return the filters of connected clients for other nodes' `$SYS` values."""
        return [f for f in self._delivery.filters() if f.startswith(FEDERATION + "/")]

    # from subscriptions

    def match(self, topic_filter: str) -> list[Message]:
        """Return the values that a new subscription gets."""
        return [message for _, message in self._values.match(topic_filter)]

    def on_subscribed(self, topic_filters: Iterable[str]) -> None:
        """Report new filters: some may ask for other nodes' values."""
        if any(f.startswith(FEDERATION + "/") for f in topic_filters):
            self._on_federation_filter()
