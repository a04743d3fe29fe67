"""Parses the commands' arguments; a mistake is one line and status 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from paho.mqtt.enums import MQTTProtocolVersion

from txbroker.config import Address, parse_address
from txbroker.model.topics import (
    TopicError,
    validate_apex,
    validate_topic_filter,
    validate_topic_name,
)

F = TypeVar("F", bound=Callable[..., Any])

MAX_BYTES = 65_535
"""Bytes of a string in an MQTT packet."""

LEVELS = {"3.1.1": MQTTProtocolVersion.MQTTv311, "5": MQTTProtocolVersion.MQTTv5}
"""Protocol levels that the MQTT client speaks."""


class BadArgument(click.ClickException):
    """An unusable argument; the message is one line, unlike click's own usage errors."""

    exit_code = 2


class HostPort(click.ParamType[Address]):
    """HOST:PORT or [IPv6]:PORT, with a port that can be dialled."""

    name = "HOST:PORT"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Address:
        """Parse the address; raises `BadArgument`."""
        if isinstance(value, Address):
            return value
        text = str(value)
        problem = "port 0 cannot be dialled"
        try:
            address = parse_address(text)
        except ValueError as error:
            problem = str(error)
        else:
            if address.port:
                return address
        raise BadArgument(
            f"HOST:PORT: {text!r}: {problem}; write host and port, such as 127.0.0.1:7001"
        )


class Topic(click.ParamType[str]):
    """A topic name, or with `wildcards` a topic filter, by the rules of MQTT."""

    def __init__(self, *, wildcards: bool) -> None:
        self.name = "FILTER" if wildcards else "TOPIC"
        self._validate: Callable[[str], None] = (
            validate_topic_filter if wildcards else validate_topic_name
        )

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Check the topic; raises `BadArgument`."""
        text = str(value)
        try:
            self._validate(text)
        except TopicError as error:
            raise BadArgument(f"{self.name}: {text!r}: {error}") from None
        return text


class Apex(click.ParamType[str]):
    """The apex of a zone."""

    name = "ZONE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Check the apex; raises `BadArgument`."""
        text = str(value)
        try:
            validate_apex(text)
        except TopicError as error:
            raise BadArgument(f"ZONE: {text!r}: {error}") from None
        return text


class Text(click.ParamType[str]):
    """A string of an MQTT packet."""

    name = "TEXT"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Check the text's size and characters; raises `BadArgument`."""
        text = str(value)
        if not _is_string(text):
            raise BadArgument(f"{_name(param)}: {text!r}: at most {MAX_BYTES} bytes of UTF-8")
        return text


class NameAndValue(click.ParamType[tuple[str, str]]):
    """A user property, NAME=VALUE."""

    name = "NAME=VALUE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Split the text at its first "="; raises `BadArgument`."""
        text = str(value)
        name, separator, rest = text.partition("=")
        if not (separator and _is_string(name) and _is_string(rest)):
            raise BadArgument(f"{_name(param)}: {text!r}: write NAME=VALUE, such as room=kitchen")
        return name, rest


def _is_string(text: str) -> bool:
    """True if an MQTT packet can carry the text."""
    try:
        return len(text.encode()) <= MAX_BYTES
    except UnicodeEncodeError:
        return False


def _name(param: click.Parameter | None) -> str:
    return "" if param is None else param.opts[0]


def _check_id(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not (value and _is_string(value)):
        raise BadArgument(f"ID: {value!r}: a client id is 1 to {MAX_BYTES} bytes of UTF-8")
    return value


def client_id(help: str = "Client id.") -> Callable[[F], F]:
    """Return the option for the client id of an MQTT client."""
    return click.option("-i", "--id", "client_id", callback=_check_id, metavar="ID", help=help)


def quality(default: int) -> Callable[[F], F]:
    """Return the option for a QoS."""
    numbers = ", ".join(f"{n} (default)" if n == default else f"{n}" for n in range(3))
    said = " or ".join(numbers.rsplit(", ", 1))
    limits = click.IntRange(0, 2)
    return click.option("-q", "--qos", type=limits, default=default, metavar="N", help=f"{said}.")


mqtt_level = click.option(
    "-V",
    "--mqtt-version",
    "level",
    type=click.Choice(tuple(LEVELS)),
    default="3.1.1",
    callback=lambda ctx, param, value: LEVELS[value],
    help="The version of MQTT (default 3.1.1).",
)
"""The protocol level of an MQTT client."""

mqtt_address = click.argument("address", metavar="HOST:PORT", type=HostPort())
"""The address at which a command connects as an MQTT client."""

node_address = click.argument("address", metavar="HOST:PORT", type=HostPort())
"""The address of the node that a command calls."""

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
