"""
The control packets of MQTT 3.1.1 and 5.0 as plain values, in the order of their types.

A value has a packet's content, legal or not: `decoder.decode` refuses illegal packets, and
`encoder.encode` trusts its caller. Packet identifiers are 1 to 65,535. Fields that only level 5 has
keep their defaults at the other levels. *Raw* properties are the content of a property list, in the
bytes that came.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import attrs

from txbroker.mqtt.wire.properties import NO_PROPERTIES, Properties

LEVEL_4: Final = 4
LEVEL_5: Final = 5
"""The protocol levels of MQTT 3.1.1 and 5.0."""

FOREVER: Final = 0xFFFFFFFF
"""The session expiry of a session that does not expire (MQTT 5.0, section 3.1.2.11.2)."""


@attrs.frozen(kw_only=True)
class Will:
    """
    The message that a server publishes for a client that has gone (section 3.1.2.5).

    `properties` are raw, without the `delay`, which is in seconds.
    """

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: bytes = b""
    delay: int = 0


@attrs.define
class Connect:
    """
    Section 3.1. `keep_alive` is in seconds, 0 for none; ("MQTT", 4) is MQTT 3.1.1.

    At level 5, `clean_session` is the clean start.

    The class is neither frozen nor keyword-only, as `Publish` is not. With so many fields, either
    would take most of the decoding time.
    """

    client_id: str
    clean_session: bool = True
    keep_alive: int = 0
    will: Will | None = None
    username: str | None = None
    password: bytes | None = None
    protocol_name: str = "MQTT"
    protocol_level: int = LEVEL_4
    properties: Properties = NO_PROPERTIES

    @property
    def expiry(self) -> int | None:
        """
        Return the seconds that the session outlives its connection; None: the server decides.
        """
        if self.protocol_level < LEVEL_5:
            return 0 if self.clean_session else None
        expiry = self.properties.session_expiry or 0
        return None if expiry == FOREVER else expiry


@attrs.frozen
class Connack:
    """Section 3.2. `return_code` is a `ConnackCode`, at level 5 a `ReasonCode`."""

    session_present: bool
    return_code: int
    properties: Properties = NO_PROPERTIES


@attrs.define
class Publish:
    """
    Section 3.3. `packet_id` is None at QoS 0 and only there.

    `properties` are raw: what the message carries from its publisher to its subscribers. Not among
    them are the `topic_alias`, 0 for none, and the subscription identifiers, which a server adds.
    With an alias, the topic may be "".

    The class is neither frozen nor keyword-only. So construction is three times as fast, and every
    message needs one. Callers must treat it as frozen all the same.
    """

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int | None = None
    properties: bytes = b""
    topic_alias: int = 0
    subscription_identifiers: tuple[int, ...] = ()


@attrs.define
class Puback:
    """
    Section 3.4: the receiver has accepted a QoS 1 message.

    No acknowledgement's class is frozen, for the reason that `Publish` is not.
    """

    packet_id: int
    reason: int = 0
    properties: Properties = NO_PROPERTIES


@attrs.define
class Pubrec:
    """Section 3.5: the receiver has accepted a QoS 2 message."""

    packet_id: int
    reason: int = 0
    properties: Properties = NO_PROPERTIES


@attrs.define
class Pubrel:
    """Section 3.6: the sender has discarded a QoS 2 message."""

    packet_id: int
    reason: int = 0
    properties: Properties = NO_PROPERTIES


@attrs.define
class Pubcomp:
    """Section 3.7: the receiver has discarded the identifier of a QoS 2 message."""

    packet_id: int
    reason: int = 0
    properties: Properties = NO_PROPERTIES


@attrs.define
class Subscribe:
    """
    Section 3.8. `filters` has pairs of topic filter and requested QoS, at least one.

    At level 5, the second of a pair is the options byte (`subscription_options`). The class is not
    frozen, for the reason that `Publish` is not.
    """

    packet_id: int
    filters: tuple[tuple[str, int], ...]
    properties: Properties = NO_PROPERTIES


@attrs.frozen
class Suback:
    """
    Section 3.9. Each filter has a code: the granted QoS or `SUBACK_FAILURE`.

    At level 5, the codes are `ReasonCode`s.
    """

    packet_id: int
    return_codes: tuple[int, ...]
    properties: Properties = NO_PROPERTIES


@attrs.frozen
class Unsubscribe:
    """Section 3.10. At least one topic filter."""

    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


@attrs.frozen
class Unsuback:
    """Section 3.11. At level 5, each filter has a `ReasonCode`; at the others, `reasons` is ()."""

    packet_id: int
    reasons: tuple[int, ...] = ()
    properties: Properties = NO_PROPERTIES


@attrs.frozen
class Pingreq:
    """Section 3.12."""


@attrs.frozen
class Pingresp:
    """Section 3.13."""


@attrs.frozen
class Disconnect:
    """
    Section 3.14: the client leaves in good order, and its will is discarded.

    At level 5, a server sends it, too, and the `reason` may ask for the will.
    """

    reason: int = 0
    properties: Properties = NO_PROPERTIES


@attrs.frozen
class Auth:
    """Section 3.15, at level 5 only: one step of an authentication in several."""

    reason: int = 0
    properties: Properties = NO_PROPERTIES


Packet: TypeAlias = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
