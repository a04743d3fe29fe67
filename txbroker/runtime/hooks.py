"""
SHELL: runs callbacks on which others wait, and ends the node if one fails.

A node is never deaf (protocol rule 35): it works, or it ends loudly. Otherwise callers would wait
forever for a commit, an alarm or a change. The exception would only be a log line.
"""

from __future__ import annotations

from collections.abc import Callable

from txbroker.runtime.structured_log import get_logger

log = get_logger()

_ends: list[Callable[[], None]] = []


def when_failed(end: Callable[[], None]) -> None:
    """Register `end`, which ends the process when a callback fails; it replaces an earlier one."""
    _ends[:] = [end]


def fail(error: BaseException) -> None:
    """
    Log the failure of a callback that others wait for, and end the process.

    Without a registered `end`, raise the error.
    """
    log.critical("node.failed", reason=str(error), exc_info=error)
    if not _ends:
        raise error
    _ends[0]()


def run(action: Callable[[], object]) -> None:
    """Run a callback that others wait for; an error ends the process (`fail`)."""
    try:
        action()
    except Exception as error:
        fail(error)
