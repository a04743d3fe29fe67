"""
SHELL: adds the line that matters to the exceptions of PySpark.

A data source's error reaches the program as a PySpark exception of fifty lines, with txbroker's
line somewhere among them. Spark gives a source no place for a message. Python prints an exception's
notes last, so a note repeats the line.
"""

from __future__ import annotations

import functools
from typing import Any

from pyspark.errors.exceptions.captured import CapturedException

from txbroker.pipeline.source.error_reasons import known_line
from txbroker.pipeline.source.source_options import FORMAT


def attach_lines() -> None:
    """Make each exception that PySpark converts from Java carry its line as a note."""
    make = CapturedException.__init__
    if hasattr(make, "__wrapped__"):
        return

    @functools.wraps(make)
    def make_with_note(self: CapturedException, *given: Any, **named: Any) -> None:
        make(self, *given, **named)
        text = str(self._desc)
        line = known_line(text)
        # Without the check for FORMAT, other sources' errors would get a note of txbroker.
        if line is not None and FORMAT in text:
            self.add_note(f"txbroker: {line}")

    CapturedException.__init__ = make_with_note  # type: ignore[method-assign]
