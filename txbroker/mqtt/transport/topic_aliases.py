"""The topic aliases that one client has set on its connection (MQTT 5.0, section 3.3.2.3.4)."""

from __future__ import annotations

from typing import Final

import attrs

from txbroker.mqtt.wire.packets import Publish
from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.mqtt.wire.return_codes import ProtocolViolation

MOST_BYTES: Final = 64 * 1024 * 1024
"""
Bytes of all connections' topics, beyond which a connection may have `FEW_BYTES`.

A hundred aliases of the longest topics take 6.5 MB, which each of a stranger's connections had.
"""

FEW_BYTES: Final = 16 * 1024
"""Bytes of topics that any connection may have: those of a usual client."""


class AliasBytes:
    """The bytes of the topics that all connections of a node have set."""

    def __init__(self) -> None:
        self.held = 0


class TopicAliases:
    """The topics by alias, 1 to `most`; they end with the connection."""

    def __init__(self, most: int, node: AliasBytes) -> None:
        self._most = most
        self._node = node
        self._own = 0
        self._topics: dict[int, str] = {}

    def end(self) -> None:
        """Release the topics: the connection has ended."""
        self._node.held -= self._own
        self._own = 0
        self._topics.clear()

    def resolve(self, packet: Publish) -> Publish:
        """
        Return the PUBLISH with its topic, and without its alias.

        Raises `ProtocolViolation` for an alias above `most`, and for one that has no topic yet.
        Raises it, too, if the node has no room for the topic.
        """
        alias = packet.topic_alias
        if alias > self._most:
            raise ProtocolViolation(
                "MQTT-3.3.2-9",
                f"A topic alias is over {self._most}.",
                reason_code=ReasonCode.TOPIC_ALIAS_INVALID,
            )
        known = self._topics.get(alias, "")
        topic = packet.topic or known
        if not topic:
            raise ProtocolViolation(
                "section 3.3.2.3.4",
                f"Topic alias {alias} has no topic.",
                reason_code=ReasonCode.PROTOCOL_ERROR,
            )
        if topic is not known:
            self._set(alias, topic, len(topic) - len(known))
        return attrs.evolve(packet, topic=topic, topic_alias=0)

    def _set(self, alias: int, topic: str, more: int) -> None:
        if self._own + more > FEW_BYTES and self._node.held + more > MOST_BYTES:
            raise ProtocolViolation(
                "section 4.13.2",
                "The node has no room for the topics of more aliases.",
                reason_code=ReasonCode.QUOTA_EXCEEDED,
            )
        self._own += more
        self._node.held += more
        self._topics[alias] = topic
