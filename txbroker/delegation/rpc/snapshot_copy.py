"""SHELL: the steps of a snapshot copy that a handover and a hand-back share."""

from __future__ import annotations

import asyncio

from txbroker.authority.authority import Authority
from txbroker.delegation.rpc.timeouts import HANDOVER_STEP
from txbroker.delegation.state.node_grant import NodeGrant
from txbroker.delegation.state.received_zone_file import StagedZone
from txbroker.runtime.aio import wait_until


async def settled(authority: Authority) -> None:
    """Return when all accepted publishes are durable and delivered; raises `TimeoutError`."""
    done = asyncio.Event()
    authority.in_order(done.set)
    await asyncio.wait_for(done.wait(), HANDOVER_STEP)


async def receive(node_grant: NodeGrant, staged_zone: StagedZone) -> None:
    """
    Make a zone's complete received state durable; raises `StoreError`, `TimeoutError`.

    The disk has one place for received state: the store must absorb an earlier zone first.
    """
    if not await wait_until(lambda: node_grant.absorbing is None, HANDOVER_STEP):
        raise TimeoutError("the store has not taken in an earlier zone yet")
    await asyncio.to_thread(node_grant.receive, staged_zone)
