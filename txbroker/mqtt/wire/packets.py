"""
The control packets of MQTT 3.1.1 as plain values, in the order of their types.

They say what a packet contains, not whether it is legal: `codec.decode` refuses what the standard
forbids, and `encoding.encode` trusts its caller. Packet identifiers are 1 to 65,535.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs


@attrs.frozen(kw_only=True)
class Will:
    """The message that a server publishes for a client that is gone (section 3.1.2.5)."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


@attrs.define(kw_only=True)
class Connect:
    """
    Section 3.1. `keep_alive` is in seconds, 0 for none; ("MQTT", 4) is MQTT 3.1.1.

    Not frozen, as `Publish`: with so many fields that takes most of the time of decoding it.
    """

    client_id: str
    clean_session: bool = True
    keep_alive: int = 0
    will: Will | None = None
    username: str | None = None
    password: bytes | None = None
    protocol_name: str = "MQTT"
    protocol_level: int = 4


@attrs.frozen
class Connack:
    """Section 3.2. `return_code` is a `ConnackCode`."""

    session_present: bool
    return_code: int


@attrs.define
class Publish:
    """
    Section 3.3. `packet_id` is None at QoS 0 and only there.

    Neither frozen nor keyword-only: that makes it three times as fast to build, and it is built for
    every message. Treat it as frozen all the same.
    """

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int | None = None


@attrs.frozen
class Puback:
    """Section 3.4: a QoS 1 message has been taken."""

    packet_id: int


@attrs.frozen
class Pubrec:
    """Section 3.5: a QoS 2 message has been taken."""

    packet_id: int


@attrs.frozen
class Pubrel:
    """Section 3.6: the sender has forgotten a QoS 2 message."""

    packet_id: int


@attrs.frozen
class Pubcomp:
    """Section 3.7: the receiver has forgotten the identifier of a QoS 2 message."""

    packet_id: int


@attrs.frozen
class Subscribe:
    """Section 3.8. `filters` holds pairs of topic filter and requested QoS, at least one."""

    packet_id: int
    filters: tuple[tuple[str, int], ...]


@attrs.frozen
class Suback:
    """Section 3.9. One code per filter: the granted QoS or `SUBACK_FAILURE`."""

    packet_id: int
    return_codes: tuple[int, ...]


@attrs.frozen
class Unsubscribe:
    """Section 3.10. At least one topic filter."""

    packet_id: int
    filters: tuple[str, ...]


@attrs.frozen
class Unsuback:
    """Section 3.11."""

    packet_id: int


@attrs.frozen
class Pingreq:
    """Section 3.12."""


@attrs.frozen
class Pingresp:
    """Section 3.13."""


@attrs.frozen
class Disconnect:
    """Section 3.14: the client leaves in good order, and its will with it."""


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
)
