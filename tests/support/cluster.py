"""
A tree of nodes in this process, over real loopback sockets.

    async with Cluster(tmp_path, {"root": "", "a": "a", "edge": None}) as cluster:
        client = await cluster.client("a")

The parent of a node is the node of the deepest zone above its own, unless told otherwise. Each node
checks itself (`runtime/checked_turns.py`). All events that the nodes log are in `events`. An event
of level error, a traceback, or a broken rule fails the test at the end. `tap` sees every message
that passes a link.

The module builds, starts and stops nodes, waits and counts. It does not say what is expected.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import os
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from unittest import mock

import attrs
import structlog
import yaml
from twisted.internet.defer import Deferred

from txbroker.config import load_file
from txbroker.link.frames import FrameReader
from txbroker.link.link_client import LinkClient
from txbroker.link.link_protocol import LinkProtocol
from txbroker.link.link_server import LinkServer
from txbroker.model.publish_run import Octets
from txbroker.model.topics import is_within
from txbroker.node import Node
from txbroker.node.control_service import ControlService
from txbroker.runtime.checked_turns import VARIABLE
from txbroker.v1 import link_pb2

from .mqttclient import Client, until
from .nodes import free_port, topology
from .runs import messages_in

LIMIT = 250.0
"""Seconds that a test may take; after that it is cancelled where it hangs."""

SUBACK_WAIT = "30s"
"""
A SUBACK says that all zones know of the filter, however slow they are, unless a test has another.

With the product's 2 s a busy machine acknowledges before, and the next message is rightly missed.
"""

_numbers = itertools.count(1)


def on_loop(
    test: Callable[..., Coroutine[Any, Any, None]],
) -> Callable[..., Deferred[None]]:
    """A coroutine of asyncio as a test on the reactor; also below hypothesis' `given`."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> Deferred[None]:
        return Deferred.fromFuture(
            asyncio.ensure_future(asyncio.wait_for(test(*args, **kwargs), LIMIT))
        )

    return run


# -- what passes the links


@attrs.frozen(kw_only=True)
class Passed:
    """A message on a link: from the `edge` to the owner of `zone` (`up`), or back."""

    edge: str
    zone: str
    up: bool
    kind: int
    topic: str
    payload: bytes


