"""
SHELL: a node that checks itself, for the fault harness and for whoever looks for a bug.

With `TXBROKER_CHECK=1` a node states the rules of docs/protocol.md while it works. After each turn
it checks what the turn has changed, and once a second everything. A broken rule ends the node.
Without the variable no object here is made, and a message passes no branch for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from txbroker.model.invariant import Checked
from txbroker.runtime import hooks
from txbroker.runtime.flush_queue import Flushable, FlushQueue

VARIABLE = "TXBROKER_CHECK"


def is_asked() -> bool:
    """True if the environment asks this process to check itself."""
    return os.environ.get(VARIABLE) == "1"


class CheckedFlushQueue(FlushQueue):
    """
    A flush queue that checks, at the end of a turn, whoever had output in it.

    `ending` are checks of what a turn leaves to its flush, `ended` of what holds after that.
    """

    def __init__(self, later: Callable[[Callable[[], None]], object]) -> None:
        super().__init__(later)
        self._changed: dict[Flushable, None] = {}
        self.ending: list[Callable[[], None]] = []
        self.ended: list[Callable[[], None]] = []

    def mark_dirty(self, end: Flushable) -> None:
        """Note that the end has output, as each flush queue does."""
        self._changed[end] = None
        super().mark_dirty(end)

    def _flush(self) -> None:
        if not self._dirty:
            return
        self._run(self.ending)
        super()._flush()
        changed, self._changed = self._changed, {}
        self._run(end.check for end in changed if isinstance(end, Checked))
        self._run(self.ended)

    def _run(self, checks: Iterable[Callable[[], None]]) -> None:
        for check in checks:
            hooks.run(check)


def make_flush_queue(later: Callable[[Callable[[], None]], object]) -> FlushQueue:
    """The flush queue of a node: one that checks where that is asked for."""
    return CheckedFlushQueue(later) if is_asked() else FlushQueue(later)
