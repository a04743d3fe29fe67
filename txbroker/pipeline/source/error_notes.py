"""
SHELL: the line that matters behind what PySpark raises.

An error of a data source comes back to a program as a PySpark exception of fifty lines, ours
somewhere among them, and Spark has no place where a source could say more. A note of the exception
is what Python prints last of it, so that is where the line is told again.
"""

from __future__ import annotations

import functools
from typing import Any

from pyspark.errors.exceptions.captured import CapturedException

from txbroker.pipeline.source.error_reasons import known_line
from txbroker.pipeline.source.source_options import FORMAT


def tell_lines() -> None:
    """Have each exception that PySpark makes of Java's carry its line as a note."""
    make = CapturedException.__init__
    if hasattr(make, "__wrapped__"):
        return

    @functools.wraps(make)
    def make_with_note(self: CapturedException, *given: Any, **named: Any) -> None:
        make(self, *given, **named)
        text = str(self._desc)
        line = known_line(text)
        # Other sources' errors are not for us to explain.
        if line is not None and FORMAT in text:
            self.add_note(f"txbroker: {line}")

    CapturedException.__init__ = make_with_note  # type: ignore[method-assign]
