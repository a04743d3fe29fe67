"""
Each property in each packet: where it may stand, how often, and with which values.

The table of this file is copied from the standard by hand, apart from the one of the program.
"""

from __future__ import annotations

import itertools

import pytest

from tests.conformance.level5_statements import level5_statement
from txbroker.mqtt.wire.fields import FieldReader
from txbroker.mqtt.wire.packet_kind import PacketKind
from txbroker.mqtt.wire.properties import (
    NO_PROPERTIES,
    Properties,
    decode_properties,
    encode_properties,
    encode_property_list,
    property_list,
    split_properties,
)
from txbroker.mqtt.wire.property_list import MOST_PROPERTIES, are_many
from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.mqtt.wire.return_codes import ProtocolViolation

WILL = "WILL"
ACKS = "PUBACK PUBREC PUBREL PUBCOMP"
REASON = f"CONNACK {ACKS} SUBACK UNSUBACK DISCONNECT AUTH"
ALL = f"WILL CONNECT PUBLISH SUBSCRIBE UNSUBSCRIBE {REASON}"

# Identifier, name, packets, bytes of a value, the value.
ROWS: list[tuple[int, str, str, bytes, object]] = [
    (0x01, "payload_format", "PUBLISH WILL", b"\1", 1),
    (0x02, "message_expiry", "PUBLISH WILL", b"\0\1\0\2", 65_538),
    (0x03, "content_type", "PUBLISH WILL", b"\0\1t", "t"),
    (0x08, "response_topic", "PUBLISH WILL", b"\0\3a/b", "a/b"),
    (0x09, "correlation_data", "PUBLISH WILL", b"\0\2\xff\0", b"\xff\0"),
    (0x0B, "subscription_identifiers", "PUBLISH SUBSCRIBE", b"\xff\xff\xff\x7f", (268_435_455,)),
    (0x11, "session_expiry", "CONNECT CONNACK DISCONNECT", b"\xff" * 4, 0xFFFFFFFF),
    (0x12, "assigned_client_id", "CONNACK", b"\0\1i", "i"),
    (0x13, "server_keep_alive", "CONNACK", b"\1\0", 256),
    (0x15, "authentication_method", "CONNECT CONNACK AUTH", b"\0\1m", "m"),
    (0x16, "authentication_data", "CONNECT CONNACK AUTH", b"\0\1\x80", b"\x80"),
    (0x17, "request_problem_information", "CONNECT", b"\0", False),
    (0x18, "will_delay", "WILL", b"\0\0\0\5", 5),
    (0x19, "request_response_information", "CONNECT", b"\1", True),
    (0x1A, "response_information", "CONNACK", b"\0\1r", "r"),
    (0x1C, "server_reference", "CONNACK DISCONNECT", b"\0\1s", "s"),
    (0x1F, "reason_string", REASON, b"\0\2\xc3\xbc", "ü"),
    (0x21, "receive_maximum", "CONNECT CONNACK", b"\0\1", 1),
    (0x22, "topic_alias_maximum", "CONNECT CONNACK", b"\0\0", 0),
    (0x23, "topic_alias", "PUBLISH", b"\xff\xff", 65_535),
    (0x24, "maximum_qos", "CONNACK", b"\1", 1),
    (0x25, "retain_available", "CONNACK", b"\0", False),
    (0x26, "user_properties", ALL, b"\0\1k\0\0", (("k", ""),)),
    (0x27, "maximum_packet_size", "CONNECT CONNACK", b"\0\0\0\1", 1),
    (0x28, "wildcard_available", "CONNACK", b"\1", True),
    (0x29, "subscription_identifiers_available", "CONNACK", b"\1", True),
    (0x2A, "shared_available", "CONNACK", b"\0", False),
]

KINDS = [kind for kind in PacketKind if kind.name not in ("PINGREQ", "PINGRESP")]
METHOD = b"\x15\0\1m"  # authentication data must have one


def content(row: tuple[int, str, str, bytes, object]) -> bytes:
    raw = bytes((row[0],)) + row[3]
    return METHOD + raw if row[1] == "authentication_data" else raw


def violation_of(raw: bytes, kind: PacketKind) -> ProtocolViolation:
    with pytest.raises(ProtocolViolation) as caught:
        decode_properties(raw, kind)
    assert caught.value.reason[0].isupper()
    assert caught.value.reason.endswith(".")
    return caught.value


