"""CORE: turns the columns of MQTT 5.0's properties into what paho publishes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from txbroker.model.errors import PipelineError
from txbroker.model.topics import TopicError, validate_topic_name

LONGEST = 0xFFFFFFFF
"""Seconds of the longest interval: `expiry` has 32 bits on the wire."""

MOST_BYTES = 65_535
"""Bytes of the longest text, and of the longest correlation data."""


def publish_properties(columns: Mapping[str, Any], topic: str) -> Properties | None:
    """
    Return the properties of a row with this topic; None if it has none.

    `columns` has values by names of `row_schema.PROPERTIES`, some of which may be absent. Raises
    `PipelineError` for a value that no publish can have.
    """
    made: Properties | None = None
    for name, value in columns.items():
        if value is None or value == []:
            continue
        problem, convert = _CHECKS[name]
        if wanted := problem(value):
            raise PipelineError(f"column {name}: {_shown(value)} on topic {topic!r}; {wanted}")
        if made is None:
            made = Properties(PacketTypes.PUBLISH)
        setattr(made, _NAMES[name], convert(value))
    return made


# internal

_NAMES = {
    "expiry": "MessageExpiryInterval",
    "payload_format": "PayloadFormatIndicator",
    "content_type": "ContentType",
    "response_topic": "ResponseTopic",
    "correlation_data": "CorrelationData",
    "user_properties": "UserProperty",
}


def _expiry(value: int) -> str:
    return "" if 0 <= value <= LONGEST else f"0 to {LONGEST} seconds are wanted"


def _payload_format(value: int) -> str:
    return "" if value in (0, 1) else "0 or 1 is wanted"


def _text(value: str) -> str:
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "a text without unpaired surrogates is wanted"
    if "\0" in value:
        return "a text without a null character is wanted"
    return "" if size <= MOST_BYTES else f"at most {MOST_BYTES} bytes are wanted"


def _topic(value: str) -> str:
    try:
        validate_topic_name(value)
    except TopicError as error:
        return f"no client can answer to it: {error}"
    return ""


def _data(value: bytes | str) -> str:
    size = len(_bytes(value))
    return "" if size <= MOST_BYTES else f"at most {MOST_BYTES} bytes are wanted"


def _pairs(value: Any) -> str:
    for pair in value:
        if pair is None or pair["name"] is None or pair["value"] is None:
            return "a name and a value, neither of them null, are wanted"
        if problem := _text(pair["name"]) or _text(pair["value"]):
            return problem
    return ""


def _bytes(value: bytes | bytearray | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _same(value: Any) -> Any:
    return value


_CHECKS: Mapping[str, tuple[Callable[[Any], str], Callable[[Any], Any]]] = {
    "expiry": (_expiry, _same),
    "payload_format": (_payload_format, _same),
    "content_type": (_text, _same),
    "response_topic": (_topic, _same),
    "correlation_data": (_data, _bytes),
    "user_properties": (_pairs, lambda value: [(pair["name"], pair["value"]) for pair in value]),
}
"""For each column: what is wrong with a value ("" if nothing), and its conversion for paho."""


def _shown(value: object) -> str:
    """Return a value for an error, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
