"""Parses times and numbers among the options of `txbroker pipeline`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import click

from txbroker.cli.options import Apex, BadArgument
from txbroker.config.value_hooks import CONVERTER, BadValue
from txbroker.config.values import Timeout
from txbroker.pipeline.source.source_options import parse_time
from txbroker.pipeline.spark.masters import REMEDY, is_master


class MomentOption(click.ParamType[datetime]):
    """A time in ISO 8601 with its zone."""

    name = "TIME"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Parse the time; raises `BadArgument`."""
        moment = value if isinstance(value, datetime) else parse_time(str(value))
        if moment is None:
            raise BadArgument(
                f"TIME: {value!r}: write date, time and zone, such as 2026-03-01T06:00:00Z"
            )
        return moment


class DurationOption(click.ParamType[timedelta]):
    """A duration with its unit, as in a topology file."""

    name = "TIME"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Parse the duration; raises `BadArgument`."""
        if isinstance(value, timedelta):
            return value
        try:
            return timedelta(seconds=CONVERTER.structure(value, Timeout))
        except BadValue as error:
            raise BadArgument(f"TIME: {value!r}: {error.problem}; {error.remedy}") from None


class AgeOption(click.ParamType[tuple[str | None, timedelta]]):
    """An age for all zones (AGE), or for one zone (ZONE=AGE)."""

    name = "[ZONE=]AGE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str | None, timedelta]:
        """Parse zone and age; raises `BadArgument`."""
        if isinstance(value, tuple):
            return value
        zone, equals, age = str(value).rpartition("=")
        if equals:
            Apex().convert(zone, param, ctx)
        return zone if equals else None, DurationOption().convert(age, param, ctx)


class MasterOption(click.ParamType[str]):
    """A Spark master."""

    name = "URL"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Check the master; raises `BadArgument`."""
        if not is_master(str(value)):
            raise BadArgument(f"URL: {value!r}: no Spark master; {REMEDY}")
        return str(value)


class SpeedOption(click.ParamType[float | None]):
    """A factor; `max` becomes None."""

    name = "N|max"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | None:
        """Parse the factor; raises `BadArgument`."""
        try:
            speed = None if value == "max" else float(str(value))
        except ValueError:
            speed = 0.0
        if speed is not None and not 0 < speed < float("inf"):
            raise BadArgument(f"N: {value!r}: write how many times as fast, such as 10, or max")
        return speed
