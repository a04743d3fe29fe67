"""
One client connection's protocol state: which packet is legal now.

Bytes in, legal packets out, in order; whatever is illegal raises `ProtocolViolation`, and then the
only thing to do is to close (after the CONNACK that the violation names, if it names one).
Sessions, sockets and time are not known here.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from struct import unpack

import attrs

from txbroker.mqtt.codec import Framer, decode
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


_MORE_PUBACKS = re.compile(rb"(?:\x40\x02(?!\0\0)..)+", re.DOTALL)


@attrs.frozen
class Pubacks:
    """PUBACKs that came one right behind the other; a client that catches up sends many at once."""

    packet_ids: tuple[int, ...]


class Phase(enum.Enum):
    """How far the connection has come."""

    EXPECTING_CONNECT = "expecting CONNECT"
    CONNECTED = "connected"
    CLOSED = "closed"


LEGAL: dict[Phase, frozenset[type]] = {
    Phase.EXPECTING_CONNECT: frozenset({Connect}),  # [MQTT-3.1.0-1]
    Phase.CONNECTED: frozenset(  # [MQTT-3.1.0-2]: no second CONNECT
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
    ),
    Phase.CLOSED: frozenset(),
}
"""What a client may send in each phase."""


class Connection:
    """The state of one connection; `frame` keeps the packet at hand, for the log."""

    def __init__(self, max_packet: int) -> None:
        self.phase = Phase.EXPECTING_CONNECT
        self.frame: tuple[int, bytes] = (0, b"")
        self._framer = Framer(max_packet)
        self._is_held = False

    def hold(self) -> None:
        """Give no more packets before `resume`: the CONNECT at hand takes its time."""
        self._is_held = True

    def resume(self) -> None:
        """What arrived meanwhile comes with the next `receive`."""
        self._is_held = False

    def receive(self, data: bytes) -> Iterator[Packet | Pubacks]:
        """
        The legal packets that the bytes complete, each PUBACK with those right behind it.

        Raises `ProtocolViolation` in its turn, after the packets before the fault.
        """
        self._framer.feed(data)
        if self._is_held:
            return
        for frame in self._framer.frames():
            if self.phase is Phase.CLOSED:
                return
            self.frame = frame
            packet = decode(*frame)
            if type(packet) not in LEGAL[self.phase]:
                raise self._misplaced(packet)
            if isinstance(packet, Puback):
                yield self._with_more(packet)
                continue
            if isinstance(packet, Connect):
                _check_client_id(packet)
                self.phase = Phase.CONNECTED
            elif isinstance(packet, Disconnect):
                self.phase = Phase.CLOSED
            yield packet
            if self._holds():
                return
        if self.phase is Phase.EXPECTING_CONNECT:
            self._check_first_byte()

    def _with_more(self, packet: Puback) -> Pubacks:
        run = self._framer.take(_MORE_PUBACKS)
        return Pubacks((packet.packet_id, *unpack(f"!{'xxH' * (len(run) // 4)}", run)))

    def _holds(self) -> bool:
        return self._is_held

    def close(self) -> None:
        """Nothing that comes after this counts."""
        self.phase = Phase.CLOSED

    def _check_first_byte(self) -> None:
        # Another protocol's greeting seldom makes a whole packet: it is told at its first byte,
        # or its sender would wait for an answer while the rest of that "packet" is waited for.
        first = self._framer.first_byte
        if first is not None and first != CONNECT_BYTE:
            self.frame = (first, b"")
            raise ProtocolViolation(
                "MQTT-3.1.0-1", f"The first packet is CONNECT and begins with 10, not {first:02x}."
            )

    def _misplaced(self, packet: Packet) -> ProtocolViolation:
        name = type(packet).__name__.upper()
        if self.phase is Phase.EXPECTING_CONNECT:
            return ProtocolViolation("MQTT-3.1.0-1", f"The first packet is CONNECT, not {name}.")
        if isinstance(packet, Connect):
            return ProtocolViolation("MQTT-3.1.0-2", "A connection has one CONNECT.")
        return ProtocolViolation("MQTT-4.8.0-1", f"A client does not send {name}.")


def _check_client_id(packet: Connect) -> None:
    if not packet.client_id and not packet.clean_session:
        raise ProtocolViolation(
            "MQTT-3.1.3-8",
            "An empty client id needs a clean session.",
            ConnackCode.IDENTIFIER_REJECTED,
        )
