"""Composition: a node as the owner of its zone; a pure edge lacks this role."""

from __future__ import annotations

from functools import partial

from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import EdgePeer
from txbroker.authority.store.offset_reservation import OffsetReservation
from txbroker.authority.store.zone_store import Qos0Rule, RecordOrigin, ZoneStore
from txbroker.delegation.rpc.zone_lifecycle import ZoneLifecycle
from txbroker.edge.groups.group_coordinators import GroupCoordinators, GroupNodes
from txbroker.edge.local.local_link import LocalLink
from txbroker.link.listener import LinkListener
from txbroker.node.edge_role import EdgeRole
from txbroker.node.node_base import NodeBase


class OwnerRole:
    """The authority for the zone `apex`, its zone store, and the links of other edges to it."""

    holding: ZoneLifecycle
    links: LinkListener
    groups: GroupCoordinators

    def __init__(self, node_base: NodeBase, apex: str) -> None:
        self._node_base = node_base
        self.store = self._build_store(apex)
        self.authority = Authority(apex, node_base.node_grant.table, self.store, node_base.router)
        self.authority.wills.node = node_base.config.node
        self.authority.wills.expect(node_base.config.will_after)
        self.store.wire(self.authority)
        self.authority.on_not_retained = lambda: node_base.counters.add("retained.over_limit")
        self.apply()

    def apply(self) -> None:
        """Apply the keys of the topology file that may change while the node runs."""
        config, authority = self._node_base.config, self.authority
        retained = config.limits.retained
        authority.most_retained = (retained.messages, retained.bytes)
        authority.expiry.set((one.filter, one.after) for one in config.expiry)
        authority.held.set(config.hold_first)

    def wire(self, edge_role: EdgeRole) -> None:
        """Connect the edge of the same node, which needs no link."""
        node_base, edge, mqtt = self._node_base, edge_role.edge, edge_role.mqtt
        self.groups = GroupCoordinators(
            edge=edge,
            connects=mqtt.connects,
            timers=node_base.timers,
            reporter=edge_role.reporter,
            mark_dirty=node_base.flush_queue.mark_dirty,
            nodes=GroupNodes(
                is_leaving=lambda: mqtt.is_leaving,
                is_removed=edge_role.members.is_removed,
                has_absent_edge=self._has_absent_edge,
            ),
        )
        self.store.checkpoint.wire_slices(partial(edge.slices.start, self.store.checkpoint))
        own_zone = LocalLink(edge, self.authority, node_base.backpressure)
        own_zone.wire(self.groups)
        node_base.sockets.wire_zone(own_zone.way_through, own_zone.deliver_rest, EdgePeer.sender)
        self.holding = ZoneLifecycle(
            node_grant=node_base.node_grant,
            own_zone=own_zone,
            data_directory=node_base.data_directory,
            retention=node_base.retention,
            timers=node_base.timers,
            flush_queue=node_base.flush_queue,
        )
        self.links = LinkListener(
            node_base.connection_parts,
            authority=self.authority,
            groups=self.groups,
            watermark=node_base.watermark,
            max_links=node_base.config.limits.links,
        )

    def _has_absent_edge(self) -> bool:
        """True if an edge with low-water marks here has not connected to this process."""
        peers = (self.authority.peers.get(one) for one in self._node_base.retention.live_edges())
        return any(peer is None or not peer.has_come for peer in peers)

    def _build_store(self, apex: str) -> ZoneStore:
        node_base, config = self._node_base, self._node_base.config
        return ZoneStore(
            apex,
            data_directory=node_base.data_directory,
            origin=RecordOrigin(config.node),
            retention=node_base.retention,
            ceiling=OffsetReservation(
                node_base.data_directory.tables.table("zone"),
                node_base.counters,
                survives_kill=config.durability != "memory",
            ),
            qos0=Qos0Rule(
                are_stored=config.journal == "all",
                is_short=lambda: node_base.watermark.is_short,
                counters=node_base.counters,
            ),
        )
