"""
Link frames on the wire: MQTT framing, type 0 for control, types 3 and 15 for messages in their
stored form (protocol rule 24).

A link accepts no other type. A broken rule raises `LinkError`: the link is closed and counted, and
the node continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from google.protobuf.message import DecodeError

from txbroker.core import LinkReader, Run
from txbroker.link.held_frames import HeldFrames
from txbroker.model.errors import PeerError
from txbroker.model.publish_run import Octets
from txbroker.mqtt.wire.decoder import decode
from txbroker.mqtt.wire.encoder import LARGEST_PACKET
from txbroker.mqtt.wire.framing import encode_length
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Publish
from txbroker.mqtt.wire.property_list import cut_list, is_stored_publish
from txbroker.mqtt.wire.return_codes import ProtocolViolation
from txbroker.v1.link_pb2 import Batch, Heartbeat, LinkFrame

LINK_VERSION = 2
"""Version of the format; a newer or older one is refused in one line (`check_version`)."""

_CONTROL = 0x00

_SHORT = tuple(map(encode_length, range(1024)))
"""The encoded lengths of short frames: most frames are short."""


class Write(Protocol):
    """Sends pieces of bytes to the other end, in order."""

    def __call__(self, *pieces: Octets) -> None: ...


class LinkError(PeerError):
    """The other end of a link broke a rule of the link's format."""


def link_error(error: PeerError) -> LinkError:
    """Convert a broken rule between nodes to a broken rule of the link."""
    return error if isinstance(error, LinkError) else LinkError(str(error))


def check_version(version: int) -> None:
    """Refuse a link of another format; raises `LinkError`. `OpenLink` has reported the mismatch."""
    if version != LINK_VERSION:
        raise LinkError(f"the other end has link format {version}, this node {LINK_VERSION}")


def encode_frame(frame: LinkFrame) -> bytes:
    """Return a control frame's bytes on the wire."""
    body = frame.SerializeToString()
    size = len(body)
    return b"\x00" + (_SHORT[size] if size < len(_SHORT) else encode_length(size)) + body


class FrameReader:
    """
    Reads bytes, and yields control frames and messages; plain messages of a batch come as runs (see
    `core`).

    A message that a node has accepted from its client passes every link, whatever `limits.packet`
    is at other nodes. Otherwise its clients would lose a refused message, or the link would resend
    the message for ever. `max_frame` bounds the frames of an unidentified peer.
    """

    def __init__(self, max_frame: int = LARGEST_PACKET) -> None:
        self.packet_reader = LinkReader(max_frame)
        self.held = HeldFrames()

    def trust(self) -> None:
        """Accept the largest frames, as the other end is an identified node."""
        self.packet_reader.trust(LARGEST_PACKET)

    def hear(self, now: float) -> None:
        """Note that bytes came; after a silence of the link, hold the frames that come next."""
        if self.packet_reader.is_silent(now):
            self.held.hold(now)
            self.packet_reader.forget()  # nothing may be forwarded ahead of what is held
        self.packet_reader.heard_at = now

    def read(self, data: Octets) -> Iterator[LinkFrame | Publish | Run]:
        """Yield every complete frame; raises `LinkError`."""
        self.packet_reader.feed(data)
        return self.frames()

    def frames(self) -> Iterator[LinkFrame | Publish | Run]:
        """Yield every complete frame in the packet reader; raises `LinkError`."""
        packet_reader = self.packet_reader
        try:
            while (item := packet_reader.step()) is not None:
                frame = item if isinstance(item, Run) else self._decode(*item)
                if isinstance(frame, LinkFrame) and frame.HasField("heartbeat"):
                    yield from self._release(frame.heartbeat)
                    yield frame
                elif self.held.since is not None:
                    self.held.add(frame)
                else:
                    yield frame
            if packet_reader.fault is not None:
                raise packet_reader.fault
            first_byte = packet_reader.first_byte or _CONTROL
            if first_byte != _CONTROL and not is_stored_publish(first_byte):
                raise _foreign(first_byte)  # most likely another protocol, whose rest never comes
        except (ProtocolViolation, DecodeError) as error:
            raise LinkError(f"not a link frame: {error}") from error

    def _release(self, heartbeat: Heartbeat) -> Iterator[LinkFrame | Publish | Run]:
        if self.held.since is not None:
            self.packet_reader.forget()  # the last header is not that of the held frames
        yield from self.held.on_heartbeat(heartbeat.at, self.packet_reader.heard_at)

    def _decode(self, first_byte: int, body: bytes) -> LinkFrame | Publish:
        if first_byte == _CONTROL:
            frame = LinkFrame()
            frame.ParseFromString(body)
            if self.packet_reader.expected:
                raise LinkError("a batch has as many packets as its header says")
            if frame.HasField("batch"):
                self.packet_reader.expected = frame.batch.count
            return frame
        if is_stored_publish(first_byte):
            first_byte, body, properties = cut_list(first_byte, body)
            packet = decode(first_byte & ~0x08, body)  # DUP has no meaning on a link
            assert isinstance(packet, Publish)
            packet.properties = properties
            return packet
        raise _foreign(first_byte)


def _foreign(first_byte: int) -> LinkError:
    return LinkError(f"a link takes packet types 0, 3 and 15, not {first_byte >> 4}")


def encode_batch(batch: Batch, items: Iterable[Message | Run]) -> list[Octets]:
    """Return the bytes of a batch: its header, and the packets of its messages."""
    return [encode_frame(LinkFrame(batch=batch)), *packets_of(items)]


def packets_of(items: Iterable[Message | Run]) -> list[Octets]:
    """Return the stored PUBLISH packets of messages; the packets of a run are one piece."""
    return [item.raw if isinstance(item, Run) else item.link_packet for item in items]
