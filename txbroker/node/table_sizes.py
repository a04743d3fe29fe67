"""
Composition: reports the size of each table of a node that grows with names from outside.

docs/operations.md lists the tables and the effect of each bound; `tests/test_docs.py` compares.
"""

from __future__ import annotations

from collections.abc import Iterator

from txbroker.authority import accepted_wills, edge_peers, edge_registry
from txbroker.authority.authority import Authority
from txbroker.delegation import join_rules
from txbroker.directory import discard_table, entry_table, members, session_ownership
from txbroker.directory.rpc import request_server
from txbroker.directory.sent_wills import SENT_LIMIT
from txbroker.edge.groups import group_coordinators
from txbroker.edge.sessions import session_store
from txbroker.journal.store import retention
from txbroker.mqtt.transport.service import MOST_SURPLUS
from txbroker.node.edge_role import EdgeRole
from txbroker.node.node_base import NodeBase
from txbroker.node.owner_role import OwnerRole
from txbroker.node.sys_values import TableSize
from txbroker.rpc import channels


class TableSizes:
    """The tables of one node; `owner_role` is None for a pure edge."""

    def __init__(
        self, node_base: NodeBase, edge_role: EdgeRole, owner_role: OwnerRole | None
    ) -> None:
        self._node_base = node_base
        self._edge_role = edge_role
        self._owner_role = owner_role

    def all(self) -> tuple[TableSize, ...]:
        """Return the present sizes, sorted by name."""
        found = [*self._of_edge(), *self._of_directory(), *self._of_node()]
        if self._owner_role is not None:
            found += self._of_zone(self._owner_role.authority)
            groups = self._owner_role.groups.groups
            found.append(TableSize("groups.coordinated", groups, group_coordinators.GROUPS))
        return tuple(sorted(found))

    # internal

    def _of_edge(self) -> Iterator[TableSize]:
        edge, limits = self._edge_role.edge, self._node_base.config.limits
        mqtt = self._edge_role.mqtt
        yield TableSize("connections", len(mqtt.connections), limits.connections)
        yield TableSize("connections.surplus", len(mqtt.surplus), MOST_SURPLUS)
        yield TableSize("sessions", len(edge.clients.sessions), limits.sessions)
        yield TableSize("filters", edge.interests.filters, 0)
        yield TableSize("filters.asked", edge.interests.awaiting_count, 0)
        yield TableSize("zones", len(list(edge.zones)), limits.cache)
        yield TableSize("groups", edge.shared.groups, 0)
        noted = edge.clients.session_store.noted_groups
        yield TableSize("groups.noted", len(noted), session_store.GROUPS)
        yield TableSize("timers", len(mqtt.deadlines), 0)

    def _of_directory(self) -> Iterator[TableSize]:
        directory, transfer = self._edge_role.directory, self._edge_role.transfer
        limits = self._node_base.config.limits
        yield TableSize("members", len(self._edge_role.members.all), members.RECORDS)
        yield TableSize("directory.entries", len(directory.replica.entries), entry_table.LIMIT)
        yield TableSize("directory.own", len(directory.replicator.own), 0)
        yield TableSize("directory.moved", len(directory.replicator.gone), session_ownership.LIMIT)
        yield TableSize(
            "directory.tombstones", len(directory.ownership.tombstone_ids), session_ownership.LIMIT
        )
        yield TableSize("directory.arriving", len(directory.ownership.arriving), limits.connections)
        yield TableSize("directory.connected", directory.connected.remembered, 0)
        yield TableSize("directory.discards", len(directory.clearings), discard_table.LIMIT)
        finished = directory.clearings.pending.finished_count
        yield TableSize("directory.discarded", finished, discard_table.LIMIT)
        yield TableSize("directory.left", transfer.unfinished_count, session_ownership.LIMIT)
        yield TableSize("directory.sites", len(directory.root_merge), members.LIMIT)
        opened, served = self._edge_role.directory_shell.stream_counts
        yield TableSize("directory.streams", opened, 0)
        yield TableSize("directory.streams.served", served, request_server.STREAMS)
        yield TableSize("wills.own", directory.own_wills.count, 0)
        yield TableSize("wills.sent", len(directory.sent_wills), SENT_LIMIT)

    def _of_node(self) -> Iterator[TableSize]:
        node_base = self._node_base
        yield TableSize("journal.parts", len(node_base.data_directory.journals.parts), 0)
        yield TableSize("journal.edges", node_base.retention.edges, retention.EDGES)
        yield TableSize("counters", len(node_base.counters.snapshot()), 0)
        yield TableSize("channels", len(node_base.channels), channels.LIMIT)

    def _of_zone(self, authority: Authority) -> Iterator[TableSize]:
        most_retained, _ = authority.most_retained
        yield TableSize("retained", len(authority.retained), most_retained)
        yield TableSize("edges", len(authority.peers), edge_peers.PEERS)
        yield TableSize("edges.topics", authority.peers.topics, edge_peers.TOPICS_REMEMBERED)
        yield TableSize("marks", len(authority.marks) - len(authority.wills), edge_registry.MARKS)
        yield TableSize("wills.taken", len(authority.wills), accepted_wills.MOST)
        yield TableSize("zone.epochs", self._node_base.node_grant.table.apexes, join_rules.APEXES)