def cases(allowed: bool) -> list[object]:
    return [
        pytest.param(row, kind, id=f"{row[1]}-{kind.name}")
        for row, kind in itertools.product(ROWS, KINDS)
        if (kind.name in row[2].split()) == allowed
    ]


@pytest.mark.parametrize(("row", "kind"), cases(allowed=True))
def test_property_is_read_and_written_where_it_belongs(
    row: tuple[int, str, str, bytes, object], kind: PacketKind
) -> None:
    raw = content(row)
    properties = decode_properties(raw, kind)

    assert row[4] == getattr(properties, row[1])
    assert raw == encode_properties(properties)


@pytest.mark.parametrize(("row", "kind"), cases(allowed=False))
def test_property_is_malformed_elsewhere(
    row: tuple[int, str, str, bytes, object], kind: PacketKind
) -> None:
    violation = violation_of(bytes((row[0],)) + row[3], kind)

    assert ("section 2.2.2.2", 0x81) == (violation.rule, violation.reason_code)


@pytest.mark.parametrize(("row", "kind"), cases(allowed=True))
def test_property_comes_once(row: tuple[int, str, str, bytes, object], kind: PacketKind) -> None:
    """But for user properties, and the subscription identifiers of a PUBLISH."""
    raw = content(row) + bytes((row[0],)) + row[3]
    if row[1] == "user_properties" or (row[0], kind) == (0x0B, PacketKind.PUBLISH):
        assert 2 == len(getattr(decode_properties(raw, kind), row[1]))
    else:
        violation = violation_of(raw, kind)

        assert violation.rule.startswith("section 3.")
        assert 0x82 == violation.reason_code


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_property_cut_short_is_malformed(row: tuple[int, str, str, bytes, object]) -> None:
    kind = PacketKind[row[2].split()[0]]
    raw = content(row)
    for end in range(raw.rindex(row[0]) + 1, len(raw)):
        violation = violation_of(raw[:end], kind)

        assert ("section 2.1.4", 0x81) == (violation.rule, violation.reason_code)


@pytest.mark.parametrize("identifier", sorted(set(range(128)) - {row[0] for row in ROWS}))
def test_unknown_property_is_malformed(identifier: int) -> None:
    violation = violation_of(bytes((identifier, 0, 0)), PacketKind.CONNACK)

    assert ("section 2.2.2.2", 0x81) == (violation.rule, violation.reason_code)


@pytest.mark.parametrize("name", [row[1] for row in ROWS if row[3] in (b"\0", b"\1")])
def test_flag_is_0_or_1(name: str) -> None:
    (row,) = [row for row in ROWS if row[1] == name]
    kind = PacketKind[row[2].split()[0]]

    assert 0x82 == violation_of(bytes((row[0], 2)), kind).reason_code


@level5_statement(
    "MQTT-1.5.5-1",
    "MQTT-1.5.7-1",
    "MQTT-3.3.2-8",
    "MQTT-3.3.2-13",
    "MQTT-3.3.2-14",
    "MQTT-3.3.2-19",
)
@pytest.mark.parametrize(
    ("raw", "kind", "rule", "code"),
    [
        (b"\x0b\0", PacketKind.SUBSCRIBE, "section 3.8.2.1.2", 0x82),
        (b"\x0b\0", PacketKind.PUBLISH, "section 3.3.2.3.8", 0x82),
        (b"\x0b\x81\0", PacketKind.SUBSCRIBE, "MQTT-1.5.5-1", 0x81),
        (b"\x0b\xff\xff\xff\xff\1", PacketKind.PUBLISH, "section 1.5.5", 0x81),
        (b"\x81\0\1", PacketKind.PUBLISH, "MQTT-1.5.5-1", 0x81),
        (b"\x21\0\0", PacketKind.CONNECT, "section 3.1.2.11.3", 0x82),
        (b"\x21\0\0", PacketKind.CONNACK, "section 3.2.2.3.3", 0x82),
        (b"\x27\0\0\0\0", PacketKind.CONNECT, "section 3.1.2.11.4", 0x82),
        (b"\x23\0\0", PacketKind.PUBLISH, "MQTT-3.3.2-8", 0x94),
        (b"\x08\0\3a/#", PacketKind.PUBLISH, "MQTT-3.3.2-14", 0x82),
        (b"\x08\0\0", PacketKind.PUBLISH, "MQTT-4.7.3-1", 0x82),
        (b"\x08\0\1+", PacketKind.WILL, "MQTT-3.3.2-14", 0x82),
        (b"\x16\0\0", PacketKind.CONNECT, "section 3.1.2.11.10", 0x82),
        (b"\x16\0\0", PacketKind.AUTH, "section 3.15.2.2.3", 0x82),
        (b"\x03\0\1\xff", PacketKind.PUBLISH, "MQTT-1.5.4-1", 0x81),
        (b"\x08\0\1\xff", PacketKind.PUBLISH, "MQTT-1.5.4-1", 0x81),
        (b"\x26\0\1k\0\1\0", PacketKind.PUBLISH, "MQTT-1.5.4-2", 0x81),
        (b"\x26\0\1\0\0\1v", PacketKind.PUBLISH, "MQTT-1.5.4-2", 0x81),
    ],
)
def test_illegal_value_is_refused(raw: bytes, kind: PacketKind, rule: str, code: int) -> None:
    violation = violation_of(raw, kind)

    assert (rule, code) == (violation.rule, violation.reason_code)


