"""
SHELL: this node as a pure edge that leaves for good (`txbroker retire`).

`delegation.retirement` has the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from txbroker.delegation.rpc.delegation_base import DelegationBase


class EdgeRetirement:
    """The retirement of a pure edge. `children` are the nodes that have joined it."""

    def __init__(self, base: DelegationBase, children: Callable[[], Collection[str]]) -> None:
        self._node_grant = base.node_grant
        self._departure = base.departure
        self._runner = base.runner
        self._children = children

    async def run(self) -> None:
        """Move all state that other nodes need, and leave the members; raises `RetireError`."""
        node, parent = self._node_grant.node, self._node_grant.parent
        assert parent is not None, "a pure edge has a parent"
        leaving = self._departure.procedures.leave_tree(node, parent, self._children())
        await self._runner.run(leaving)
