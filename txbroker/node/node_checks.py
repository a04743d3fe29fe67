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

    def __init__(self, node_base: NodeBase, edge_role: EdgeRole, owner: OwnerRole | None) -> None:
        self._node_base = node_base
        self._edge_role = edge_role
        self._owner = owner

    def start(self, heart: PeriodicTasks) -> None:
        """Check from now on, where the flush queue does; a broken rule ends the node."""
        flush_queue = self._node_base.flush_queue
        if not isinstance(flush_queue, CheckedFlushQueue):
            return
        flush_queue.ending.append(self._edge_role.edge.session_store.check_changed)
        if self._owner is not None:
            flush_queue.ended += (self._owner.store.check, self._owner.authority.check_order)
        heart.every(BEAT, lambda: hooks.run(self.check))

    def check(self) -> None:
        """State every rule that this node keeps."""
        for part in self._parts():
            part.check()
        self._check_owner()

    # internal

    def _parts(self) -> Iterator[Checked]:
        node_base = self._node_base
        yield node_base.node_grant
        yield node_base.data_directory.committer
        yield from node_base.data_directory.journals.parts.values()
        yield node_base.retention
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
        authority, node_grant = self._owner.authority, self._node_base.node_grant
        holds(self, 11, "who serves a zone holds it", node_grant.holds, authority.apex)
        is_now = authority.epoch == node_grant.epoch
        holds(self, 11, "a zone is served at its epoch", is_now, authority.epoch, node_grant.epoch)
