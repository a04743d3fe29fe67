"""
Writes the logs of a process: one event per line, to one stream.

A terminal gets readable lines; any other stream gets JSON objects. Twisted, the standard library's
logging, Python warnings and uncaught exceptions use the same stream. So a program can parse all of
stderr. An event is a short constant name (`zone.fenced`) with fields, and never a payload.

Cores return values and do not log; only shells and the composition use this module.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
import warnings
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, TextIO

import attrs
import structlog
from structlog.typing import EventDict, Processor
from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent
from zope.interface import directlyProvides

TWISTED_OBSERVER = "txbroker.runtime.structured_log.twisted_observer"
"""Value for twistd's `logger` option, `options.parent["logger"]`: redirects Twisted's log here."""


LONGEST_FIELD = 1_000
"""Characters of a field that are logged; otherwise a stranger's text would fill the disk."""

LONGEST_TRACE = 16_000
"""Characters of a traceback that are logged."""

TELL_AGAIN = 60.0
AT_ONCE = 10
"""`AT_ONCE` lines of an event that peers cause are logged in `TELL_AGAIN` seconds; more count."""

KINDS_REMEMBERED = 1_000
"""Kinds of repeated events that are counted apart; beyond that each event name is one kind."""

# gRPC's compiled half would write a line to stderr for each broken byte of a stranger.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def get_logger(**bound: Any) -> Any:
    """
    Return a structlog logger with the fields of `bound` on every event.

    A logger may be made before `configure`, and follows any later `configure`.
    """
    return structlog.stdlib.get_logger(**bound)


