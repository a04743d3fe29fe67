"""A session's membership in a group (MQTT 5.0, section 4.8.2)."""

from __future__ import annotations

import attrs

from txbroker.mqtt.session.window import OutboundMessage
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.properties import Properties, encode_properties
from txbroker.mqtt.wire.subscription_options import AS_PUBLISHED


@attrs.frozen
class SharedSubscription:
    """
    A shared subscription with its granted QoS; `topic_filter` is all of `$share/GROUP/FILTER`.

    - `options`: the bits of its options byte that delivery needs (`DELIVERY_BITS`).
    - `identifier`: the subscription identifier of the client, 0 for none.
    """

    topic_filter: str
    qos: int
    options: int = 0
    identifier: int = 0

    @property
    def is_as_published(self) -> bool:
        """True if messages keep the RETAIN flag of their publisher."""
        return bool(self.options & AS_PUBLISHED)

    @property
    def properties(self) -> bytes:
        """Return the properties that its messages get at level 5."""
        if not self.identifier:
            return b""
        return encode_properties(Properties(subscription_identifiers=(self.identifier,)))

    def entry(self, message: Message) -> OutboundMessage:
        """Return the message as the session's client gets it."""
        return OutboundMessage(
            message,
            min(self.qos, message.qos),
            message.retain and self.is_as_published,
            identifiers=(self.identifier,) if self.identifier else (),
        )
