"""
SHELL: what runs because something happened, and what becomes of the node when that fails.

A node is never deaf: it works, or it ends loudly. Whoever waits for a commit, an alarm or a change
would wait for ever behind an exception that only a log line tells of.
"""

from __future__ import annotations

from collections.abc import Callable

from txbroker.runtime.structured_log import get_logger

log = get_logger()

_ends: list[Callable[[], None]] = []


def when_failed(end: Callable[[], None]) -> None:
    """End the process with `end` from now on, where a step fails that others wait for."""
    _ends[:] = [end]


def fail(error: BaseException) -> None:
    """
    A step has failed that others wait for: say so, and end the process.

    Where nobody has said how to end, the error goes on.
    """
    log.critical("node.failed", exc_info=error)
    if not _ends:
        raise error
    _ends[0]()


def run(action: Callable[[], object]) -> None:
    """Run a step that others wait for."""
    try:
        action()
    except Exception as error:
        fail(error)
