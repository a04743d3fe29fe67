"""The properties of a PUBLISH: as options of a command, and as lines below a printed message."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from txbroker.cli.options import MAX_BYTES, BadArgument, NameAndValue, Text, Topic
from txbroker.cli.output import one_line, payload_text

F = TypeVar("F", bound=Callable[..., Any])

NAMES = {
    "expiry": "MessageExpiryInterval",
    "payload-format": "PayloadFormatIndicator",
    "content-type": "ContentType",
    "response-topic": "ResponseTopic",
    "correlation-data": "CorrelationData",
    "subscription-identifier": "SubscriptionIdentifier",
    "user-property": "UserProperty",
}
"""The commands' names of the properties, with paho's, in the order of printing."""

MAX_EXPIRY = 2**32 - 1
"""Seconds that fit into the property."""


def _encode(ctx: click.Context, param: click.Parameter, value: str | None) -> bytes | None:
    data = None if value is None else os.fsencode(value)
    if data is not None and len(data) > MAX_BYTES:
        raise BadArgument(f"{param.opts[0]}: at most {MAX_BYTES} bytes")
    return data


_OPTIONS = (
    click.option(
        "--expiry",
        type=click.IntRange(0, MAX_EXPIRY),
        metavar="SECONDS",
        help="How long the message is of use; nobody gets it later.",
    ),
    click.option("--content-type", type=Text(), metavar="TEXT", help="What the payload is."),
    click.option(
        "--response-topic", type=Topic(wildcards=False), metavar="TOPIC", help="Where to answer."
    ),
    click.option(
        "--user-property",
        type=NameAndValue(),
        multiple=True,
        metavar="NAME=VALUE",
        help="A property of your own; may be given several times.",
    ),
)

correlation_data = click.option(
    "--correlation-data", callback=_encode, metavar="TEXT", help="Which request this answers."
)
"""The correlation data of a response, or of a request."""


def property_options(command: F) -> F:
    """Give the command an option for each property that publishers set."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def publish_properties(level: MQTTProtocolVersion, **given: Any) -> Properties | None:
    """
    Return the given options as properties of a PUBLISH, None for a level without properties.

    Raises `BadArgument` for an option that the level lacks.
    """
    found = {name.replace("_", "-"): value for name, value in given.items()}
    found = {name: value for name, value in found.items() if value is not None and value != ()}
    if level != MQTTProtocolVersion.MQTTv5:
        for name in found:
            raise BadArgument(f"--{name}: properties are of MQTT 5.0; add -V 5")
        return None
    properties = Properties(PacketTypes.PUBLISH)
    for name, value in found.items():
        setattr(properties, NAMES[name], list(value) if isinstance(value, tuple) else value)
    return properties


def property_lines(properties: Properties | None) -> Iterator[str]:
    """Yield a line for each property of a received PUBLISH, under the name of its option."""
    for name, attribute in NAMES.items():
        values = getattr(properties, attribute, None)
        for value in values if isinstance(values, list) else [values]:
            if value is not None:
                yield f"  {name}: {_value_text(value)}"


def _value_text(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return payload_text(value)
    if isinstance(value, tuple):
        return one_line("=".join(value))
    return one_line(str(value))
