"""Columns of properties become a publish; a value that none can have is told in one line."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.pipeline.rows import LISTED, NO_PROPERTIES
from txbroker.model.errors import PipelineError
from txbroker.mqtt.wire.packet_kind import PacketKind
from txbroker.mqtt.wire.properties import Properties, decode_properties
from txbroker.mqtt.wire.property_list import list_at
from txbroker.pipeline.source.row_properties import publish_properties
from txbroker.pipeline.source.row_publisher import PublishRow, rows_of
from txbroker.pipeline.source.row_schema import MESSAGE_ARROW


def published(columns: dict[str, Any]) -> Properties | None:
    """What the decoder finds in what paho sends."""
    made = publish_properties(columns, "t")
    return None if made is None else decoded(made.pack())


def decoded(raw: bytes) -> Properties:
    found = list_at(raw, 0, len(raw))
    assert found is not None
    assert len(raw) == found[1]
    return decode_properties(raw[found[0] :], PacketKind.PUBLISH)


def pairs(*names: str | None) -> list[dict[str, str | None]]:
    return [{"name": name, "value": "v"} for name in names]


def test_every_property_is_published() -> None:
    assert published(LISTED) == Properties(
        message_expiry=4_000_000_000,
        payload_format=1,
        content_type="text/plain",
        response_topic="answers/ü",
        correlation_data=b"\0\xff",
        user_properties=(("b", "1"), ("a", "2"), ("b", "3")),
    )


@pytest.mark.parametrize("columns", [{}, NO_PROPERTIES, {"user_properties": [], "expiry": None}])
def test_a_row_without_properties(columns: dict[str, Any]) -> None:
    assert published(columns) is None


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"expiry": 0}, Properties(message_expiry=0)),
        (
            {"expiry": 2**32 - 1, "payload_format": 0},
            Properties(payload_format=0, message_expiry=2**32 - 1),
        ),
        ({"content_type": ""}, Properties(content_type="")),
        ({"content_type": "a" * 65_535}, Properties(content_type="a" * 65_535)),
        ({"correlation_data": "ü"}, Properties(correlation_data="ü".encode())),
        ({"correlation_data": bytearray(b"1")}, Properties(correlation_data=b"1")),
    ],
)
def test_values_at_their_limits(columns: dict[str, Any], expected: Properties) -> None:
    assert expected == published(columns)


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"expiry": -1}, "column expiry: -1 on topic 't'; 0 to 4294967295 seconds are wanted"),
        ({"expiry": 2**32}, "column expiry: 4294967296 on topic 't'; 0 to"),
        ({"payload_format": 2}, "column payload_format: 2 on topic 't'; 0 or 1 is wanted"),
        (
            {"content_type": "a\0"},
            "column content_type: 'a\\\\x00' on topic 't'; a text without a null",
        ),
        ({"content_type": "\ud800"}, "column content_type: .*unpaired surrogates"),
        ({"content_type": "ü" * 32_768}, "column content_type: .*; at most 65535 bytes are wanted"),
        (
            {"response_topic": "a/+"},
            "column response_topic: 'a/\\+' on topic 't'; no client can answer",
        ),
        ({"response_topic": ""}, "column response_topic: '' on topic 't'; no client can answer"),
        ({"correlation_data": bytes(65_536)}, "column correlation_data: .*; at most 65535 bytes"),
        ({"user_properties": pairs("a", None)}, "column user_properties: .*a name and a value"),
        ({"user_properties": [None]}, "column user_properties: .*a name and a value"),
        ({"user_properties": pairs("a\0")}, "column user_properties: .*without a null"),
        ({"user_properties": pairs("a" * 65_536)}, "column user_properties: .*at most 65535"),
    ],
)
def test_mistakes_are_told_in_a_line(columns: dict[str, Any], line: str) -> None:
    with pytest.raises(PipelineError, match=f"^{line}") as raised:
        publish_properties(columns, "t")
    assert 200 > len(str(raised.value).splitlines()[0])
    assert 1 == len(str(raised.value).splitlines())


def test_rows_of_a_partition() -> None:
    """Rows with and without properties; columns that are absent are null."""
    given = [{"topic": "b", "payload": b"1"} | LISTED, {"topic": "a", "payload": b"2"}]
    wanted = ["topic", "payload", "expiry", "user_properties"]
    schema = pa.schema([MESSAGE_ARROW.field(name) for name in wanted])

    first, second = rows_of(iter(pa.Table.from_pylist(given, schema=schema).to_batches()))

    assert PublishRow("a", b"2", 1, False, None) == first
    assert ("b", b"1") == (second.topic, second.payload)
    assert second.properties is not None
    expected = Properties(
        message_expiry=4_000_000_000, user_properties=(("b", "1"), ("a", "2"), ("b", "3"))
    )
    assert expected == decoded(second.properties.pack())
