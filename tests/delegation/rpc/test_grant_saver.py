"""Changes that are saved together."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from unittest import mock

import pytest

from tests.support.cluster import on_loop
from tests.support.recorders import cut
from txbroker.delegation.grant_state import NodeState
from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.rpc.grant_saver import GrantSaver
from txbroker.model.errors import StoreError
from txbroker.runtime.aio import Tasks


class Slow:
    """A standing whose saves take their time."""

    def __init__(self) -> None:
        self.saves = 0
        self.saved = 0
        self.changes = 0
        self.undone = 0

    def save(self) -> None:
        """As one that blocks the loop."""
        time.sleep(0.01)
        self.saves += 1
        self.saved = self.changes


@on_loop
async def test_many_changes_are_few_saves() -> None:
    """A lone one is saved at once; those that come one after the other wait for each other."""
    slow: Any = Slow()
    saving = GrantSaver(slow, Tasks(mock.Mock()), on_undone=mock.Mock())
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


class Full:
    """A disk that takes a state only where it `has_room`."""

    def __init__(self) -> None:
        self.has_room = True
        self.incoming = mock.Mock(load=lambda: None)

    def save(self, state: NodeState) -> None:
        time.sleep(0.01)
        if not self.has_room:
            raise StoreError("no room")


@pytest.mark.parametrize("fails", ["its own save", "another save", "none"])
@on_loop
async def test_changes_that_a_failed_save_took_back_are_told(fails: str) -> None:
    """The children have to repeat them. Otherwise this node never hears of the cuts again."""
    disk = Full()
    state = NodeState(node="home", zone="", epoch=1, serving=True)
    node_grant = NodeGrant(disk, state, "home:1", None, draw=lambda most: 0)
    node_grant.table.commit(cut("a", epoch=1), (), 0)
    undone = mock.Mock()
    saving = GrantSaver(node_grant, Tasks(mock.Mock()), on_undone=undone)
    saving.save_soon()

    assert node_grant.table.store_cuts_below("a", 1, [cut("a/b", epoch=1)])
    saving.save_soon()
    if fails != "none":
        disk.has_room = False
    if fails == "another save":
        with pytest.raises(StoreError):
            node_grant.save()
        disk.has_room = True
    await asyncio.sleep(0.5)
    is_known = node_grant.table.epoch_of("a/b") > 0
    assert (fails == "none", fails != "none") == (is_known, undone.called)
