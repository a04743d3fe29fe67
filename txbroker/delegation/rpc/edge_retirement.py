"""
SHELL: this node as a pure edge that leaves for good (`txbroker retire`).

A pure edge has no zone to give back. `NodeRetirement` moves its other state as for a zone's node:
the sessions go to the parent. Then the parent records durably that the node is no member.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import grpc.aio

from txbroker.delegation.rpc.node_retirement import NodeRetirement, RetireError
from txbroker.delegation.state.node_grant import NodeGrant
from txbroker.directory.members import Members
from txbroker.rpc.channels import CALL_TIMEOUT, Channels
from txbroker.rpc.streams import describe
from txbroker.runtime.structured_log import get_logger
from txbroker.v1 import control_pb2

log = get_logger()


class EdgeRetirement:
    """
    One retirement of a pure edge; call `run` once. `children` are the nodes that have joined it.
    """

    def __init__(
        self,
        *,
        node_grant: NodeGrant,
        members: Members,
        channels: Channels,
        departure: NodeRetirement,
        children: Callable[[], Collection[str]],
    ) -> None:
        self._node_grant = node_grant
        self._members = members
        self._channels = channels
        self._departure = departure
        self._children = children

    async def run(self) -> None:
        """Move all state that other nodes need, and leave the members; raises `RetireError`."""
        node_grant = self._node_grant
        assert node_grant.parent is not None, "a pure edge has a parent"
        parent = self._channels.stub(node_grant.parent)
        below = sorted(self._children())
        if below:
            raise RetireError(f"node {below[0]!r} has joined here; give it another `parent` first")
        is_done = False
        try:
            status = await parent.Status(control_pb2.StatusRequest(), timeout=CALL_TIMEOUT)
            if self._members.get(status.node) is None:
                raise RetireError(f"node {node_grant.node!r} has not joined its parent yet")
            if not status.HasField("who"):
                raise RetireError(
                    f"parent {node_grant.parent} runs an earlier txbroker, which lets no node "
                    "without"
                    " a zone go; upgrade it first"
                )
            await self._departure.clear(status.node)
            self._departure.resign()
            await self._departure.await_durable()
            request = control_pb2.ForgetRequest(node=node_grant.node, leaves=True)
            reply = await parent.Forget(request, timeout=CALL_TIMEOUT)
            if not reply.done:
                raise RetireError(reply.reason)
            is_done = True
        except grpc.aio.AioRpcError as error:
            reason = describe(error)
            raise RetireError(f"parent {node_grant.parent} cannot be reached: {reason}") from error
        finally:
            if not is_done:
                self._departure.undo()
        log.info("edge.retired", heir=status.node)
