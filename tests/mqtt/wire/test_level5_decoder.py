"""MQTT 5.0: bytes to packets and back: the table of packets, and properties of any packet."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.level5_statements import LEVEL5_STATEMENTS, level5_statement
from tests.mqtt.wire.level5_table import ILLEGAL, LEGAL, Illegal
from tests.mqtt.wire.packet_table import Legal
from tests.mqtt.wire.test_decoder import filters, frames_of, names, packet_ids, qualities, texts
from txbroker.mqtt.wire.decoder import (
    decode,
    request_head,
    subscribed_filters,
    unsubscribed_filters,
)
from txbroker.mqtt.wire.encoder import encode, encode_publish, pack_packet_id, publish_head
from txbroker.mqtt.wire.packet_kind import PacketKind
from txbroker.mqtt.wire.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from txbroker.mqtt.wire.properties import (
    TABLE,
    Properties,
    decode_properties,
    encode_properties,
    property_list,
)
from txbroker.mqtt.wire.reason_codes import LEGAL_CODES
from txbroker.mqtt.wire.return_codes import ProtocolViolation
from txbroker.mqtt.wire.subscription_options import (
    AS_PUBLISHED,
    DELIVERY_BITS,
    NO_LOCAL,
    QOS_BITS,
    check_options,
    retain_handling,
)

LIMIT = 1 << 20


def decode_all(data: bytes) -> list[Packet]:
    return [decode(*frame, level=5) for frame in frames_of(data, limit=LIMIT)]


# -- the table


@level5_statement("MQTT-1.5.4-3", "MQTT-3.1.3-1")
@pytest.mark.parametrize("row", LEGAL, ids=lambda row: row.name)
def test_legal_packet_is_decoded(row: Legal) -> None:
    assert [row.packet] == decode_all(row.data)


@level5_statement("MQTT-2.1.3-1", "MQTT-2.2.1-2", "MQTT-2.2.2-1", "MQTT-3.2.2-1")
@pytest.mark.parametrize("row", LEGAL, ids=lambda row: row.name)
def test_legal_packet_is_encoded(row: Legal) -> None:
    """Its own properties come first, in the order of identifiers."""
    assert row.data == encode(row.packet, level=5)


@pytest.mark.parametrize("row", LEGAL, ids=lambda row: row.name)
def test_body_cut_short_is_refused_or_another_packet(row: Legal) -> None:
    """A field that ends early is a violation, never an IndexError; a payload may end anywhere."""
    _, body = frames_of(row.data)[0]
    for end in range(len(body)):
        try:
            shorter = decode(row.data[0], body[:end], level=5)
        except ProtocolViolation:
            continue

        assert shorter != row.packet


@level5_statement(
    "MQTT-1.5.4-1",
    "MQTT-1.5.4-2",
    "MQTT-1.5.5-1",
    "MQTT-2.1.3-1",
    "MQTT-2.2.1-3",
    "MQTT-2.2.2-1",
    "MQTT-3.1.2-3",
    "MQTT-3.1.2-9",
    "MQTT-3.1.2-11",
    "MQTT-3.1.2-12",
    "MQTT-3.1.2-13",
    "MQTT-3.1.2-16",
    "MQTT-3.1.2-17",
    "MQTT-3.1.2-18",
    "MQTT-3.1.2-19",
    "MQTT-3.1.3-3",
    "MQTT-3.1.3-4",
    "MQTT-3.1.3-11",
    "MQTT-3.1.3-12",
    "MQTT-3.3.1-2",
    "MQTT-3.3.1-4",
    "MQTT-3.3.2-1",
    "MQTT-3.3.2-2",
    "MQTT-3.3.2-8",
    "MQTT-3.3.2-14",
    "MQTT-3.4.2-1",
    "MQTT-3.5.2-1",
    "MQTT-3.6.1-1",
    "MQTT-3.6.2-1",
    "MQTT-3.7.2-1",
    "MQTT-3.8.1-1",
    "MQTT-3.8.3-1",
    "MQTT-3.8.3-2",
    "MQTT-3.8.3-4",
    "MQTT-3.8.3-5",
    "MQTT-3.10.1-1",
    "MQTT-3.10.3-1",
    "MQTT-3.10.3-2",
    "MQTT-3.14.1-1",
    "MQTT-3.14.2-1",
    "MQTT-3.15.1-1",
    "MQTT-3.15.2-1",
    "MQTT-4.7.0-1",
    "MQTT-4.7.1-1",
    "MQTT-4.7.1-2",
    "MQTT-4.7.3-1",
    "MQTT-4.7.3-2",
    "MQTT-4.8.2-1",
    "MQTT-4.8.2-2",
)
@pytest.mark.parametrize("row", ILLEGAL, ids=lambda row: row.name)
def test_illegal_packet_is_refused_by_its_rule(row: Illegal) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        decode_all(row.data)

    assert (row.rule, row.code) == (caught.value.rule, caught.value.reason_code)
    assert caught.value.reason.endswith(".")


def test_refusal_is_marked_with_what_the_rows_show() -> None:
    """As far as a client can break it: docs/conformance.md is made from the marks."""
    (mark,) = test_illegal_packet_is_refused_by_its_rule.pytestmark[1:]  # type: ignore[attr-defined]
    shown = {name for row in ILLEGAL for name in (row.rule, row.shows)}
    expected = {entry.id for entry in LEVEL5_STATEMENTS.values() if entry.who == "both"} & shown

    assert expected == set(mark.args)


def test_connect_tells_its_level_itself() -> None:
    """The reader of a connection's first packet does not know the level."""
    (row,) = [row for row in LEGAL if row.name == "connect, everything"]
    ((first_byte, body),) = frames_of(row.data)

    assert row.packet == decode(first_byte, body)
    assert row.packet == decode(first_byte, body, level=5)