class Tap:
    """Reads along on every link; `links` are the connections that are open."""

    def __init__(self) -> None:
        self.passed: list[Passed] = []
        self.links: list[LinkProtocol] = []
        self.frames: dict[str, int] = {}
        self._readers: dict[LinkProtocol, tuple[FrameReader, dict[str, Any]]] = {}

    def cut(self, is_chosen: Callable[[LinkProtocol], bool] = lambda link: True) -> int:
        """Abort the TCP connections of these links; returns how many ends."""
        chosen = [link for link in list(self.links) if is_chosen(link)]
        for link in chosen:
            link.drop("cut by the test")
        return len(chosen)

    def clear(self) -> None:
        """Forget what passed so far."""
        self.passed.clear()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Listen while the block runs."""
        made, lost, write = (
            LinkProtocol.connectionMade,
            LinkProtocol.connectionLost,
            LinkProtocol.write,
        )

        def connection_made(link: LinkProtocol) -> None:
            self.links.append(link)
            made(link)

        def connection_lost(link: LinkProtocol, reason: Any = None) -> None:
            self.links.remove(link)
            self._readers.pop(link, None)
            lost(link, reason)

        def write_and_look(link: LinkProtocol, *pieces: Octets) -> None:
            self._look(link, b"".join(pieces))
            write(link, *pieces)

        with (
            mock.patch.object(LinkProtocol, "connectionMade", connection_made),
            mock.patch.object(LinkProtocol, "connectionLost", connection_lost),
            mock.patch.object(LinkProtocol, "write", write_and_look),
        ):
            yield

    def _look(self, link: LinkProtocol, data: bytes) -> None:
        if link not in self._readers:
            self._readers[link] = (FrameReader(1 << 28), {"edge": "", "zone": "", "kind": 0})
        reader, state = self._readers[link]
        is_up = isinstance(link.end, LinkClient)
        if isinstance(link.end, LinkServer) and link.end.peer is not None:
            state["edge"] = link.end.peer.edge
        for item in reader.read(data):
            if not isinstance(item, link_pb2.LinkFrame):
                self.passed.extend(
                    Passed(
                        edge=state["edge"],
                        zone=state["zone"],
                        up=is_up,
                        kind=state["kind"],
                        topic=message.topic,
                        payload=message.payload,
                    )
                    for message in messages_in(item)
                )
                continue
            kind = item.WhichOneof("kind") or "unknown"
            self.frames[kind] = self.frames.get(kind, 0) + 1
            if kind == "hello":
                state.update(edge=item.hello.edge, zone=item.hello.zone)
            elif kind == "welcome":
                state.update(zone=item.welcome.zone)
            elif kind == "batch":
                state["kind"] = item.batch.kind


LIVE = link_pb2.Batch.LIVE
PUBLISH = link_pb2.Batch.PUBLISH
RETAINED = link_pb2.Batch.RETAINED


# -- the nodes


class Cluster:
    """
    Nodes by name; the values of `zones` are their apexes, None for a pure edge.

    `parents` names the parent of a node where it is not the owner of the deepest zone above. `keys`
    adds keys of the topology file to every node; `suback_wait` is long without it. `waiting` are
    nodes that `start` starts later.
    True as `bare` leaves nodes as they run elsewhere: no checks of themselves, and no tap.
    """

    def __init__(
        self,
        directory: Path,
        zones: Mapping[str, str | None],
        *,
        parents: Mapping[str, str] | None = None,
        waiting: tuple[str, ...] = (),
        keys: Mapping[str, Any] | None = None,
        bare: bool = False,
    ) -> None:
        self.directory = directory / f"cluster{next(_numbers)}"
        self.zones = dict(zones)
        self.nodes: dict[str, Node] = {}
        self.clients: list[Client] = []
        self.events: list[dict[str, Any]] = []
        self.fatal: dict[str, str] = {}
        self.retired: set[str] = set()
        self.restarts: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.tap = Tap()
        self.documents: dict[str, dict[str, Any]] = {}
        self.allowed: set[str] = set()
        self._waiting = waiting
        self._bare = bare
        self._parents = dict(parents or {})
        self._undo: list[Callable[[], object]] = []
        for name in zones:
            mqtt = [f"tcp:{free_port()}:interface=127.0.0.1"]
            wanted = {"suback_wait": SUBACK_WAIT, **(keys or {})}
            document = topology(name, zone=zones[name], mqtt=mqtt, **wanted)
            self.documents[name] = document
        for name in zones:
            parent = self.parent_of(name)
            if parent is not None:
                self.documents[name]["parent"] = self.documents[parent]["grpc"]

    def parent_of(self, name: str) -> str | None:
        """The node that this one joins according to its file."""
        if name in self._parents:
            return self._parents[name]
        zone = self.zones[name]
        if zone == "":
            return None
        above = {
            apex: node
            for node, apex in self.zones.items()
            if apex is not None
            and node not in self._waiting
            and (zone is not None and is_within(zone, apex) and zone != apex or apex == "")
        }
        return above[max(above, key=len)]

    # life

    async def __aenter__(self) -> Self:
        self.directory.mkdir(parents=True)
        contexts = [self._captured_log()]
        if not self._bare:
            contexts += [self.tap.attached(), self._counted_questions()]
        for context in contexts:
            context.__enter__()
            self._undo.append(functools.partial(context.__exit__, None, None, None))
        try:
            for name in self.zones:
                if name not in self._waiting:
                    await self.start(name)
            await self.settled()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self._close()
        if error is None:
            self.check_log()

    async def start(self, name: str) -> Node:
        """Start one node, with the data that an earlier life of it left."""
        from twisted.internet import reactor

        file = self.directory / f"{name}.yaml"
        file.write_text(yaml.safe_dump(self.documents[name]))
        (config,) = load_file(file)
        with mock.patch.dict(os.environ, {VARIABLE: "0" if self._bare else "1"}):
            node = Node(
                config,
                reactor,
                on_fatal=lambda line: self.fatal.__setitem__(name, line),
                on_retired=lambda: self.retired.add(name),
                on_restart=lambda: self.restarts.append(name),
            )
        self.nodes[name] = node
        await node.start()
        return node

    async def stop(self, name: str) -> None:
        """Stop one node."""
        node = self.nodes.pop(name)
        await asyncio.wait_for(node.stop(), 10)
        for link in [link for link in self.tap.links if link.end is not None]:
            end: Any = link.end
            owner = getattr(end, "_edge", None) or getattr(end, "_authority", None)
            if owner in (node.edge, node.authority):
                link.drop("the node is stopped")

    async def settled(self) -> None:
        """Every node that has a parent is granted, and the parents know it."""

        def is_settled() -> bool:
            for name, node in self.nodes.items():
                if node.node_grant.zone is not None and not node.node_grant.serving:
                    return False
                if node.node_grant.parent is None:
                    continue
                if not any(other.parent.is_alive(name) for other in self.nodes.values()):
                    return False
            return not self.fatal

        try:
            await until(is_settled, what="all children are granted")
        except AssertionError as error:
            raise AssertionError(f"{error}; fatal: {self.fatal}; {self.events[-20:]}") from None

    async def linked(self) -> None:
        """Every link that a node needs is up."""

        def is_linked() -> bool:
            return all(
                route.port is not None
                for node in self.nodes.values()
                for route in node.edge.zones
                if route.is_needed
            )

        await until(is_linked, what="all links are up")

    # clients

    async def client(self, node: str, client_id: str | None = None, **options: Any) -> Client:
        """A client that is connected to this node."""
        name = client_id or f"c{next(_numbers)}"
        port = int(self.documents[node]["mqtt"][0].split(":")[1])
        client = await Client.open(("127.0.0.1", port), name, **options)
        self.clients.append(client)
        return client

    # what happened

    def logged(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """The log events of this name and these fields."""
        return [
            entry
            for entry in self.events
            if entry["event"] == event and all(entry.get(k) == v for k, v in fields.items())
        ]

    def is_drained(self) -> bool:
        """True if no edge keeps publishes for a zone that it could not reach."""
        return len(self.logged("outbox.opened")) == len(self.logged("outbox.drained"))

    def count(self, counter: str) -> int:
        """A counter, summed over all nodes that run."""
        return sum(node.counters.get(counter) for node in self.nodes.values())

    def describe(self) -> str:
        """The nodes' views, for the message of a failure."""
        lines = [str(event) for event in self.events[-40:]]
        for name, node in self.nodes.items():
            lines.append(f"== {name}")
            for route in node.edge.zones:
                place = f"{route.apex!r} {route.cut and (route.cut.node, route.cut.epoch)}"
                interest = route.interest
                state = {
                    "filters": interest.filters,
                    "claims": route.claims.apexes,
                    "has_news": route.has_news,
                    "position": route.position,
                    "requests": interest.requests,
                }
                cuts = route.cuts and sorted(route.cuts)
                lines.append(f"  route {place} {route.state.name} cuts={cuts} {state}")
            for session in node.edge.clients.sessions.values():
                for subscription in session.subscriptions.values():
                    lines.append(f"  session {session.client_id} {subscription}")
            authority = node.authority
            if authority is not None:
                place = f"{authority.apex!r} epoch={authority.epoch} offset={authority.offset}"
                lines.append(f"  authority {place} serving={authority.serving}")
                for peer in authority.peers.values():
                    lines.append(f"    peer {peer}")
        return "\n".join(lines)

    def check_log(self) -> None:
        """No node reported an error of the program."""
        bad = [
            event
            for event in self.events
            if event["event"] not in self.allowed
            and (event["level"] in ("error", "critical") or "exc_info" in event)
        ]
        assert not bad, f"the nodes logged errors: {bad}"

    # internal

    async def _close(self) -> None:
        for client in self.clients:
            if client.is_open:
                client.abort()
        # Children first: a parent does not have to wait for their streams.
        for name in reversed(list(self.nodes)):
            await self.stop(name)
        await until(lambda: not self.tap.links, what="all links are closed")
        while self._undo:
            self._undo.pop()()

    @contextmanager
    def _counted_questions(self) -> Iterator[None]:
        resolve: Callable[..., Awaitable[Any]] = ControlService.Resolve

        async def counted(servicer: ControlService, request: Any, context: Any) -> Any:
            self.asked.append((servicer._node_grant.node, request.question))
            return await resolve(servicer, request, context)

        with mock.patch.object(ControlService, "Resolve", counted):
            yield

    @contextmanager
    def _captured_log(self) -> Iterator[None]:
        def keep(_logger: Any, method: str, event: Any) -> Any:
            if method != "debug":
                error = event.get("exc_info")
                if isinstance(error, BaseException):
                    event["traceback"] = "".join(traceback.format_exception(error))
                self.events.append({**event, "level": method})
            raise structlog.DropEvent

        before = structlog.get_config()
        structlog.configure(processors=[keep], cache_logger_on_first_use=False)
        handler = _Errors(self.events)
        logging.getLogger().addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)
            structlog.configure(**before)


class _Errors(logging.Handler):
    """Errors that gRPC and asyncio log, among the nodes' own events."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        super().__init__(logging.ERROR)
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        event = {"event": "python.log", "level": "error", "message": self.format(record)}
        self._events.append(event)
