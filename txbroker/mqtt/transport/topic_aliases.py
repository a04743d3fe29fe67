"""The topic aliases that one client has set on its connection (MQTT 5.0, section 3.3.2.3.4)."""

from __future__ import annotations

import attrs

from txbroker.mqtt.wire.packets import Publish
from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.mqtt.wire.return_codes import ProtocolViolation


class TopicAliases:
    """The topics by alias, 1 to `most`; they end with the connection."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._topics: dict[int, str] = {}

    def resolve(self, packet: Publish) -> Publish:
        """
        Return the PUBLISH with its topic, and without its alias.

        Raises `ProtocolViolation` for an alias above `most`, and for one that has no topic yet.
        """
        alias = packet.topic_alias
        if alias > self._most:
            raise ProtocolViolation(
                "MQTT-3.3.2-9",
                f"A topic alias is over {self._most}.",
                reason_code=ReasonCode.TOPIC_ALIAS_INVALID,
            )
        topic = packet.topic or self._topics.get(alias)
        if not topic:
            raise ProtocolViolation(
                "section 3.3.2.3.4",
                f"Topic alias {alias} has no topic.",
                reason_code=ReasonCode.PROTOCOL_ERROR,
            )
        self._topics[alias] = topic
        return attrs.evolve(packet, topic=topic, topic_alias=0)
