"""
SHELL: where the log options of twistd and of `python -m twisted` lead a node's log.

`--logfile`, `--syslog`, `--prefix`, and `twistd.log` of a daemon without any; `--log-file` of
`python -m twisted`. Without them the log goes to stderr. A line is the same JSON object everywhere.
"""

from __future__ import annotations

import signal
import sys
import syslog
from typing import Any, TextIO, cast

from twisted.python.logfile import LogFile

from txbroker.model.errors import TxbrokerError

DAEMONS_FILE = "twistd.log"
"""In the folder where a daemon was started, unless an option says otherwise."""

FOR_US = 0o600
"""A log names clients, which is not for other users of the machine."""


class _File(LogFile):
    """A file that twistd rotates: at each megabyte, and on SIGUSR1."""

    def isatty(self) -> bool:
        """Nobody reads it here."""
        return False

    def write(self, data: str | bytes) -> None:
        """Write; after a rotation that found no descriptor the file is opened now."""
        if self._file.closed:
            self._openFile()  # type: ignore[no-untyped-call]
        super().write(data)  # type: ignore[no-untyped-call]


class _Syslog:
    """The system's log as a stream."""

    closed = False

    def __init__(self, prefix: str) -> None:
        syslog.openlog(prefix, syslog.LOG_PID, syslog.LOG_USER)

    def isatty(self) -> bool:
        """Nobody reads it here."""
        return False

    def write(self, text: str) -> None:
        """Write one line."""
        syslog.syslog(syslog.LOG_INFO, text.rstrip("\n").replace("\0", " "))

    def flush(self) -> None:
        """Nothing waits."""


def chosen(options: Any) -> TextIO | None:
    """
    The stream that the options of twistd, or of `python -m twisted`, choose; None: stderr.

    Raises `TxbrokerError` for a choice that cannot be.
    """
    if "logFile" in options:
        file: TextIO = options["logFile"]
        # stdout is its default, and results go there.
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
