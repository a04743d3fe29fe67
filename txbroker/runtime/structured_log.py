"""
Logs.

They go to one stream as one event a line: for people on a terminal, as JSON objects otherwise.
Whatever else in the process has something to say (Twisted, the standard library's logging, Python
warnings, exceptions that nobody caught) is led into the same stream, so a program can read all of
stderr. An event is a short constant name (`zone.fenced`) with fields; never a payload.

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
"""For twistd's `logger` option: `options.parent["logger"]` set to this leads Twisted's log here."""


LONGEST_FIELD = 1_000
"""Characters of a field that reach the log; a stranger's text would fill the disk."""

LONGEST_TRACE = 16_000
"""The same of a traceback."""

TELL_AGAIN = 60.0
AT_ONCE = 10
"""Of an event that others cause, so many lines are told in so many seconds; others are counted."""

KINDS_REMEMBERED = 1_000
"""Such events that are told apart; of more, each event has one kind."""

# gRPC's compiled half writes to stderr by itself, a line for each broken byte of a stranger.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def get_logger(**bound: Any) -> Any:
    """
    A structlog logger with these fields on every event. It may be made before `configure` is
    called, and follows a later call.
    """
    return structlog.stdlib.get_logger(**bound)


def configure(node: str, *, stream: TextIO | None = None, as_json: bool | None = None) -> None:
    """
    Lead all logs of this process to `stream` (stderr as it is now), with `node` on each event.

    `as_json` None decides by whether the stream is a terminal. May be called again, for instance
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
    A text stream whose reader may go away: a log that nobody reads must not end the node.

    Twisted replaces `sys.stderr` by its own logger later, so the stream itself is kept.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def isatty(self) -> bool:
        """Whether people read it."""
        return not self._stream.closed and self._stream.isatty()

    def write(self, text: str) -> None:
        """Write, or lose, one line."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError, RuntimeError):
            pass  # RuntimeError: a signal's handler wrote while the same buffer was being flushed


class _Lines:
    """
    What structlog writes rendered events to, one a line.

    Its own loggers hold a lock while they write. Twisted's signal handlers log, and they run in the
    middle of whatever the main thread does: inside that lock they would wait for ever, and the
    node would never end. One write call for a line needs no lock.
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
    """Events of one kind since `began`: how many were told, and how many not."""

    began: float
    told: int = 0
    untold: int = 0


class RepeatedEvents:
    """
    Events that others cause, as often as they like: `AT_ONCE` of a kind are told in a while.

    Events of one kind have the same name and the same `kind`. The line that tells a kind again has
    the number of those that were not told, as `untold`.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: OrderedDict[tuple[str, str], _Kind] = OrderedDict()

    def tell(
        self, say: Callable[..., object], event: str, *, kind: str = "", **fields: Any
    ) -> bool:
        """Log the event with `say`, a method of a logger, or count it; True if it was logged."""
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
        # Oldest first: a kind that is due to be told again, with nothing untold, need not be known.
        while self._known:
            key, known = next(iter(self._known.items()))
            is_old = now - known.began >= TELL_AGAIN
            if not is_old or (known.untold and len(self._known) < KINDS_REMEMBERED):
                return
            del self._known[key]


_repeated = RepeatedEvents()


def tell_repeated(say: Callable[..., object], event: str, *, kind: str = "", **fields: Any) -> bool:
    """Log an event that others cause; see `RepeatedEvents`."""
    return _repeated.tell(say, event, kind=kind, **fields)


# -- one event to one line


def _context(node: str) -> Processor:
    def add(_logger: Any, method: str, event: EventDict) -> EventDict:
        event.setdefault("node", node)
        event["level"] = {"warn": "warning", "exception": "error"}.get(method, method)
        event["time"] = datetime.now(UTC).isoformat(timespec="microseconds")
        return event

    return add


def _failure_text(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """`exc_info` (True, an exception or the triple) becomes `error` and `traceback`, both text."""
    given = event.pop("exc_info", None)
    error = sys.exc_info()[1] if given is True else given[1] if isinstance(given, tuple) else given
    if isinstance(error, BaseException):
        event.setdefault("error", f"{type(error).__name__}: {error}")
        event["traceback"] = "".join(traceback.format_exception(error))
    return event


def _shorten(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """No field is longer than a line that people read."""
    for key, value in event.items():
        most = LONGEST_TRACE if key == "traceback" else LONGEST_FIELD
        if isinstance(value, (str, bytes)) and len(value) > most:
            event[key] = f"{value[:most]!s}... ({len(value)} in all)"
    return event


def _first_keys(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """The keys that every line has go first, so that people can read JSON too."""
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
    """
    The standard library's log (asyncio, gRPC's Python half) as our events.
    """

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info is not None:
            fields["exc_info"] = record.exc_info
        if record.name.startswith("grpc"):  # five bytes of a stranger's are a traceback there
            say = partial(_emit, record.levelno)
            tell_repeated(say, "python.log", kind=record.name, fields=fields)
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


# twistd asks for the interface; zope's decorator would make the function untyped for mypy.
directlyProvides(_observe, ILogObserver)


def twisted_observer() -> Any:
    """
    The observer for twistd's `--logger` option.

    twistd would write plain text to stdout otherwise. Its service gets hold of that only when the
    log has been opened, so the option is the place.
    """
    return _observe


def _capture() -> None:
    """Lead logging, warnings and uncaught exceptions to our log; harmless when done again."""
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
