"""Composition: encodes the status of a node, which `txbroker tree` shows."""

from __future__ import annotations

from txbroker import __version__
from txbroker.authority.authority import Authority
from txbroker.delegation.rpc.children import who_to_wire
from txbroker.delegation.rpc.join_server import JoinServer
from txbroker.node.edge_role import EdgeRole
from txbroker.node.node_base import NodeBase
from txbroker.node.session_listing import HELD_SHOWN, held, losses
from txbroker.node.sys_values import NodeFigures
from txbroker.rpc.link_convert import cut_to_wire
from txbroker.runtime.sockets.listeners import Listeners
from txbroker.storage.lived_time import wall
from txbroker.v1 import control_pb2


class NodeStatus:
    """Collects the status of all parts of one node."""

    def __init__(
        self,
        node_base: NodeBase,
        edge_role: EdgeRole,
        *,
        authority: Authority | None,
        parent: JoinServer,
        figures: NodeFigures,
        listeners: Listeners,
    ) -> None:
        self._node_base = node_base
        self._authority = authority
        self._edge = edge_role.edge
        self._mqtt = edge_role.mqtt
        self._parent = parent
        self._figures = figures
        self._listeners = listeners

    def reply(self) -> control_pb2.StatusReply:
        """Return the present status."""
        node_grant, authority = self._node_base.node_grant, self._authority
        rate_in, rate_out = self._figures.rates.rates()
        reply = control_pb2.StatusReply(
            node=node_grant.node,
            owns_zone=node_grant.zone is not None,
            zone=cut_to_wire(node_grant.cut),
            serving=authority is not None and authority.serving,
            clients=len(self._mqtt.connections),
            rate_in=rate_in,
            rate_out=rate_out,
            lineage=[cut_to_wire(cut) for cut in node_grant.lineage],
            version=__version__,
            counters=self._node_base.counters.snapshot(),
            divergent=node_grant.divergent,
            reclaimed=[cut_to_wire(cut) for cut in node_grant.table.reclaimed()],
            losses=losses(self._edge.clients.sessions.values()),
            mqtt=self._listeners.clients_at,
            who=who_to_wire(node_grant),
            held_size=self._node_base.retention.held_size,
            held=held(self._node_base.retention.held(HELD_SHOWN), wall() / 1e6),
        )
        self._add_children(reply)
        for size in self._figures.sizes():
            reply.tables.add(name=size.name, entries=size.entries, most=size.most)
        for zone, filters in self._edge.interests.pending_by_zone().items():
            reply.pending.add(zone=zone, filters=filters)
        return reply

    def _add_children(self, reply: control_pb2.StatusReply) -> None:
        """Add delegated zones, whether their nodes are connected or not, then pure edges."""
        for delegation in self._node_base.node_grant.table.delegations():
            reply.children.add(
                zone=cut_to_wire(delegation.cut),
                owns_zone=True,
                alive=self._parent.is_alive(delegation.cut.node),
                below=[cut_to_wire(cut) for cut in delegation.below],
            )
        for child in self._parent.children.values():
            if child.zone is None:
                edge = control_pb2.Child(owns_zone=False, alive=True)
                edge.zone.node, edge.zone.grpc = child.node, child.grpc
                reply.children.append(edge)
