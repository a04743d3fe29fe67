"""
SHELL: saves several changes of the node grant together.

A child's report of cuts far below decides nothing, and the child repeats the report to a parent
that restarted. So such a report may wait for the next save, where the grant is large. A save that
fails meanwhile, of whatever change, takes the report back, and the child has to repeat it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from txbroker.delegation.node_grant import NodeGrant
from txbroker.model.errors import StoreError
from txbroker.model.timers import Timers
from txbroker.runtime.aio import Tasks
from txbroker.runtime.structured_log import get_logger

log = get_logger()

REST = 10
"""The pause between two saves is at least this multiple of the last save's duration."""


RETRY = 1.0
"""Seconds until the next attempt to save a state that could not be saved."""


class GrantSaver:
    """
    Saves the node grant soon: at once if the last save is long past.

    `on_undone` runs when changes that waited were taken back.
    """

    def __init__(
        self, node_grant: NodeGrant, tasks: Tasks, *, on_undone: Callable[[], None]
    ) -> None:
        self._node_grant = node_grant
        self._tasks = tasks
        self._on_undone = on_undone
        self._due = 0.0
        self._is_waiting = False

    def save_soon(self) -> None:
        """
        Make the changes durable, now or after the pause; raises `StoreError` if the save of now
        fails.
        """
        if self._is_waiting:
            return
        wait = self._due - time.monotonic()
        if wait <= 0:
            self._save()
            return
        self._is_waiting = True
        self._tasks.start(self._save_later(wait, self._node_grant.undone))

    async def _save_later(self, wait: float, undone: int) -> None:
        await asyncio.sleep(wait)
        self._is_waiting = False
        try:
            self._save()
        except StoreError as error:
            log.error("state.write_failed", reason=str(error))
        if self._node_grant.undone > undone:
            self._on_undone()

    def _save(self) -> None:
        begun = time.monotonic()
        try:
            self._node_grant.save()
        finally:
            now = time.monotonic()
            self._due = now + REST * (now - begun)


def save_in_time(save: Callable[[], None], timers: Timers) -> None:
    """Run `save`, which changes the node grant, until the disk has room for the state."""
    try:
        save()
    except StoreError as error:
        log.error("state.write_failed", reason=str(error))
        timers.call_later(RETRY, partial(save_in_time, save, timers))
