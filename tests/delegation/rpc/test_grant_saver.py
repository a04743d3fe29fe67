"""Changes that are saved together."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from unittest import mock

from tests.support.cluster import on_loop
from txbroker.delegation.rpc.grant_saver import GrantSaver
from txbroker.runtime.aio import Tasks


class Slow:
    """A standing whose saves take their time."""

    def __init__(self) -> None:
        self.saves = 0
        self.saved = 0
        self.changes = 0

    def save(self) -> None:
        """As one that blocks the loop."""
        time.sleep(0.01)
        self.saves += 1
        self.saved = self.changes


@on_loop
async def test_many_changes_are_few_saves() -> None:
    """A lone one is saved at once; those that come one after the other wait for each other."""
    slow: Any = Slow()
    saving = GrantSaver(slow, Tasks(mock.Mock()))
    slow.changes = 1
    saving.save_soon()
    assert slow.saves == 1
    for _ in range(200):
        slow.changes += 1
        saving.save_soon()
        await asyncio.sleep(0.001)
    assert slow.saves < 50
    while slow.saved != slow.changes:
        await asyncio.sleep(0.01)
