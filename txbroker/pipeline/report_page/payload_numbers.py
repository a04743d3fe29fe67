"""
Extracts numbers and times from payloads as Spark columns, and recognises topics of rollups.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from txbroker.model.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column

NUMBER = r"^[ \t\r\n]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t\r\n]*(?![\s\S])"
"""Pattern of a number, for Java and Python: decimal, with or without an exponent."""
OWN_TOPIC = r"(?:^|/)rollup/[0-9]+[smhd](?![\s\S])"
"""Pattern found in topics of published rollups, for any window."""

TIME = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?"
    r"(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?(?![\s\S])"
)
"""Pattern of a time: ISO 8601 date and time to the second; the group is the zone."""
MILLISECONDS = 1e11
"""A number from here on is in milliseconds since 1970, a lower one in seconds: 1973, and 5138."""
NO_TIME = MILLISECONDS * 1000

_NAME = re.compile(r"[^'\\\[\]*]+")


def numbers_in(payload: Column, field: str | None) -> Column:
    """
    Return the number in a payload, or at `field` of its JSON; null without a number.

    A number is decimal, and finite as a double: NaN, infinities and 1e999 are no numbers. In JSON a
    text that holds a number counts. Raises `PipelineError` for an invalid field.
    """
    text = payload.cast("string")
    return _number(text if field is None else _text_at(text, field))


def times_in(payload: Column, field: str) -> Column:
    """
    Return the time at `field` of a payload's JSON, in microseconds since 1970 UTC.

    Without a time, the result is null or below 0. A time is a text that matches `TIME`, in UTC if
    it names no zone. A number, also as a text, counts seconds since 1970 below `MILLISECONDS`, and
    milliseconds from there up to `NO_TIME`. A time before 1970 does not count. Raises
    `PipelineError` for an invalid field.
    """
    from pyspark.sql import functions as F

    def from_number(number: Column) -> Column:
        scale = F.when(number < MILLISECONDS, 1_000_000).when(number < NO_TIME, 1_000)
        return F.round(number * scale).cast("long")

    def from_text(text: Column) -> Column:
        # Spark would read a time without a zone in its session's zone.
        zone = F.regexp_extract(text, TIME, 1)
        stated = F.when(
            text.rlike(TIME), F.when(zone == "", F.concat(text, F.lit("Z"))).otherwise(text)
        )
        return F.coalesce(
            F.unix_micros(stated.try_cast("timestamp")), _let(_number(text), from_number)
        )

    return _let(_text_at(payload.cast("string"), field), from_text)


def _let(value: Column, body: Callable[[Column], Column]) -> Column:
    """Apply `body` to a value that is computed once, however often `body` uses it."""
    from pyspark.sql import functions as F

    return F.get(F.transform(F.array(value), body), 0)


def _text_at(text: Column, field: str) -> Column:
    from pyspark.sql import functions as F

    return F.get_json_object(text, _json_path(field))


def _number(text: Column) -> Column:
    from pyspark.sql import functions as F

    value = F.when(text.rlike(NUMBER), F.btrim(text, F.lit(" \t\r\n")).cast("double"))
    is_finite = F.abs(value) < F.lit(float("inf"))
    return F.when(is_finite, value)


def is_own(topic: Column) -> Column:
    """True if the topic is one of a rollup, which must not be rolled up again."""
    return topic.rlike(OWN_TOPIC)


def _json_path(field: str) -> str:
    names = field.split(".")
    if not all(_NAME.fullmatch(name) for name in names):
        raise PipelineError(f"field {field!r}: names joined by dots are wanted, such as state.temp")
    return "$" + "".join(f"[{name}]" if name.isdecimal() else f"['{name}']" for name in names)
