"""
CORE: computes the load of hosts before and after a plan from counted flows.

Three measures exist, all in events per second. *Load* is publishes and deliveries of the topics
that a host owns: order, journal and distribution. *Edge* is publishes and deliveries of the clients
that are connected to the host. *Crossings* are publishes received, and deliveries made, at another
node than the owner. Each crossing is a message on a link, though one such message may serve several
deliveries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import attrs


class PlacedNode(Protocol):
    """A present or planned node, as this module needs it."""

    @property
    def node(self) -> str: ...
    @property
    def zone(self) -> str | None: ...
    @property
    def host(self) -> str: ...


@attrs.frozen(slots=True, kw_only=True)
class Placements:
    """The node of each zone `before` and `after`, and the host of each node."""

    before: Mapping[str, str]
    after: Mapping[str, str]
    hosts: Mapping[str, str]

    @classmethod
    def of(cls, today: Sequence[PlacedNode], new: Sequence[PlacedNode]) -> Placements:
        """Return the placements of present and new nodes."""
        nodes = (*today, *new)
        return cls(
            before={node.zone: node.node for node in today if node.zone is not None},
            after={node.zone: node.node for node in nodes if node.zone is not None},
            hosts={node.node: node.host for node in nodes},
        )


@attrs.frozen(slots=True, kw_only=True)
class TopicFlow:
    """
    Events of topics in zone `before` and, after the plan, zone `after`.

    The clients are connected to `node`, and their best node is `moved`.
    """

    before: str
    after: str
    node: str
    moved: str
    publishes: int
    deliveries: int

    @property
    def events(self) -> int:
        """Publishes and deliveries."""
        return self.publishes + self.deliveries


@attrs.frozen(slots=True, kw_only=True)
class HostLoad:
    """The load of one host in events per second; `zones` is the number of zones of its nodes."""

    host: str
    zones: int
    publishes: float
    deliveries: float
    edge: float

    @property
    def load(self) -> float:
        """Publishes and deliveries per second of the host's own topics."""
        return self.publishes + self.deliveries


@attrs.frozen(slots=True, kw_only=True)
class Crossings:
    """Events per second that cross between nodes, and those of them between hosts."""

    nodes: float
    hosts: float


@attrs.frozen(slots=True, kw_only=True)
class ExpectedLoad:
    """
    The loads of all hosts before and after; `loads` has the load of each zone after the plan.

    `crossings` are those before the plan. `stay` are the crossings after the plan if all clients
    stay at their nodes. `move` are the crossings if each client connects to its best node. `edge`
    of `after` assumes the latter.
    """

    before: tuple[HostLoad, ...]
    after: tuple[HostLoad, ...]
    loads: Mapping[str, float]
    crossings: Crossings
    stay: Crossings
    move: Crossings
    seconds: float

    @property
    def relief(self) -> float:
        """Part of the busiest host's load that remains after the plan."""
        return max(host.load for host in self.after) / max(host.load for host in self.before)


def expect(flows: Iterable[TopicFlow], places: Placements, seconds: float) -> ExpectedLoad:
    """Add up `flows` over `seconds`. An unknown node counts as a host of its own."""
    sums = _Sums(places)
    for flow in flows:
        sums.add(flow)
    return ExpectedLoad(
        before=sums.before.table(places.before, places, seconds),
        after=sums.after.table(places.after, places, seconds),
        loads={zone: sums.zones.get(zone, 0) / seconds for zone in places.after},
        crossings=sums.crossings["before"].rate(seconds),
        stay=sums.crossings["stay"].rate(seconds),
        move=sums.crossings["move"].rate(seconds),
        seconds=seconds,
    )


class _Sums:
    """All sums of one pass over the flows."""

    def __init__(self, places: Placements) -> None:
        self._places = places
        self.before, self.after = _Hosts(), _Hosts()
        self.zones: dict[str, int] = {}
        self.crossings = {name: _Crossed(places) for name in ("before", "stay", "move")}

    def add(self, flow: TopicFlow) -> None:
        """Add one flow to all sums."""
        was, will = self._places.before[flow.before], self._places.after[flow.after]
        self.before.add(self._host(was), self._host(flow.node), flow)
        self.after.add(self._host(will), self._host(flow.moved), flow)
        self.zones[flow.after] = self.zones.get(flow.after, 0) + flow.events
        self.crossings["before"].add(was, flow.node, flow.events)
        self.crossings["stay"].add(will, flow.node, flow.events)
        self.crossings["move"].add(will, flow.moved, flow.events)

    def _host(self, node: str) -> str:
        return self._places.hosts.get(node, node)


class _Hosts:
    """Publishes, deliveries and edge events of each host."""

    def __init__(self) -> None:
        self._sums: dict[str, list[int]] = {}

    def add(self, owner: str, edge: str, flow: TopicFlow) -> None:
        """Add a flow of an owner's host at an edge's host, maybe the same."""
        own = self._sums.setdefault(owner, [0, 0, 0])
        own[0] += flow.publishes
        own[1] += flow.deliveries
        self._sums.setdefault(edge, [0, 0, 0])[2] += flow.events

    def table(
        self, zones: Mapping[str, str], places: Placements, seconds: float
    ) -> tuple[HostLoad, ...]:
        """Return a row for each host that owns a zone or has clients, in order of first mention."""
        counts: dict[str, int] = {}
        for node in zones.values():
            host = places.hosts[node]
            counts[host] = counts.get(host, 0) + 1
        rows = []
        for host in dict.fromkeys((*counts, *sorted(self._sums))):
            publishes, deliveries, edge = self._sums.get(host, (0, 0, 0))
            row = HostLoad(
                host=host,
                zones=counts.get(host, 0),
                publishes=publishes / seconds,
                deliveries=deliveries / seconds,
                edge=edge / seconds,
            )
            rows.append(row)
        return tuple(rows)


class _Crossed:
    """Events between nodes and between hosts."""

    def __init__(self, places: Placements) -> None:
        self._hosts = places.hosts
        self._between_nodes = self._between_hosts = 0

    def add(self, owner: str, edge: str, events: int) -> None:
        """Add events of an owner's topics at an edge."""
        if owner != edge:
            self._between_nodes += events
            if self._hosts.get(owner, owner) != self._hosts.get(edge, edge):
                self._between_hosts += events

    def rate(self, seconds: float) -> Crossings:
        """Return the events per second."""
        return Crossings(nodes=self._between_nodes / seconds, hosts=self._between_hosts / seconds)
