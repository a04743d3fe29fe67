"""Composition: what a node that checks itself looks at, after each turn and each second."""

from __future__ import annotations

from collections.abc import Iterator

from txbroker.model.invariant import Checked, holds
from txbroker.node.edge_role import EdgeRole
from txbroker.node.node_base import NodeBase
from txbroker.node.owner_role import OwnerRole
from txbroker.runtime import hooks
from txbroker.runtime.checked_turns import CheckedFlushQueue
from txbroker.runtime.periodic import BEAT, PeriodicTasks


class NodeChecks:
    """The rules of docs/protocol.md as one node keeps them; `owner` None: a pure edge."""

    def __init__(self, ground: NodeBase, edge_role: EdgeRole, owner: OwnerRole | None) -> None:
        self._ground = ground
        self._edge_role = edge_role
        self._owner = owner

    def start(self, heart: PeriodicTasks) -> None:
        """Check from now on, where the flush queue does; a broken rule ends the node."""
        turn = self._ground.turn
        if not isinstance(turn, CheckedFlushQueue):
            return
        turn.ending.append(self._edge_role.edge.keeper.check_changed)
        if self._owner is not None:
            turn.ended += (self._owner.store.check, self._owner.authority.check_order)
        heart.every(BEAT, lambda: hooks.run(self.check))

    def check(self) -> None:
        """State every rule that this node keeps."""
        for part in self._parts():
            part.check()
        self._check_owner()

    # internal

    def _parts(self) -> Iterator[Checked]:
        ground = self._ground
        yield ground.standing
        yield ground.disk.committer
        yield from ground.disk.journals.parts.values()
        yield ground.retention
        yield self._edge_role.edge
        yield self._edge_role.directory
        links: list[object] = [route.port for route in self._edge_role.edge.zones]
        if self._owner is not None:
            yield self._owner.store
            yield self._owner.authority
            links += self._owner.authority.peers.ports()
        yield from (link for link in links if isinstance(link, Checked))

    def _check_owner(self) -> None:
        """State that the node serves what it holds, and nothing else."""
        if self._owner is None or not self._owner.authority.serving:
            return
        authority, standing = self._owner.authority, self._ground.standing
        holds(self, 11, "who serves a zone holds it", standing.holds, authority.apex)
        is_now = authority.epoch == standing.epoch
        holds(self, 11, "a zone is served at its epoch", is_now, authority.epoch, standing.epoch)
