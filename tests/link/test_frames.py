"""Link frames on the wire: types 0, 3 and 15, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.property_lists import user_property
from txbroker.link.frames import LINK_VERSION, FrameReader, LinkError, encode_frame, packets_of
from txbroker.mqtt.wire.encoder import encode
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Pingreq, Publish
from txbroker.v1 import link_pb2, types_pb2
from txbroker.v1.link_pb2 import LinkFrame

LIMIT = 1000

FRAMES = [
    LinkFrame(
        hello=link_pb2.Hello(version=LINK_VERSION, token=b"t", edge="e", filters=["#", "a/+"])
    ),
    LinkFrame(taken=link_pb2.Taken(stream=1, sequence=1 << 40)),
    LinkFrame(cut=types_pb2.Cut(apex="a/b", epoch=3, node="n", grpc="h:1")),
    LinkFrame(heartbeat=link_pb2.Heartbeat()),
    LinkFrame(sync=link_pb2.InterestSync(filters=["x" * 300])),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: frame.WhichOneof("kind"))
def test_control_frame_is_read_as_it_was_written(frame: LinkFrame) -> None:
    """Also the one whose length takes two bytes."""
    assert [frame] == list(FrameReader(LIMIT).read(encode_frame(frame)))


def test_message_is_read_with_the_publishers_flags() -> None:
    """RETAIN is the publisher's; packet id and DUP mean nothing (rule 24)."""
    messages = [Message("a", b"1", 2, True), Message("b", b"", 0)]

    assert list(FrameReader(LIMIT).read(b"".join(packets_of(messages)))) == [
        Publish("a", b"1", 2, True, False, 1),
        Publish("b", b"", 0, False, False, None),
    ]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_come_with_a_message(qos: int) -> None:
    """As they were; without any, the packet is that of a node which knows of none."""
    properties = user_property("name", "value") * 2 + b"\x01\x01"
    messages = [
        Message("a", b"1", qos, True, properties=properties),
        Message("a", b"2", qos, True),
    ]

    (packet, plain) = packets_of(messages)
    assert (0xF1 | qos << 1, 0x31 | qos << 1) == (packet[0], plain[0])
    found = list(FrameReader(LIMIT).read(bytes(packet) + bytes(plain)))
    assert [(b"1", properties), (b"2", b"")] == [(one.payload, one.properties) for one in found]


def test_dup_is_ignored() -> None:
    """Even where it is illegal between a client and a server."""
    data = bytearray(Message("a", b"1", 0).link_packet)
    data[0] |= 0x08

    assert [Publish("a", b"1")] == list(FrameReader(LIMIT).read(bytes(data)))


@pytest.mark.parametrize(
    "data",
    [
        encode(Pingreq()),
        b"\xf0\x00",
        b"\xf1\x03\x00\x01a",  # no property list
        b"\xf1\x07\x00\x01a\x03\x23\x00\x01",  # a topic alias
        b"\xf1\x07\x00\x01a\x06\x23\x00\x01",  # more properties than bytes
        b"\x01\x00",  # type 0 has no flags
        b"\x00\x02\xff\xff",  # not a protobuf message
        b"\x30\x01\x00",  # a PUBLISH that ends in its topic
        b"\x36\x05\x00\x01a\x00\x01",  # QoS 3
        b"\x30\x04\x00\x02\xc3\x28",  # not UTF-8
        b"\x00\xff\xff\xff\xff\x01",  # five bytes of length
        b"\x00\xff\xff\x7f",  # larger than the limit
    ],
)
def test_what_is_no_link_frame_is_refused(data: bytes) -> None:
    """The link is closed, the node goes on."""
    with pytest.raises(LinkError):
        list(FrameReader(LIMIT).read(data))


def test_who_is_trusted_may_send_what_mqtt_can_spell() -> None:
    """What another node has taken from a client is not refused here."""
    reader = FrameReader(LIMIT)
    reader.trust()
    packet = Message("a", b"x" * (2 * LIMIT), 1).link_packet

    assert 2 * LIMIT == sum(len(item.payload) for item in reader.read(packet))


def test_frames_before_a_fault_are_read() -> None:
    """The fault is raised in its turn."""
    read = FrameReader(LIMIT).read(encode_frame(FRAMES[1]) + b"\xf0\x00")

    assert FRAMES[1] == next(read)
    with pytest.raises(LinkError):
        next(read)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_frames_or_a_link_error(one: bytes, two: bytes) -> None:
    """Nothing else can come out."""
    reader = FrameReader(LIMIT)
    try:
        for data in (one, two):
            for item in reader.read(data):
                assert isinstance(item, LinkFrame | Publish)
    except LinkError:
        pass


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1))
def test_any_split_gives_the_same_frames(sizes: list[int]) -> None:
    """Bytes come as the network has them."""
    message = Message("a", b"x" * 200, 1)
    data = b"".join(map(encode_frame, FRAMES)) + message.link_packet
    reader = FrameReader(LIMIT)
    found = []
    while data:
        size = sizes[len(found) % len(sizes)]
        found.extend(reader.read(data[:size]))
        data = data[size:]

    assert [*FRAMES, Publish("a", b"x" * 200, 1, False, False, 1)] == found
