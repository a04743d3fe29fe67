"""
One client connection's protocol state: which packet is legal now.

Frames in, legal packets out; whatever is illegal raises `ProtocolViolation`, and then the only
thing to do is to close (after the CONNACK that the violation names, if it names one).
Sessions, sockets and time are not known here.
"""

from __future__ import annotations

from typing import Final

from txbroker.mqtt.codec import decode
from txbroker.mqtt.packets import (
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from txbroker.mqtt.return_codes import ConnackCode, ProtocolViolation

CONNECT_BYTE = 0x10
"""With which a CONNECT begins, and so every connection of a client."""


LEGAL: Final[frozenset[type]] = frozenset(  # [MQTT-3.1.0-2]: no second CONNECT
    {
        Publish,
        Puback,
        Pubrec,
        Pubrel,
        Pubcomp,
        Subscribe,
        Unsubscribe,
        Pingreq,
        Disconnect,
    }
)
"""What a client may send after its CONNECT, which comes first [MQTT-3.1.0-1]."""

_NO_FRAME: Final = (0, b"")


class Connection:
    """
    The state of one connection; `is_closed`: nothing that comes counts. `frame` keeps the packet
    that was not legal, for the log.
    """

    __slots__ = ("_expects_connect", "frame", "is_closed")

    def __init__(self) -> None:
        self._expects_connect = True
        self.is_closed = False
        self.frame = _NO_FRAME

    def judge(self, first_byte: int, body: bytes) -> Packet | None:
        """
        The packet that came next; None where nothing counts any more.

        Raises `ProtocolViolation` where it is not legal.
        """
        if self.is_closed:
            return None
        try:
            packet = decode(first_byte, body)
            if not self._expects_connect:
                if type(packet) not in LEGAL:
                    raise self._misplaced(packet)
                if type(packet) is Disconnect:
                    self.is_closed = True
            else:
                if type(packet) is not Connect:
                    raise self._misplaced(packet)
                if not packet.client_id and not packet.clean_session:
                    raise ProtocolViolation(
                        "MQTT-3.1.3-8",
                        "An empty client id needs a clean session.",
                        ConnackCode.IDENTIFIER_REJECTED,
                    )
                self._expects_connect = False
        except ProtocolViolation:
            self.frame = first_byte, body
            raise
        return packet

    def judge_beginning(self, first_byte: int | None) -> None:
        """
        Raises `ProtocolViolation` where a packet that is not complete yet cannot be a CONNECT, and
        one is due. Another protocol's greeting seldom makes a whole packet: it is told at its first
        byte, or its sender would wait for an answer while the rest of that "packet" is waited for.
        """
        is_due = self._expects_connect and not self.is_closed
        if is_due and first_byte is not None and first_byte != CONNECT_BYTE:
            self.frame = (first_byte, b"")
            raise ProtocolViolation(
                "MQTT-3.1.0-1",
                f"The first packet is CONNECT and begins with 10, not {first_byte:02x}.",
            )

    def close(self) -> None:
        """Nothing that comes after this counts."""
        self.is_closed = True

    def _misplaced(self, packet: Packet) -> ProtocolViolation:
        name = type(packet).__name__.upper()
        if self._expects_connect:
            return ProtocolViolation("MQTT-3.1.0-1", f"The first packet is CONNECT, not {name}.")
        if isinstance(packet, Connect):
            return ProtocolViolation("MQTT-3.1.0-2", "A connection has one CONNECT.")
        return ProtocolViolation("MQTT-4.8.0-1", f"A client does not send {name}.")
