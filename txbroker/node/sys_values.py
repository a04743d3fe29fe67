"""
SHELL: sets the node-local `$SYS` tree (protocol rule 26).

A value has Mosquitto's name if Mosquitto has the value, and `$SYS/txbroker/...` otherwise. The node
sets all values every `EVERY` seconds, retained, for its own clients only. Another node's values
appear below `$SYS/federation/<node>/` while a client of this node has a filter for them. This node
fetches them over the control plane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

import grpc.aio

from txbroker import __version__
from txbroker.authority.authority import Authority
from txbroker.edge.sessions.edge import Edge
from txbroker.edge.sessions.sys_tree import FEDERATION
from txbroker.model.topics import may_match_within
from txbroker.node.node_base import NodeBase
from txbroker.rpc.channels import CALL_TIMEOUT
from txbroker.runtime.structured_log import get_logger
from txbroker.v1 import control_pb2

log = get_logger()

EVERY = 10.0

MOST_FETCHED = 2_000
"""Values of another node that are shown at most; a node has some hundred."""

RATE_WINDOW = 10
"""Samples, one per second, over which rates are averaged."""


class TableSize(NamedTuple):
    """The number of `entries` of a table, and its maximum `most`; 0: other limits bound it."""

    name: str
    entries: int
    most: int


class SysRates:
    """Message rates, per second, from clients and to clients."""

    def __init__(self, edge: Edge, now: Callable[[], float]) -> None:
        self._edge = edge
        self._now = now
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=RATE_WINDOW)

    def sample(self) -> None:
        """Take a sample; the caller calls this once a second."""
        self._samples.append(
            (self._now(), self._edge.clients.received, self._edge.delivery.delivered)
        )

    def rates(self) -> tuple[float, float]:
        """Return the rates (in, out) over the last samples."""
        if not self._samples:
            return 0.0, 0.0
        since, received, delivered = self._samples[0]
        elapsed = max(self._now() - since, 0.001)
        return (
            (self._edge.clients.received - received) / elapsed,
            (self._edge.delivery.delivered - delivered) / elapsed,
        )


class NodeFigures(NamedTuple):
    """What a node measures of itself: rates of messages, and the sizes of its tables."""

    rates: SysRates
    sizes: Callable[[], Iterable[TableSize]]


class SysValues:
    """Sets the `$SYS` values of a node, and fetches those of other nodes."""

    def __init__(
        self,
        node_base: NodeBase,
        *,
        edge: Edge,
        authority: Authority | None,
        figures: NodeFigures,
        clients: Callable[[], int],
    ) -> None:
        self._node_base = node_base
        self._edge = edge
        self._authority = authority
        self._figures = figures
        self._clients = clients
        self._started = node_base.reactor.seconds()
        self._fetched: dict[str, set[str]] = {}

    def values(self) -> dict[str, str]:
        """Return the present values: topic to payload."""
        edge, authority = self._edge, self._authority
        rate_in, rate_out = self._figures.rates.rates()
        sessions = edge.clients.sessions.values()
        values = {
            "broker/version": f"txbroker version {__version__}",
            "broker/uptime": f"{self._node_base.reactor.seconds() - self._started:.0f} seconds",
            "broker/clients/connected": str(self._clients()),
            "broker/clients/total": str(len(edge.clients.sessions)),
            "broker/clients/disconnected": str(sum(s.sink is None for s in sessions)),
            "broker/messages/received": str(edge.clients.received),
            "broker/messages/sent": str(edge.delivery.delivered),
            "broker/publish/messages/received": str(edge.clients.received),
            "broker/publish/messages/sent": str(edge.delivery.delivered),
            "broker/subscriptions/count": str(sum(len(s.subscriptions) for s in sessions)),
            "txbroker/sessions/dropped": str(sum(s.sender.dropped for s in sessions)),
            "txbroker/store/syncs": str(self._node_base.data_directory.committer.syncs),
            "txbroker/store/size": str(self._node_base.data_directory.size),
            "txbroker/disk/free": str(self._node_base.watermark.free),
            "txbroker/disk/short": str(self._node_base.watermark.is_short).lower(),
            "broker/load/messages/received/rate": f"{rate_in:.2f}",
            "broker/load/messages/sent/rate": f"{rate_out:.2f}",
        }
        if authority is not None:
            values |= self._zone_values(authority)
        pending = edge.interests.pending_by_zone()
        values["txbroker/interests/pending"] = str(sum(pending.values()))
        for route in edge.zones:
            if route.is_needed or route.port is not None:
                values[f"txbroker/links/{route.apex or '(root)'}/state"] = route.state.told
        for name, count in edge.counters.snapshot().items():
            values[f"txbroker/count/{name}"] = str(count)
        for size in self._figures.sizes():
            values[f"txbroker/tables/{size.name}"] = str(size.entries)
        return {f"$SYS/{name}": value for name, value in values.items()}

    def _zone_values(self, authority: Authority) -> dict[str, str]:
        reclaimed = self._node_base.node_grant.table.reclaimed()
        return {
            "broker/retained messages/count": str(len(authority.retained)),
            "txbroker/zone/apex": authority.apex or "(root)",
            "txbroker/zone/epoch": str(authority.epoch),
            "txbroker/zone/serving": str(authority.serving).lower(),
            "txbroker/zone/offset": str(authority.offset),
            "txbroker/zone/divergent": str(self._node_base.node_grant.divergent),
            "txbroker/zone/reclaimed": " ".join(cut.apex for cut in reclaimed),
            "txbroker/journal/held": str(self._node_base.retention.held_size),
            "txbroker/journal/held/by": " ".join(
                f"{one.edge}/{one.client_id}" for one in self._node_base.retention.held()
            ),
            "txbroker/count/link.dropped.unclaimed_qos0": str(authority.unclaimed_qos0),
        }

    def refresh(self) -> None:
        """Set the node's own values."""
        for topic, value in self.values().items():
            self._edge.sys.set(topic, value)

    async def fetch(self) -> None:
        """Fetch other nodes' values that a client has a filter for; remove all others."""
        wanted = self._edge.sys.federation_filters()
        nodes = await self._nodes() if wanted else {}
        for node in list(self._fetched):
            if not _is_wanted(node, wanted) or node not in nodes:
                self._forget(node)
        for node, address in nodes.items():
            if _is_wanted(node, wanted):
                await self._fetch_from(node, address)

    async def _nodes(self) -> dict[str, str]:
        """Return the control address of every zone's node by name, by a walk from the root."""
        edge = self._edge
        waiting = [(r.cut.node, r.cut.grpc) for r in edge.zones if r.cut is not None]
        nodes: dict[str, str] = {}
        while waiting:
            node, address = waiting.pop()
            if node in nodes:
                continue
            nodes[node] = address
            try:
                reply = await self._node_base.channels.stub(address).Status(
                    control_pb2.StatusRequest(), timeout=CALL_TIMEOUT
                )
            except grpc.aio.AioRpcError:
                continue
            waiting.extend((child.zone.node, child.zone.grpc) for child in reply.children)
        return nodes

    async def _fetch_from(self, node: str, address: str) -> None:
        try:
            reply = await self._node_base.channels.stub(address).Sys(
                control_pb2.SysRequest(), timeout=CALL_TIMEOUT
            )
        except grpc.aio.AioRpcError as error:
            log.debug("sys.unreachable", peer=node, code=error.code().name)
            self._forget(node)
            return
        topics = set()
        for topic, value in islice(reply.values.items(), MOST_FETCHED):
            mirrored = f"{FEDERATION}/{node}/{topic.removeprefix('$SYS/')}"
            topics.add(mirrored)
            self._edge.sys.set(mirrored, value)
        for topic in self._fetched.get(node, set()) - topics:
            self._edge.sys.set(topic, None)
        self._fetched[node] = topics

    def _forget(self, node: str) -> None:
        for topic in self._fetched.pop(node, ()):
            self._edge.sys.set(topic, None)


def _is_wanted(node: str, filters: Iterable[str]) -> bool:
    return any(may_match_within(f, f"{FEDERATION}/{node}") for f in filters)
