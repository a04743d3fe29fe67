"""Composition: a node as the owner of its zone; a pure edge lacks this role."""

from __future__ import annotations

from functools import partial

from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import EdgePeer
from txbroker.authority.store.offset_reservation import OffsetReservation
from txbroker.authority.store.zone_store import ZoneStore
from txbroker.data.data_directory import wall
from txbroker.delegation.rpc.zone_lifecycle import ZoneLifecycle
from txbroker.edge.local.local_link import LocalLink
from txbroker.edge.sessions.edge import Edge
from txbroker.link.listener import LinkListener
from txbroker.node.node_base import NodeBase


class OwnerRole:
    """The authority for the zone `apex`, its zone store, and the links of other edges to it."""

    holding: ZoneLifecycle
    links: LinkListener

    def __init__(self, ground: NodeBase, apex: str) -> None:
        self._ground = ground
        self.store = self._build_store(apex)
        self.authority = Authority(apex, ground.standing.table, self.store, ground.router)
        self.authority.wills.node = ground.config.node
        self.authority.wills.expect(ground.config.will_after)
        self.store.wire(self.authority)
        self.authority.on_not_retained = lambda: ground.counters.add("retained.over_limit")
        self.apply()

    def apply(self) -> None:
        """Apply the limits of the topology file."""
        retained = self._ground.config.limits.retained
        self.authority.most_retained = (retained.messages, retained.bytes)

    def wire(self, edge: Edge) -> None:
        """Connect the edge of the same node, which needs no link."""
        ground = self._ground
        self.store.wire_slices(partial(edge.slices.start, self.store))
        own_zone = LocalLink(edge, self.authority, ground.pressure)
        ground.sockets.wire_zone(own_zone.way_through, own_zone.leave, EdgePeer.sender)
        self.holding = ZoneLifecycle(
            standing=ground.standing,
            authority=self.authority,
            own_zone=own_zone,
            disk=ground.disk,
            retention=ground.retention,
            timers=ground.timers,
            turn=ground.turn,
        )
        self.links = LinkListener(
            authority=self.authority,
            pressure=ground.pressure,
            space=ground.space,
            counters=ground.counters,
            turn=ground.turn,
            clock=ground.reactor,
            max_links=ground.config.limits.links,
            strangers=ground.strangers,
            shares=ground.shares,
        )

    def _build_store(self, apex: str) -> ZoneStore:
        ground, config = self._ground, self._ground.config
        return ZoneStore(
            node=config.node,
            zone=apex,
            disk=ground.disk,
            now=wall,
            retention=ground.retention,
            ceiling=OffsetReservation(
                ground.disk.tables.table("zone"),
                ground.counters,
                survives_kill=config.durability != "memory",
            ),
            keeps_qos0=config.journal == "all",
            is_short=lambda: ground.space.is_short,
            counters=ground.counters,
        )
