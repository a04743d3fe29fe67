"""
Link frames on the wire: MQTT framing, type 0 for control, type 3 for messages (protocol rule 24).

A link takes nothing else. What breaks a rule raises `LinkError`; the link is closed and counted,
the node goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from google.protobuf.message import DecodeError

from txbroker.core import LinkReader, Run
from txbroker.model.errors import PeerError
from txbroker.model.publish_run import Octets
from txbroker.mqtt.wire.decoder import decode
from txbroker.mqtt.wire.framing import encode_length
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Publish
from txbroker.mqtt.wire.return_codes import ProtocolViolation
from txbroker.v1.link_pb2 import LinkFrame

LINK_VERSION = 2
"""Version of the format; another one, newer or older, is refused in one line (`check_version`)."""

LARGEST = 268_435_460
"""Bytes of the largest packet that MQTT's framing can spell."""

_CONTROL = 0x00
_PUBLISH = 0x30


class Write(Protocol):
    """What sends bytes to the other end, one piece behind the other."""

    def __call__(self, *pieces: Octets) -> None: ...


class LinkError(PeerError):
    """The other end of a link broke a rule of the link's format."""


def link_error(error: PeerError) -> LinkError:
    """What breaks any rule between nodes breaks one of the link."""
    return error if isinstance(error, LinkError) else LinkError(str(error))


def check_version(version: int) -> None:
    """Raises `LinkError` unless the other end's format is this one; `OpenLink` has told it so."""
    if version != LINK_VERSION:
        raise LinkError(f"the other end has link format {version}, this node {LINK_VERSION}")


def encode_frame(frame: LinkFrame) -> bytes:
    """A control frame as it goes on the wire."""
    body = frame.SerializeToString()
    return b"\x00" + encode_length(len(body)) + body


class FrameReader:
    """
    Bytes in, control frames and messages out; of a batch, many messages at a time where they are
    plain (see `core`).

    What a node has taken from its client passes every link, whatever `limits.packet` says at the
    other nodes: a message that one of them refused would be lost for its clients, or be sent again
    and again. `max_frame` is for those at the other end who have not said yet who they are.
    """

    def __init__(self, max_frame: int = LARGEST) -> None:
        self.packet_reader = LinkReader(max_frame)

    def trust(self) -> None:
        """The other end is a node."""
        self.packet_reader.trust(LARGEST)

    def read(self, data: Octets) -> Iterator[LinkFrame | Publish | Run]:
        """Every whole frame; raises `LinkError`."""
        self.packet_reader.feed(data)
        return self.frames()

    def frames(self) -> Iterator[LinkFrame | Publish | Run]:
        """Every whole frame of what is in the packet reader; raises `LinkError`."""
        packet_reader = self.packet_reader
        try:
            while (item := packet_reader.step()) is not None:
                yield item if isinstance(item, Run) else self._decode(*item)
            if packet_reader.fault is not None:
                raise packet_reader.fault
            first_byte = packet_reader.first_byte or _CONTROL
            if first_byte != _CONTROL and first_byte & 0xF0 != _PUBLISH:
                raise _foreign(first_byte)  # another protocol, most likely: its rest never comes
        except (ProtocolViolation, DecodeError) as error:
            raise LinkError(f"not a link frame: {error}") from error

    def _decode(self, first_byte: int, body: bytes) -> LinkFrame | Publish:
        if first_byte == _CONTROL:
            frame = LinkFrame()
            frame.ParseFromString(body)
            if self.packet_reader.expected:
                raise LinkError("a batch has as many packets as its header says")
            if frame.HasField("batch"):
                self.packet_reader.expected = frame.batch.count
            return frame
        if first_byte & 0xF0 == _PUBLISH:
            packet = decode(first_byte & ~0x08, body)  # DUP means nothing here
            assert isinstance(packet, Publish)
            return packet
        raise _foreign(first_byte)


def _foreign(first_byte: int) -> LinkError:
    return LinkError(f"a link takes packet types 0 and 3, not {first_byte >> 4}")


def packets_of(items: Iterable[Message | Run]) -> list[Octets]:
    """The raw PUBLISH packets of messages; those of a run are one piece."""
    return [item.raw if isinstance(item, Run) else item.link_packet for item in items]
