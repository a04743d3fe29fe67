"""
SHELL: chooses the stream of a node's log by the options of twistd and of `python -m twisted`.

The options are `--logfile`, `--syslog`, `--prefix`, and `--log-file` of `python -m twisted`. A
daemon without any logs to `twistd.log`. Otherwise the log goes to stderr. A line is the same JSON
object in every stream.
"""

from __future__ import annotations

import signal
import sys
import syslog
from typing import Any, TextIO, cast

from twisted.python.logfile import LogFile

from txbroker.model.errors import TxbrokerError

DAEMONS_FILE = "twistd.log"
"""A daemon's default log file, in the folder where the daemon was started."""

FOR_US = 0o600
"""Mode of the log file: a log names clients, and other users of the machine must not read it."""


class _File(LogFile):
    """A log file that twistd rotates at each megabyte and on SIGUSR1."""

    def isatty(self) -> bool:
        """True if the stream is a terminal: never for a file."""
        return False

    def write(self, data: str | bytes) -> None:
        """Write; reopen the file after a rotation that found no free descriptor."""
        if self._file.closed:
            self._openFile()  # type: ignore[no-untyped-call]
        super().write(data)  # type: ignore[no-untyped-call]


class _Syslog:
    """The system's log as a stream."""

    closed = False

    def __init__(self, prefix: str) -> None:
        syslog.openlog(prefix, syslog.LOG_PID, syslog.LOG_USER)

    def isatty(self) -> bool:
        """True if the stream is a terminal: never for the system's log."""
        return False

    def write(self, text: str) -> None:
        """Write one line."""
        syslog.syslog(syslog.LOG_INFO, text.rstrip("\n").replace("\0", " "))

    def flush(self) -> None:
        """Do nothing: `write` does not buffer."""


def chosen(options: Any) -> TextIO | None:
    """
    Return the stream that the options choose, or None for stderr.

    Raises `TxbrokerError` for an impossible choice.
    """
    if "logFile" in options:
        file: TextIO = options["logFile"]
        # stdout is that option's default, but must stay free for results.
        return None if file in (sys.stdout, sys.__stdout__) else file
    name, is_daemon = options.get("logfile"), not (options["nodaemon"] or options.get("debug"))
    if options.get("syslog"):
        return cast(TextIO, _Syslog(options["prefix"]))
    if name == "-" and is_daemon:
        raise TxbrokerError("--logfile: '-': a daemon has no stdout; name a file, or use --syslog")
    if name == "-":
        return sys.stdout
    return _open(name or DAEMONS_FILE) if name or is_daemon else None


def _open(name: str) -> TextIO:
    try:
        file: _File = _File.fromFullPath(  # type: ignore[no-untyped-call]
            name, defaultMode=FOR_US
        )
    except (OSError, AssertionError) as error:
        why = error.strerror if isinstance(error, OSError) else "no such folder"
        raise TxbrokerError(f"--logfile: {name!r}: cannot be opened: {why}") from error
    signal.signal(signal.SIGUSR1, lambda *_: _rotate(file))
    return cast(TextIO, file)


def _rotate(file: _File) -> None:
    from twisted.internet import reactor

    cast(Any, reactor).callFromThread(file.rotate)
