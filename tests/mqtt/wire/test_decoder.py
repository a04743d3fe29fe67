"""Bytes to packets and back: the table of packets, and properties of any packet."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mqtt.wire.packet_table import ILLEGAL, LEGAL, Illegal, Legal
from txbroker.model.errors import CallerError
from txbroker.mqtt.wire.decoder import Framer, decode
from txbroker.mqtt.wire.encoder import encode, encode_publish, pack_packet_id, publish_head
from txbroker.mqtt.wire.packets import (
    Connect,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Unsubscribe,
    Will,
)
from txbroker.mqtt.wire.return_codes import ProtocolViolation

LIMIT = 1024


def frames_of(*reads: bytes, limit: int = LIMIT) -> list[tuple[int, bytes]]:
    framer = Framer(limit)
    found = []
    for data in reads:
        framer.feed(data)
        found += framer.frames()
    return found


def decode_all(*reads: bytes, limit: int = LIMIT) -> list[Packet]:
    return [decode(*frame) for frame in frames_of(*reads, limit=limit)]


# -- the table


@pytest.mark.parametrize("row", LEGAL, ids=lambda row: row.name)
def test_legal_packet_is_decoded(row: Legal) -> None:
    assert [row.packet] == decode_all(row.data)


@pytest.mark.parametrize("row", LEGAL, ids=lambda row: row.name)
def test_legal_packet_is_encoded(row: Legal) -> None:
    assert row.data == encode(row.packet)


@pytest.mark.parametrize("row", LEGAL, ids=lambda row: row.name)
def test_body_cut_short_is_refused_or_another_packet(row: Legal) -> None:
    """A field that ends early is a violation, never an IndexError; a payload may end anywhere."""
    _, body = frames_of(row.data)[0]
    for end in range(len(body)):
        try:
            shorter = decode(row.data[0], body[:end])
        except ProtocolViolation:
            continue

        assert shorter != row.packet


@pytest.mark.parametrize("row", ILLEGAL, ids=lambda row: row.name)
def test_illegal_packet_is_refused_by_its_rule(row: Illegal) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        decode_all(row.data)

    assert (row.rule, row.connack) == (caught.value.rule, caught.value.connack)
    assert caught.value.reason.endswith(".")


# -- framing


@pytest.mark.parametrize("size", range(1, 8))
def test_reads_of_any_size_give_the_same_packets(size: int) -> None:
    data = b"".join(row.data for row in LEGAL)
    reads = [data[start : start + size] for start in range(0, len(data), size)]

    assert [row.packet for row in LEGAL] == decode_all(*reads)


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (b"\x30\x7f", 127),
        (b"\x30\x80\x01", 128),
        (b"\x30\xff\x7f", 16_383),
        (b"\x30\x80\x80\x01", 16_384),
        (b"\x30\xff\xff\x7f", 2_097_151),
        (b"\x30\x80\x80\x80\x01", 2_097_152),
    ],
)
def test_remaining_length_takes_one_to_four_bytes(header: bytes, size: int) -> None:
    packet = Publish("t", bytes(size - 3))

    assert header == encode(packet)[: len(header)]
    assert [packet] == decode_all(encode(packet), limit=1 << 22)


def test_remaining_length_of_five_bytes_is_refused_at_the_fourth() -> None:
    framer = Framer(1 << 30)
    framer.feed(b"\x30\xff\xff\xff")

    assert list(framer.frames()) == []

    framer.feed(b"\xff")
    with pytest.raises(ProtocolViolation, match=r"more than four bytes.*section 2\.2\.3"):
        list(framer.frames())


def test_padded_remaining_length_is_taken() -> None:
    """MQTT 3.1.1 does not ask for the shortest form; MQTT 5.0 does, and its reader is told."""
    reads = [bytes((byte,)) for byte in b"\xc0\x80\x80\x00\xc0\x80\x00\xc0\x00"]

    assert frames_of(*reads) == [(0xC0, b"")] * 3

    framer = Framer(1 << 30)
    framer.feed(b"".join(reads) + encode(Publish("t", bytes(300))))
    assert [framer.is_padded for _ in framer.frames()] == [True, True, False, False]


def test_packet_over_the_limit_is_refused_before_its_body_comes() -> None:
    assert len(frames_of(b"\x30\x0e" + bytes(14), limit=16)) == 1
    with pytest.raises(ProtocolViolation) as caught:
        frames_of(b"\x30\x0f", limit=16)

    assert caught.value.rule == "limits.packet"
    assert caught.value.reason_code == 0x95


def test_frames_before_a_fault_are_given() -> None:
    framer = Framer(16)
    framer.feed(b"\xc0\x00\xc0\x00\x30\xff\xff\xff\xff")
    frames = framer.frames()

    assert [next(frames), next(frames)] == [(0xC0, b""), (0xC0, b"")]
    with pytest.raises(ProtocolViolation):
        next(frames)


def test_rest_is_given_to_the_next_call_after_a_stop_halfway() -> None:
    framer = Framer(LIMIT)
    framer.feed(b"\x30\x01a\x30\x01b\x30")
    first = next(framer.frames())
    framer.feed(b"\x01c\x30")

    assert first == (0x30, b"a")
    assert list(framer.frames()) == [(0x30, b"b"), (0x30, b"c")]


def test_bytes_fed_while_iterating_are_framed() -> None:
    framer = Framer(LIMIT)
    framer.feed(b"\x30\x01a\x30\x01b")
    found = []
    for _, body in framer.frames():
        found.append(body)
        if len(found) < 5:
            framer.feed(b"\x30\x01c")

    assert found == [b"a", b"b", b"c", b"c", b"c", b"c"]


def test_pending_counts_bytes_without_a_frame() -> None:
    framer = Framer(LIMIT)
    framer.feed(b"\x30\x01a\x30\x04b")
    list(framer.frames())
    framer.feed(b"c")

    assert framer.pending == 4


def test_large_packet_in_tiny_reads_takes_linear_time() -> None:
    """16 MiB in reads of 1,000 bytes: minutes if each read copied what came before."""
    data = encode(Publish("t", bytes(16 << 20)))
    reads = (data[start : start + 1000] for start in range(0, len(data), 1000))
    ((_, body),) = frames_of(*reads, limit=1 << 25)

    assert data[-len(body) :] == body


# -- publishing fast


def test_publish_head_packet_id_and_payload_make_the_packet() -> None:
    head = publish_head("home/x", 3, 1, True, True)
    expected = encode_publish("home/x", b"abc", 1, True, True, 515)

    assert expected == head + pack_packet_id(515) + b"abc"


def test_fields_that_cannot_be_said_are_the_callers_fault() -> None:
    with pytest.raises(CallerError):
        encode(Publish("x" * 65_536, b""))
    with pytest.raises(CallerError):
        publish_head("x", 1 << 28, 0)


def test_longest_topic_passes() -> None:
    packet = Publish("x" * 65_535, b"y")

    assert [packet] == decode_all(encode(packet), limit=1 << 20)


# -- properties

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
names = st.text(
    st.characters(exclude_characters="\0+#", exclude_categories=["Cs"]), min_size=1, max_size=20
)
levels = st.sampled_from(["", "a", "ü", "+"])
filters = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool) | st.just("a/#")
packet_ids = st.integers(1, 65_535)
qualities = st.integers(0, 2)
wills = st.builds(Will, topic=names, payload=st.binary(), qos=qualities, retain=st.booleans())


@st.composite
def connects(draw: st.DrawFn) -> Connect:
    username = draw(st.none() | texts)
    return Connect(
        client_id=draw(texts),
        clean_session=draw(st.booleans()),
        keep_alive=draw(st.integers(0, 65_535)),
        will=draw(st.none() | wills),
        username=username,
        password=None if username is None else draw(st.none() | st.binary()),
    )


packets = st.one_of(
    connects(),
    st.builds(Publish, names, st.binary(), st.just(0), st.booleans()),
    st.builds(
        Publish, names, st.binary(), st.integers(1, 2), st.booleans(), st.booleans(), packet_ids
    ),
    st.builds(Puback, packet_ids),
    st.builds(
        Subscribe,
        packet_ids,
        st.lists(st.tuples(filters, qualities), min_size=1, max_size=4).map(tuple),
    ),
    st.builds(Suback, packet_ids, st.lists(st.sampled_from([0, 1, 2, 128]), min_size=1).map(tuple)),
    st.builds(Unsubscribe, packet_ids, st.lists(filters, min_size=1, max_size=4).map(tuple)),
)


@settings(max_examples=150, deadline=None)
@given(packets)
def test_decode_undoes_encode(packet: Packet) -> None:
    assert [packet] == decode_all(encode(packet), limit=1 << 20)


@settings(max_examples=100, deadline=None)
@given(st.lists(packets, max_size=5), st.lists(st.integers(0, 300), max_size=8))
def test_any_split_gives_the_same_frames(stream: list[Packet], cuts: list[int]) -> None:
    data = b"".join(map(encode, stream))
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reads = [data[start:end] for start, end in zip(bounds, bounds[1:], strict=False)]

    assert frames_of(data, limit=1 << 20) == frames_of(*reads, limit=1 << 20)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 255), st.binary(max_size=40))
def test_random_body_raises_nothing_but_violations(first_byte: int, body: bytes) -> None:
    try:
        packet = decode(first_byte, body)
    except ProtocolViolation:
        return

    assert (first_byte, body) == frames_of(encode(packet))[0]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(LEGAL), st.data())
def test_damaged_packet_raises_nothing_but_violations(row: Legal, data: st.DataObject) -> None:
    damaged = bytearray(row.data)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(damaged) - 1))
        damaged[position] = data.draw(st.integers(0, 255))
    try:
        decode_all(bytes(damaged))
    except ProtocolViolation as violation:
        assert violation.rule
