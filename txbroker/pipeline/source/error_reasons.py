"""
CORE: reduces the errors of Spark to one line.

Spark wraps txbroker's errors, and its own, in the stack traces of several processes. This module
finds txbroker's line in them, and adds a remedy to Spark's own errors that users meet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from txbroker.model.errors import PipelineError

CHECKPOINT = (
    "delete the checkpoint: a job goes on where its results end, another query begins at"
    " startingOffsets"
)
COPY = "restore it from a copy"
SLOW_START = "Python worker failed to connect back"

_OURS = re.compile(r"^(?:\w+\.)*txbroker\.model\.errors\.\w+: (.+)$", re.MULTILINE)
_PATH = r"(?:file:)?(/\S+?)"
_KNOWN = (
    (rf"Failed to read log file {_PATH}\. ", rf"\1: damaged; {CHECKPOINT}"),
    (
        rf"Checkpoint location {_PATH} is in an inconsistent state",
        rf"\1: the file metadata is missing there; {CHECKPOINT}",
    ),
    (
        rf"Multiple streaming queries are concurrently using {_PATH}\.?(?:\s|$)",
        rf"\1: another query writes there: stop it; if there is none, {CHECKPOINT}",
    ),
    (
        r"Python streaming data source perform \w+: (?s:.+)\bJSONDecodeError: ",
        f"the query's checkpoint: its newest offsets are damaged; {CHECKPOINT}",
    ),
    (
        r"StreamMetadata\$?\.read",
        f"the query's checkpoint: its file metadata is damaged; {CHECKPOINT}",
    ),
    (rf"Path does not exist: {_PATH}\.?(?:\s|$)", rf"\1: is missing; {COPY}"),
    (rf"{_PATH} is not a Parquet file", rf"\1: damaged, not a Parquet file; {COPY}"),
    (
        rf"Mkdirs failed to create {_PATH}(?:/_temporary\S*)?\s",
        r"\1: cannot be made; give a folder that can be written to",
    ),
    (
        r"No space left on device",
        "No space left on device; make space where results, checkpoint and Spark's own files"
        " (spark.local.dir) go",
    ),
    (
        SLOW_START,
        "the machine is too busy: Spark waited 10 seconds for a Python process; run it again",
    ),
)
_TEXTS = tuple((re.compile(pattern), line) for pattern, line in _KNOWN)

_ERROR_CLASS = re.compile(r"^\[[A-Z_.]+\]\s*")
_AROUND = re.compile(
    r"^(An error occurred while calling \S+?\.(:|$)|Query \[.*?\] terminated with exception:)\s*"
)
_CLASS = re.compile(r"^(: )?([\w$]+\.)+[\w$]+(Exception|Error)(: |$)")
_STATE = re.compile(r"(\s*SQLSTATE: \w+)+\s*$")
_CAUSE = re.compile(r"^Caused by: (.+)", re.MULTILINE)


def our_line(text: str) -> str | None:
    """Return the last error of txbroker in a text of Spark, or None."""
    ours = _OURS.findall(text)
    return str(ours[-1]).strip() if ours else None


def known_line(text: str) -> str | None:
    """Return txbroker's error, or the line for a known error of Spark; None for other texts."""
    ours = our_line(text)
    if ours is not None:
        return ours
    for pattern, line in _TEXTS:
        found = pattern.search(text)
        if found:
            return found.expand(line)
    return None


def line_of(text: str) -> str:
    """Return the known line, or the first meaningful line of the text, or ""."""
    known = known_line(text)
    if known is not None:
        return known
    lines = [_stripped(line) for line in text.splitlines()]
    first = next((line for line in lines if line), "")
    causes = [_stripped(line) for line in _CAUSE.findall(text)]
    if causes and causes[-1] not in first:
        return f"{first.rstrip('.')}: {causes[-1]}" if first else causes[-1]
    return first


def is_slow_start(error: BaseException | None) -> bool:
    """True if a query ended before its first batch because Spark's Python started too slowly."""
    return type(error).__name__ == "StreamingQueryException" and SLOW_START in str(error)


def is_sparks(error: BaseException) -> bool:
    """True if PySpark, or its bridge to Java, raised the error; imports neither."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


@contextmanager
def converted_errors(where: object) -> Iterator[None]:
    """Convert Spark's errors in this context to `PipelineError`, whose line names `where`."""
    try:
        yield
    except Exception as error:
        if not is_sparks(error):
            raise
        text = str(error)
        raise PipelineError(our_line(text) or f"{where}: {line_of(text)}") from error


def _stripped(line: str) -> str:
    for around in (_AROUND, _CLASS, _ERROR_CLASS, _STATE):
        line = around.sub("", line.strip())
    return line