def test_type_15_is_reserved_below_level_5() -> None:
    with pytest.raises(ProtocolViolation, match=r"reserved.*section 2\.2\.1"):
        decode(0xF0, b"")


# -- parts of packets


def test_level_5_head_list_and_payload_make_the_packet() -> None:
    raw = b"\x02\0\0\0\x05"
    listed = property_list(raw)
    head = publish_head("home/x", len(listed) + 3, 1, True, True)
    expected = encode_publish("home/x", b"abc", 1, True, True, 515, raw)

    assert expected == head + pack_packet_id(515) + listed + b"abc"


@pytest.mark.parametrize("level", [4, 5])
def test_filters_are_read_in_slices(level: int) -> None:
    """A large SUBSCRIBE or UNSUBSCRIBE is not decoded at once."""
    pairs = tuple((f"f/{number}", number % 3) for number in range(7))
    names = tuple(name for name, _ in pairs)
    properties = Properties(user_properties=(("k", "v"),)) if level == 5 else Properties()
    subscribe = encode(Subscribe(9, pairs, properties), level)[2:]
    unsubscribe = encode(Unsubscribe(9, names, properties), level)[2:]
    read: list[object] = []
    packet_id, found, at = request_head(subscribe, PacketKind.SUBSCRIBE, level)
    while at < len(subscribe):
        some, at = subscribed_filters(subscribe, at, 3, level)
        read.append(tuple(some))
    other_id, other, at = request_head(unsubscribe, PacketKind.UNSUBSCRIBE, level)
    while at < len(unsubscribe):
        few, at = unsubscribed_filters(unsubscribe, at, 5, level)
        read.append(tuple(few))

    assert [pairs[:3], pairs[3:6], pairs[6:], names[:5], names[5:]] == read
    assert (9, properties, 9, properties) == (packet_id, found, other_id, other)


REQUESTS = [row for row in ILLEGAL if row.data[0] in (0x82, 0xA2)]


