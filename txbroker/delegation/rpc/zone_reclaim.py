"""
SHELL: this node as a parent from which an operator reclaims a dead node's zone.

`delegation.reclaim_parent` has the steps.
"""

from __future__ import annotations

from collections.abc import Callable

from txbroker.delegation.reclaim_parent import Reclaim
from txbroker.delegation.rpc.delegation_base import DelegationBase
from txbroker.delegation.rpc.join_server import JoinServer


class ZoneReclaim:
    """Reclaims zones by command."""

    def __init__(
        self, base: DelegationBase, *, parent: JoinServer, on_granted: Callable[[], None]
    ) -> None:
        self._parent = parent
        self._runner = base.runner
        self._on_granted = on_granted
        self._procedure = Reclaim(
            node_grant=base.node_grant,
            zone=base.authority,
            node=self,
            ownership=base.ownership,
        )

    async def reclaim(self, zone: str, epoch: int) -> int:
        """
        Reclaim a dead node's zone; return the epoch at which this node serves it from now on.

        `epoch` is the epoch that the operator has seen. Raises `ReclaimError`, `StoreError`.
        """
        return await self._runner.run(self._procedure.reclaim(zone, epoch))

    # from the procedure

    def is_alive(self, node: str) -> bool:
        """True if the node's join stream is up."""
        return self._parent.is_alive(node)

    def serve_below(self, apex: str) -> None:
        """Announce the delegations below an apex to edges, and this node to their nodes."""
        self._parent.serve_below(apex)

    def serve_grant(self) -> None:
        """Serve the own zone at the epoch of the node grant, from this turn on."""
        self._on_granted()
