"""
Numbers and times in payloads, as Spark columns; and the topics that rollups are published to.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from txbroker.model.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column

NUMBER = r"^[ \t\r\n]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t\r\n]*(?![\s\S])"
"""The texts that are numbers, for Java and for Python: decimal, with an exponent or without."""
OWN_TOPIC = r"(?:^|/)rollup/[0-9]+[smhd](?![\s\S])"
"""Found in the topics that rollups are published to, whatever their window."""

TIME = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?"
    r"(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?(?![\s\S])"
)
"""The texts that are times: date and time of ISO 8601, to the second; the group is the zone."""
MILLISECONDS = 1e11
"""A number from here on is in milliseconds since 1970, one below in seconds: 1973, and 5138."""
NO_TIME = MILLISECONDS * 1000

_NAME = re.compile(r"[^'\\\[\]*]+")


def numbers_in(payload: Column, field: str | None) -> Column:
    """
    The number that a payload is, or that stands at `field` in its JSON; null where there is none.

    A number is decimal and finite as a double: NaN, infinities and 1e999 are none. In JSON a text
    that holds a number is one, too. Raises `PipelineError` for a field that is none.
    """
    text = payload.cast("string")
    return _number(text if field is None else _text_at(text, field))


def times_in(payload: Column, field: str) -> Column:
    """
    The time that stands at `field` in the JSON of a payload, in microseconds since 1970 UTC; null,
    or less than 0, where there is none.

    A time is a text as `TIME` has it, of UTC where it names no zone; or a number, also as a text:
    of seconds since 1970 below `MILLISECONDS`, of milliseconds from there up to `NO_TIME`. What is
    before 1970 is none. Raises `PipelineError` for a field that is none.
    """
    from pyspark.sql import functions as F

    def from_number(number: Column) -> Column:
        scale = F.when(number < MILLISECONDS, 1_000_000).when(number < NO_TIME, 1_000)
        return F.round(number * scale).cast("long")

    def from_text(text: Column) -> Column:
        # Without a zone Spark takes its session's.
        zone = F.regexp_extract(text, TIME, 1)
        stated = F.when(
            text.rlike(TIME), F.when(zone == "", F.concat(text, F.lit("Z"))).otherwise(text)
        )
        return F.coalesce(
            F.unix_micros(stated.try_cast("timestamp")), _let(_number(text), from_number)
        )

    return _let(_text_at(payload.cast("string"), field), from_text)


def _let(value: Column, body: Callable[[Column], Column]) -> Column:
    """What `body` makes of a value that is worked out once, however often it is used there."""
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
    """Whether a rollup is published there: it is not rolled up again."""
    return topic.rlike(OWN_TOPIC)


def _json_path(field: str) -> str:
    names = field.split(".")
    if not all(_NAME.fullmatch(name) for name in names):
        raise PipelineError(f"field {field!r}: names joined by dots are wanted, such as state.temp")
    return "$" + "".join(f"[{name}]" if name.isdecimal() else f"['{name}']" for name in names)
