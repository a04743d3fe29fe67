"""Parses the commands' arguments; a mistake is one line and status 2."""

from __future__ import annotations

from collections.abc import Callable

import click

from txbroker.config import Address, parse_address
from txbroker.model.topics import (
    TopicError,
    validate_apex,
    validate_topic_filter,
    validate_topic_name,
)


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


node_address = click.argument("address", metavar="HOST:PORT", type=HostPort())
"""The address of the node that a command calls."""

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
