"""
SHELL: this node as a pure edge that leaves for good (`txbroker retire`).

`delegation.retirement` has the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.rpc.node_retirement import NodeRetirement
from txbroker.delegation.rpc.procedure_runner import DelegationRunner


class EdgeRetirement:
    """The retirement of a pure edge. `children` are the nodes that have joined it."""

    def __init__(
        self,
        *,
        node_grant: NodeGrant,
        departure: NodeRetirement,
        runner: DelegationRunner,
        children: Callable[[], Collection[str]],
    ) -> None:
        self._node_grant = node_grant
        self._departure = departure
        self._runner = runner
        self._children = children

    async def run(self) -> None:
        """Move all state that other nodes need, and leave the members; raises `RetireError`."""
        node, parent = self._node_grant.node, self._node_grant.parent
        assert parent is not None, "a pure edge has a parent"
        leaving = self._departure.procedures.leave_tree(node, parent, self._children())
        await self._runner.run(leaving)
