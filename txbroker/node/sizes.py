"""
Composition: how large the tables of a node are that grow with names from outside.

docs/operations.md lists them, with what happens beyond each bound; `tests/test_docs.py` compares.
"""

from __future__ import annotations

from collections.abc import Iterator

from txbroker.authority import peers, reception, wills
from txbroker.authority.authority import Authority
from txbroker.control import channels
from txbroker.delegation import join
from txbroker.directory import clearing, entries, holdings, members
from txbroker.directory import wills as directory_wills
from txbroker.node.edge import EdgeRole
from txbroker.node.ground import Ground
from txbroker.store import retention
from txbroker.sysinfo import Size


class Sizes:
    """The tables of one node; `authority` None: it has no zone."""

    def __init__(self, ground: Ground, edge_role: EdgeRole, authority: Authority | None) -> None:
        self._ground = ground
        self._edge_role = edge_role
        self._authority = authority

    def all(self) -> tuple[Size, ...]:
        """As of now, by name."""
        found = [*self._of_edge(), *self._of_directory(), *self._of_node()]
        if self._authority is not None:
            found += self._of_zone(self._authority)
        return tuple(sorted(found))

    # internal

    def _of_edge(self) -> Iterator[Size]:
        edge, limits = self._edge_role.edge, self._ground.config.limits
        mqtt = self._edge_role.mqtt
        yield Size("connections", len(mqtt.connections), limits.connections)
        yield Size("sessions", len(edge.clients.sessions), limits.sessions)
        yield Size("filters", edge.interests.filters, 0)
        yield Size("filters.asked", edge.interests.asked, 0)
        yield Size("zones", len(list(edge.zones)), limits.cache)
        yield Size("timers", len(mqtt.deadlines), 0)

    def _of_directory(self) -> Iterator[Size]:
        directory, moving = self._edge_role.directory, self._edge_role.moving
        limits = self._ground.config.limits
        yield Size("members", len(self._edge_role.members.all), members.RECORDS)
        yield Size("directory.entries", len(directory.keeper.entries), entries.LIMIT)
        yield Size("directory.own", len(directory.registrar.own), 0)
        yield Size("directory.moved", len(directory.registrar.gone), holdings.LIMIT)
        yield Size("directory.tombstones", len(directory.holdings.gone), holdings.LIMIT)
        yield Size("directory.arriving", len(directory.holdings.arriving), limits.connections)
        yield Size("directory.connected", directory.presence.remembered, 0)
        yield Size("directory.discards", len(directory.clearings), clearing.LIMIT)
        yield Size("directory.left", moving.left, holdings.LIMIT)
        yield Size("wills.own", directory.own_wills.count, 0)
        yield Size("wills.sent", len(directory.sent_wills), directory_wills.SENT_LIMIT)

    def _of_node(self) -> Iterator[Size]:
        ground = self._ground
        yield Size("journal.parts", len(ground.disk.journals.parts), 0)
        yield Size("journal.edges", ground.retention.edges, retention.EDGES)
        yield Size("counters", len(ground.counters.snapshot()), 0)
        yield Size("channels", len(ground.channels), channels.LIMIT)

    def _of_zone(self, authority: Authority) -> Iterator[Size]:
        most_retained, _ = authority.most_retained
        yield Size("retained", len(authority.retained), most_retained)
        yield Size("edges", len(authority.peers), peers.PEERS)
        yield Size("edges.topics", authority.peers.topics, peers.TOPICS_REMEMBERED)
        yield Size("marks", len(authority.marks) - len(authority.wills), reception.MARKS)
        yield Size("wills.taken", len(authority.wills), wills.MOST)
        yield Size("zone.epochs", self._ground.standing.table.apexes, join.APEXES)
