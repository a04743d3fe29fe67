"""Numbers in payloads, as Spark columns; and the topics that rollups are published to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from txbroker.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column

NUMBER = r"^[ \t\r\n]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t\r\n]*(?![\s\S])"
"""The texts that are numbers, for Java and for Python: decimal, with an exponent or without."""
OWN_TOPIC = r"(?:^|/)rollup/[0-9]+[smhd](?![\s\S])"
"""Found in the topics that rollups are published to, whatever their window."""

_NAME = re.compile(r"[^'\\\[\]*]+")


def numbers_in(payload: Column, field: str | None) -> Column:
    """
    The number that a payload is, or that stands at `field` in its JSON; null where there is none.

    A number is decimal and finite as a double: NaN, infinities and 1e999 are none. In JSON a text
    that holds a number is one, too. Raises `PipelineError` for a field that is none.
    """
    from pyspark.sql import functions as F

    text = payload.cast("string")
    if field is not None:
        text = F.get_json_object(text, _json_path(field))
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