def test_user_properties_keep_their_order() -> None:
    raw = b"".join(b"\x26\0\1" + name + b"\0\1x" for name in (b"b", b"a", b"b"))

    assert (("b", "x"), ("a", "x"), ("b", "x")) == decode_properties(
        raw, PacketKind.PUBLISH
    ).user_properties


def test_message_carries_its_properties_as_they_came() -> None:
    """Alias, identifiers and will delay are of one hop; the rest keeps its bytes and order."""
    user, expiry = b"\x26\0\1k\0\1v", b"\2\0\0\0\1"
    raw = b"\x0b\1" + user + b"\x23\0\1" + expiry + b"\x0b\2"
    carried, properties = split_properties(FieldReader(raw), PacketKind.PUBLISH)
    will, delayed = split_properties(FieldReader(user + b"\x18\0\0\0\7" + expiry), PacketKind.WILL)

    assert user + expiry == carried == will
    assert (1, (1, 2), 1) == (
        properties.topic_alias,
        properties.subscription_identifiers,
        properties.message_expiry,
    )
    assert 7 == delayed.will_delay


@level5_statement("MQTT-2.2.2-1")
def test_no_properties_are_a_zero_byte() -> None:
    assert b"\0" == encode_property_list(NO_PROPERTIES) == encode_property_list(Properties())
    assert decode_properties(b"", PacketKind.CONNECT) is NO_PROPERTIES


@pytest.mark.parametrize(("size", "length"), [(127, b"\x7f"), (128, b"\x80\1")])
def test_length_of_a_list_is_a_variable_byte_integer(size: int, length: bytes) -> None:
    raw = bytes(size)

    assert length + raw == property_list(raw)


def test_reason_codes_are_those_of_the_standard() -> None:
    expected = {0, 1, 2, 4, 0x10, 0x11, 0x18, 0x19, *range(0x80, 0xA3)}

    assert expected == set(ReasonCode)


@pytest.mark.parametrize("kind", [PacketKind.CONNECT, PacketKind.PUBLISH, PacketKind.DISCONNECT])
def test_a_packet_has_so_many_properties_and_no_more(kind: PacketKind) -> None:
    """To decode the three million for which a packet has room takes the node five seconds."""
    one = b"\x26\0\0\0\0"
    assert MOST_PROPERTIES == len(decode_properties(one * MOST_PROPERTIES, kind).user_properties)
    with pytest.raises(ProtocolViolation) as refused:
        decode_properties(one * (MOST_PROPERTIES + 1), kind)
    assert ReasonCode.QUOTA_EXCEEDED == refused.value.reason_code


def test_a_longer_list_is_found_by_its_count() -> None:
    assert not are_many(b"\x26\0\0\0\0" * MOST_PROPERTIES)
    assert are_many(b"\x26\0\0\0\0" * (MOST_PROPERTIES + 1))
    assert not are_many(b"\x26\0\0\xff\xff" + bytes(65_535))