@pytest.mark.parametrize("row", REQUESTS, ids=lambda row: row.name)
def test_slices_are_refused_by_the_same_rule(row: Illegal) -> None:
    kind = PacketKind(row.data[0] >> 4)
    body = row.data[2:]
    read = subscribed_filters if kind is PacketKind.SUBSCRIBE else unsubscribed_filters
    with pytest.raises(ProtocolViolation) as caught:
        read(body, request_head(body, kind, 5)[2], 10, 5)

    assert (row.rule, row.code) == (caught.value.rule, caught.value.reason_code)


@pytest.mark.parametrize("byte", [0x00, 0x01, 0x06, 0x09, 0x12, 0x2E])
def test_options_are_their_byte(byte: int) -> None:
    check_options(byte)

    assert (byte & 3, byte >> 2 & 1, byte >> 3 & 1, byte >> 4) == (
        byte & QOS_BITS,
        byte & NO_LOCAL != 0,
        byte & AS_PUBLISHED != 0,
        retain_handling(byte),
    )


# -- any packet

numbers = {
    "payload_format": st.integers(0, 1),
    "maximum_qos": st.integers(0, 1),
    "message_expiry": st.integers(0, 2**32 - 1),
    "session_expiry": st.integers(0, 2**32 - 1),
    "will_delay": st.integers(0, 2**32 - 1),
    "maximum_packet_size": st.integers(1, 2**32 - 1),
    "server_keep_alive": st.integers(0, 65_535),
    "topic_alias_maximum": st.integers(0, 65_535),
    "receive_maximum": st.integers(1, 65_535),
    "topic_alias": st.integers(1, 65_535),
}
binaries = ("correlation_data", "authentication_data")
flags = ("request_problem_information", "request_response_information")
identifiers = st.integers(1, 268_435_455)


@st.composite
def properties_of(draw: st.DrawFn, kind: PacketKind) -> Properties:
    """Any properties that a packet may have, all of them included."""
    values: dict[str, object] = {}
    for row in TABLE:
        name = row.name
        if kind not in row.sections or not draw(st.booleans()):
            continue
        if name in numbers:
            values[name] = draw(numbers[name])
        elif name in binaries:
            values[name] = draw(st.binary(max_size=20))
        elif name in flags or name.endswith("available"):
            values[name] = draw(st.booleans())
        elif name == "user_properties":
            values[name] = tuple(draw(st.lists(st.tuples(texts, texts), max_size=3)))
        elif name == "subscription_identifiers":
            most = 3 if kind is PacketKind.PUBLISH else 1
            values[name] = tuple(draw(st.lists(identifiers, max_size=most)))
        elif name == "response_topic":
            values[name] = draw(names)
        else:
            values[name] = draw(texts)
    if values.get("authentication_method") is None:
        values.pop("authentication_data", None)
    return Properties(**values)  # type: ignore[arg-type]


@st.composite
def wills(draw: st.DrawFn) -> Will:
    properties = draw(properties_of(PacketKind.WILL))
    delay, properties = properties.will_delay, without(properties, "will_delay")
    return Will(
        topic=draw(names),
        payload=draw(st.binary(max_size=20)),
        qos=draw(qualities),
        retain=draw(st.booleans()),
        properties=encode_properties(properties),
        delay=delay or 0,
    )


@st.composite
def connects(draw: st.DrawFn) -> Connect:
    return Connect(
        client_id=draw(texts),
        clean_session=draw(st.booleans()),
        keep_alive=draw(st.integers(0, 65_535)),
        will=draw(st.none() | wills()),
        username=draw(st.none() | texts),
        password=draw(st.none() | st.binary(max_size=20)),
        protocol_level=5,
        properties=draw(properties_of(PacketKind.CONNECT)),
    )


@st.composite
def publishes(draw: st.DrawFn) -> Publish:
    properties = draw(properties_of(PacketKind.PUBLISH))
    alias, identifiers = properties.topic_alias or 0, properties.subscription_identifiers
    qos = draw(qualities)
    carried = without(properties, "topic_alias", "subscription_identifiers")
    return Publish(
        draw(names | st.just("")) if alias else draw(names),
        draw(st.binary(max_size=200)),
        qos,
        draw(st.booleans()),
        bool(qos) and draw(st.booleans()),
        draw(packet_ids) if qos else None,
        encode_properties(carried),
        alias,
        identifiers,
    )


