"""
SHELL: a root whose data is a copy looks for the root that the data was copied from.

A parent refuses a copied child. A copied root has no parent to refuse the copy. The root would
serve its zone twice, at the same epoch, and adopt the children. So a copied root looks for its twin
before the zone is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc.aio

from txbroker.delegation.node_grant import NodeGrant
from txbroker.rpc.channels import Channels
from txbroker.v1 import control_pb2

PATIENCE = 2.0
"""Seconds in which a living node must answer."""


async def living_twin(
    node_grant: NodeGrant, channels: Channels, addresses: Iterable[str]
) -> str | None:
    """
    Return the address of another living process with this node's data, or None.

    The search asks each of `addresses`, and the parent address that each child names. None: no
    asked address has such a process.
    """
    known = {address for address in addresses if address != node_grant.grpc}
    told = await asyncio.gather(
        *(_status(channels, cut.grpc, cut.node) for cut in node_grant.table.cuts())
    )
    for reply in told:
        if reply is not None and reply.lineage and reply.lineage[-1].node == node_grant.node:
            known.add(reply.lineage[-1].grpc)
    known.discard(node_grant.grpc)
    for address in sorted(known):
        reply = await _status(channels, address, node_grant.node)
        if reply is not None and is_twin(node_grant, reply.who):
            return address
    return None


def is_twin(node_grant: NodeGrant, who: control_pb2.Who) -> bool:
    """True if `who` is another process with this node's data or with a copy of the data."""
    is_same = (who.node, who.identity) == (node_grant.node, node_grant.identity)
    return is_same and who.life != node_grant.life


async def _status(channels: Channels, address: str, node: str) -> control_pb2.StatusReply | None:
    try:
        call = channels.stub(address, node).Status(control_pb2.StatusRequest(), timeout=PATIENCE)
        reply: control_pb2.StatusReply = await call
    except grpc.aio.AioRpcError:
        return None
    return reply
