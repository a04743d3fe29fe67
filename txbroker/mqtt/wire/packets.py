"""
The control packets of MQTT 3.1.1 as plain values, in the order of their types.

A value has a packet's content, legal or not: `decoder.decode` refuses illegal packets, and
`encoder.encode` trusts its caller. Packet identifiers are 1 to 65,535.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs


@attrs.frozen(kw_only=True)
class Will:
    """The message that a server publishes for a client that has gone (section 3.1.2.5)."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


@attrs.define(kw_only=True)
class Connect:
    """
    Section 3.1. `keep_alive` is in seconds, 0 for none; ("MQTT", 4) is MQTT 3.1.1.

    The class is not frozen, as `Publish` is not: with so many fields, a frozen class would take
    most of the decoding time.
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

    The class is neither frozen nor keyword-only. So construction is three times as fast, and every
    message needs one. Callers must treat it as frozen all the same.
    """

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int | None = None


@attrs.frozen
class Puback:
    """Section 3.4: the receiver has accepted a QoS 1 message."""

    packet_id: int


@attrs.frozen
class Pubrec:
    """Section 3.5: the receiver has accepted a QoS 2 message."""

    packet_id: int


@attrs.frozen
class Pubrel:
    """Section 3.6: the sender has discarded a QoS 2 message."""

    packet_id: int


@attrs.frozen
class Pubcomp:
    """Section 3.7: the receiver has discarded the identifier of a QoS 2 message."""

    packet_id: int


@attrs.frozen
class Subscribe:
    """Section 3.8. `filters` has pairs of topic filter and requested QoS, at least one."""

    packet_id: int
    filters: tuple[tuple[str, int], ...]


@attrs.frozen
class Suback:
    """Section 3.9. Each filter has a code: the granted QoS or `SUBACK_FAILURE`."""

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
    """Section 3.14: the client leaves in good order, and its will is discarded."""


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