def without(properties: Properties, *names: str) -> Properties:
    absent = {name: getattr(Properties(), name) for name in names}
    return attrs.evolve(properties, **absent)


def codes(kind: PacketKind) -> st.SearchStrategy[int]:
    return st.sampled_from(sorted(LEGAL_CODES[kind][0]))


def acks(packet: type, kind: PacketKind) -> st.SearchStrategy[Packet]:
    return st.builds(packet, packet_ids, codes(kind), properties_of(kind))


def answers(packet: type, kind: PacketKind) -> st.SearchStrategy[Packet]:
    several = st.lists(codes(kind), min_size=1, max_size=4).map(tuple)
    return st.builds(packet, packet_ids, several, properties_of(kind))


@st.composite
def auths(draw: st.DrawFn) -> Auth:
    properties = draw(properties_of(PacketKind.AUTH))
    method = properties.authentication_method or "m"
    return Auth(
        draw(codes(PacketKind.AUTH)), attrs.evolve(properties, authentication_method=method)
    )


options = st.builds(
    lambda qos, delivery, handling: qos | delivery | handling << 4,
    qualities,
    st.sampled_from([0, NO_LOCAL, AS_PUBLISHED, DELIVERY_BITS]),
    st.integers(0, 2),
)
some_filters = st.lists(filters, min_size=1, max_size=4)

packets = st.one_of(
    connects(),
    st.builds(Connack, st.booleans(), st.just(0), properties_of(PacketKind.CONNACK)),
    st.builds(
        Connack, st.just(False), codes(PacketKind.CONNACK), properties_of(PacketKind.CONNACK)
    ),
    publishes(),
    acks(Puback, PacketKind.PUBACK),
    acks(Pubrec, PacketKind.PUBREC),
    acks(Pubrel, PacketKind.PUBREL),
    acks(Pubcomp, PacketKind.PUBCOMP),
    st.builds(
        Subscribe,
        packet_ids,
        st.lists(st.tuples(filters, options), min_size=1, max_size=4).map(tuple),
        properties_of(PacketKind.SUBSCRIBE),
    ),
    answers(Suback, PacketKind.SUBACK),
    st.builds(
        Unsubscribe, packet_ids, some_filters.map(tuple), properties_of(PacketKind.UNSUBSCRIBE)
    ),
    answers(Unsuback, PacketKind.UNSUBACK),
    st.builds(Disconnect, codes(PacketKind.DISCONNECT), properties_of(PacketKind.DISCONNECT)),
    auths(),
)


@settings(max_examples=300, deadline=None)
@given(packets)
def test_decode_undoes_encode(packet: Packet) -> None:
    assert [packet] == decode_all(encode(packet, level=5))


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(PacketKind).flatmap(lambda kind: st.tuples(st.just(kind), properties_of(kind)))
)
def test_decoding_of_properties_undoes_encoding(pair: tuple[PacketKind, Properties]) -> None:
    kind, properties = pair

    assert properties == decode_properties(encode_properties(properties), kind)


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 255), st.binary(max_size=60))
def test_random_body_raises_nothing_but_violations(first_byte: int, body: bytes) -> None:
    try:
        packet = decode(first_byte, body, level=5)
    except ProtocolViolation:
        return

    assert packet == decode(*frames_of(encode(packet, level=5))[0], level=5)


@settings(max_examples=500, deadline=None)
@given(packets, st.data())
def test_damaged_packet_raises_nothing_but_violations(packet: Packet, data: st.DataObject) -> None:
    damaged = bytearray(encode(packet, level=5))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(damaged) - 1))
        damaged[position] = data.draw(st.integers(0, 255))
    try:
        decode_all(bytes(damaged))
    except ProtocolViolation as violation:
        assert violation.rule
        assert violation.reason_code >= 0x80