def configure(node: str, *, stream: TextIO | None = None, as_json: bool | None = None) -> None:
    """
    Route all logs of this process to `stream` (default: the present stderr), with `node` on each
    event.

    With `as_json` None, a stream that is no terminal gets JSON. May be called again, for example
    when the node's name becomes known.
    """
    out = _Unbreakable(stream if stream is not None else sys.stderr)
    if as_json is None:
        as_json = not out.isatty()
    structlog.configure(
        processors=[
            _context(node),
            _failure_text,
            _shorten,
            *(_JSON if as_json else _console(out)),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: _Lines(out),
        cache_logger_on_first_use=False,
    )
    _capture()


class _Unbreakable:
    """
    A text stream whose reader may disappear: a log without a reader must not end the node.

    The object holds the stream itself, because Twisted later replaces `sys.stderr` by its logger.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def isatty(self) -> bool:
        """True if the stream is a terminal."""
        return not self._stream.closed and self._stream.isatty()

    def write(self, text: str) -> None:
        """Write one line; a failing stream loses it."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError, RuntimeError):
            pass  # RuntimeError: a signal handler wrote while the same buffer was being flushed.


class _Lines:
    """
    The sink for events that structlog has rendered, one per line.

    structlog's own loggers hold a lock while they write. Twisted's signal handlers log, and
    interrupt the main thread anywhere. Inside that lock a handler would wait forever, and the node
    would never end. A single write call per line needs no lock.
    """

    def __init__(self, out: _Unbreakable) -> None:
        self._out = out

    def msg(self, line: str) -> None:
        """Write one event."""
        self._out.write(line + "\n")

    debug = info = warning = error = critical = msg


# -- what others cause


@attrs.define(slots=True, eq=False)
class _Kind:
    """Events of one kind since `began`: the number logged and the number suppressed."""

    began: float
    told: int = 0
    untold: int = 0


class RepeatedEvents:
    """
    Limits the lines of events that peers can cause at will: `AT_ONCE` of a kind per `TELL_AGAIN`.

    Events of one kind have the same name and the same `kind`. The first line after a suppression
    carries the number of suppressed events as `untold`.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: OrderedDict[tuple[str, str], _Kind] = OrderedDict()

    def log(self, say: Callable[..., object], event: str, *, kind: str = "", **fields: Any) -> bool:
        """Log the event with `say`, a logger's method, or count it; return True if logged."""
        now = self._now()
        key = (event, kind[:LONGEST_FIELD])
        if key not in self._known and len(self._known) >= KINDS_REMEMBERED:
            key = (event, "")
        known = self._known.setdefault(key, _Kind(began=now))
        if now - known.began >= TELL_AGAIN:
            if known.untold:
                fields["untold"] = known.untold
            self._known[key] = known = _Kind(began=now)
            self._known.move_to_end(key)
        if known.told >= AT_ONCE:
            known.untold += 1
            return False
        known.told += 1
        self._forget(now)
        say(event, **fields)
        return True

    def _forget(self, now: float) -> None:
        # Otherwise the table grows: drop the oldest kinds that have no suppressed events to report.
        while self._known:
            key, known = next(iter(self._known.items()))
            is_old = now - known.began >= TELL_AGAIN
            if not is_old or (known.untold and len(self._known) < KINDS_REMEMBERED):
                return
            del self._known[key]


_repeated = RepeatedEvents()


def log_limited(say: Callable[..., object], event: str, *, kind: str = "", **fields: Any) -> bool:
    """Log an event that peers can cause; `RepeatedEvents` limits its lines."""
    return _repeated.log(say, event, kind=kind, **fields)


# -- one event to one line


def _context(node: str) -> Processor:
    def add(_logger: Any, method: str, event: EventDict) -> EventDict:
        event.setdefault("node", node)
        event["level"] = {"warn": "warning", "exception": "error"}.get(method, method)
        event["time"] = datetime.now(UTC).isoformat(timespec="microseconds")
        return event

    return add


def _failure_text(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Replace `exc_info` (True, an exception or a triple) by the texts `error` and `traceback`."""
    given = event.pop("exc_info", None)
    error = sys.exc_info()[1] if given is True else given[1] if isinstance(given, tuple) else given
    if isinstance(error, BaseException):
        event.setdefault("error", f"{type(error).__name__}: {error}")
        event["traceback"] = "".join(traceback.format_exception(error))
    return event


def _shorten(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Cut fields to `LONGEST_FIELD` characters, and tracebacks to `LONGEST_TRACE`."""
    for key, value in event.items():
        most = LONGEST_TRACE if key == "traceback" else LONGEST_FIELD
        if isinstance(value, (str, bytes)) and len(value) > most:
            event[key] = f"{value[:most]!s}... ({len(value)} in all)"
    return event


def _first_keys(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Move the keys of every line to the front, so that JSON stays readable."""
    first = {key: event.pop(key) for key in ("time", "level", "event", "node")}
    return {**first, **event}


_JSON: list[Processor] = [_first_keys, structlog.processors.JSONRenderer(default=repr)]


def _console(out: _Unbreakable) -> list[Processor]:
    def show_traceback(_logger: Any, _method: str, event: EventDict) -> EventDict:
        if "traceback" in event:
            event["exception"] = event.pop("traceback")
        return event

    renderer = structlog.dev.ConsoleRenderer(colors=out.isatty(), timestamp_key="time")
    return [show_traceback, renderer]


# -- everybody else's events


class _Handler(logging.Handler):
    """Converts records of the standard library's log (asyncio, gRPC's Python half) to events."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info is not None:
            fields["exc_info"] = record.exc_info
        if record.name.startswith("grpc"):  # Five bytes of a stranger cause a traceback there.
            say = partial(_emit, record.levelno)
            log_limited(say, "python.log", kind=record.name, fields=fields)
        else:
            _emit(record.levelno, "python.log", fields)


def _emit(level: int, event: str, fields: dict[str, Any], **more: Any) -> None:
    get_logger().log(max(level // 10 * 10, logging.DEBUG), event, **fields, **more)


_TWISTED_LEVELS = {
    LogLevel.debug: logging.DEBUG,
    LogLevel.info: logging.INFO,
    LogLevel.warn: logging.WARNING,
    LogLevel.error: logging.ERROR,
    LogLevel.critical: logging.CRITICAL,
}


def _observe(event: LogEvent) -> None:
    level = _TWISTED_LEVELS.get(event.get("log_level", LogLevel.info), logging.INFO)
    fields: dict[str, Any] = {
        "logger": event.get("log_namespace", ""),
        "message": formatEvent(event),
    }
    failure = event.get("log_failure")
    if failure is not None:
        fields["error"] = f"{failure.type.__name__}: {failure.getErrorMessage()}"
        fields["traceback"] = failure.getTraceback()
    _emit(level, "twisted.log", fields)


# twistd requires the interface; zope's decorator would make the function untyped for mypy.
directlyProvides(_observe, ILogObserver)


def twisted_observer() -> Any:
    """
    Return the observer for twistd's `--logger` option.

    Otherwise twistd writes plain text to stdout. The twistd service is created after the log opens,
    so only the option comes early enough.
    """
    return _observe


def _capture() -> None:
    """Route logging, warnings and uncaught exceptions to this log; repeated calls do no harm."""
    root = logging.getLogger()
    if not any(isinstance(handler, _Handler) for handler in root.handlers):
        root.addHandler(_Handler())
        root.setLevel(logging.INFO)
    warnings.showwarning = _warning
    sys.excepthook = _uncaught
    threading.excepthook = lambda args: _uncaught(args.exc_type, args.exc_value, args.exc_traceback)
    sys.unraisablehook = lambda args: _uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def _warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    fields = {"category": category.__name__, "message": str(message)}
    _emit(logging.WARNING, "python.warning", fields | {"where": f"{filename}:{lineno}"})


def _uncaught(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    _emit(logging.CRITICAL, "python.uncaught", {"exc_info": (kind, error, trace)})
