"""
SHELL: resolves and dials zones' owners for an edge; its `Connector`.

Each needed route has one task. The task asks the owner for a token and connects. A lost link is
dialed again after a pause that grows to a second.
"""

from __future__ import annotations

import asyncio
import random

import grpc.aio
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.error import ConnectError, ConnectingCancelledError, DNSLookupError
from twisted.internet.protocol import Factory

from txbroker.config import Address, parse_address
from txbroker.delegation.grant_state import KnownRoot
from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.peer_checks import (
    check_below,
    check_cut,
    check_epochs,
    check_near,
    check_passages,
    check_predecessor,
)
from txbroker.delegation.state.lost_root import checked_root, root_to_wire
from txbroker.edge.routing.route import Route
from txbroker.edge.sessions.edge import Edge
from txbroker.link.formats import LinkFormats
from txbroker.link.link_client import LinkClient
from txbroker.link.link_protocol import LinkProtocol
from txbroker.model.errors import PeerError, StoreError
from txbroker.model.log_position import JournalId
from txbroker.model.zone_cut import ZoneCut
from txbroker.rpc.channels import CALL_TIMEOUT, Channels
from txbroker.rpc.link_convert import cut_from_wire
from txbroker.rpc.streams import brief
from txbroker.rpc.zone_convert import passages_from_wire, place_from_wire
from txbroker.runtime.aio import Tasks
from txbroker.runtime.connection_parts import ConnectionParts
from txbroker.runtime.log_once import LogOnce
from txbroker.runtime.structured_log import get_logger, log_limited
from txbroker.v1 import control_pb2

log = get_logger()

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
"""
Seconds between attempts: the pause doubles from the first to the longest, less up to a quarter.
"""


LONGEST_TTL = 300
"""The most seconds for which an answer is used, whatever TTL it names."""


class ZoneGone(Exception):
    """The node no longer serves the zone."""


class ZoneNotYet(Exception):
    """The node cannot be reached, or does not serve the zone yet."""


class Dialer:
    """
    The edge's connections to other nodes; `wire` it to the edge before use.

    `dialing` is the reactor for Twisted's endpoints; links are its connections.
    """

    def __init__(
        self,
        *,
        connections: ConnectionParts,
        node_grant: NodeGrant,
        dialing: object,
        channels: Channels,
        tasks: Tasks,
    ) -> None:
        self.formats = LinkFormats()
        self._node_grant = node_grant
        self._told = LogOnce()
        self._clock = connections.clock
        self._dialing = dialing
        self._channels = channels
        self._tasks = tasks
        self._flush_queue = connections.flush_queue
        self._backpressure = connections.backpressure
        self._dials: dict[Route, asyncio.Task[None]] = {}
        self._open: dict[Route, LinkProtocol] = {}
        self._edge: Edge
        self._backpressure.when_relieved(self._grant_credit)

    def wire(self, edge: Edge) -> None:
        """Connect the edge that this dialer serves."""
        self._edge = edge

    # from the edge (Connector)

    def resolve(self, route: Route) -> None:
        """Ask the node of `route.cut` for the cuts of its zone."""
        cut = route.begin_question()
        if cut is not None:
            self._tasks.start(self._resolve(route, cut))

    def connect(self, route: Route) -> None:
        """Connect to the owner, and retry while the route is needed."""
        if route not in self._dials and not route.is_local:
            self._dials[route] = self._tasks.start(self._keep_connected(route))

    def disconnect(self, route: Route) -> None:
        """Stop retrying and close the link."""
        task = self._dials.pop(route, None)
        protocol = self._open.pop(route, None)
        if protocol is not None:
            protocol.drop("the zone is served elsewhere")
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    # internal: questions

    async def _resolve(self, route: Route, cut: ZoneCut) -> None:
        request = control_pb2.ResolveRequest(question=route.apex, zone=route.apex)
        try:
            stub = self._channels.stub(cut.grpc, cut.node)
            reply = await stub.Resolve(request, timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            log.debug("resolve.failed", zone=route.apex, asked=cut.grpc, code=error.code().name)
            self._edge.on_unresolved(route)
            return
        if reply.answer == control_pb2.ResolveReply.NOT_AUTHORITATIVE:
            is_over = reply.zone.apex != route.apex or reply.zone.epoch >= route.epoch
            if is_over and route.port is None and route.apex:
                route.end_question()
                self._edge.cuts.on_zone_end(route, is_whole=False)
            else:
                self._edge.on_unresolved(route)
            return
        zone, cuts = cut_from_wire(reply.zone), [cut_from_wire(known) for known in reply.cuts]
        try:
            self._check_resolved(route, zone, cuts)
        except PeerError as error:
            reason = brief(str(error))
            log_limited(
                log.warning,
                "resolve.refused",
                kind=route.apex,
                zone=route.apex,
                asked=cut.grpc,
                reason=reason,
            )
            self._edge.counters.add("resolve.refused")
            self._edge.on_unresolved(route)
            return
        self._edge.on_resolved(route, zone, cuts, min(reply.ttl, LONGEST_TTL))

    def _check_resolved(self, route: Route, zone: ZoneCut, cuts: list[ZoneCut]) -> None:
        """
        Refuse an answer whose cuts are not strictly deeper; raises `PeerError`.

        Protocol rule 14: so a walk always ends.
        """
        if zone.apex != route.apex:
            raise PeerError(f"the answer is about zone {zone.apex[:100]!r}")
        check_cut(zone)
        check_below(route.apex, cuts)
        told = ((known.apex, known.epoch) for known in (zone, *cuts))
        check_epochs(told, self._edge.zones.epoch_of)

    # internal: links

    async def _keep_connected(self, route: Route) -> None:
        pause = FIRST_PAUSE
        try:
            # A call that has just failed swallows the cancellation by `disconnect`. Without this
            # check the task would dial on for a forgotten zone. The task would block the zone's
            # present route for ever.
            while self._is_dialed_here(route) and route.is_dialable:
                route.dial()
                try:
                    await self._one_link(route)
                    pause = FIRST_PAUSE
                except ZoneGone:
                    self._dials.pop(route, None)
                    self._edge.cuts.on_zone_end(route, is_whole=False)
                    return
                except ZoneNotYet as error:
                    log.debug("link.failed", zone=route.apex, reason=str(error))
                    self._edge.on_failed(route)
                self._flush_queue.end()
                await asyncio.sleep(pause * random.uniform(0.75, 1.0))
                pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            if self._is_dialed_here(route):
                del self._dials[route]
        route.rest()

    def _is_dialed_here(self, route: Route) -> bool:
        return self._dials.get(route) is asyncio.current_task()

    async def _one_link(self, route: Route) -> None:
        """Run one link from its opening to its end."""
        cut = route.cut
        assert cut is not None  # as the route is dialable
        address, token = await self._ask(route, cut)
        if not self._is_dialed_here(route):
            # A call that has just been answered swallows the cancellation by `disconnect`.
            raise asyncio.CancelledError
        loop = asyncio.get_running_loop()
        protocol = _Dialed(
            flush_queue=self._flush_queue,
            clock=self._clock,
            counters=self._edge.counters,
            peer=cut.node,
        )
        protocol.closed = loop.create_future()
        endpoint = HostnameEndpoint(self._dialing, address.host, address.port, timeout=CALL_TIMEOUT)
        try:
            await endpoint.connect(_Quiet.forProtocol(lambda: protocol)).asFuture(loop)
        except (ConnectError, ConnectingCancelledError, DNSLookupError, OSError) as error:
            raise ZoneNotYet(str(error)) from error
        end = LinkClient(
            self._edge,
            route,
            write=protocol.write,
            close=protocol.drop,
            flush_queue=self._flush_queue,
            backpressure=self._backpressure,
        )
        protocol.attach(end)
        self._open[route] = protocol
        self._told.forget(route.apex)
        log.info("link.opened", zone=route.apex, peer=cut.node, address=str(address))
        end.start(token)
        try:
            await asyncio.shield(protocol.closed)
        finally:
            if self._open.get(route) is protocol:
                del self._open[route]
            protocol.drop("no longer needed")
        if not end.was_online:
            raise ZoneNotYet("the link was closed before it was online")

    async def _ask(self, route: Route, cut: ZoneCut) -> tuple[Address, bytes]:
        request = control_pb2.OpenLinkRequest(
            edge=self._edge.name,
            incarnation=self._edge.incarnation,
            zone=route.apex,
            epoch=cut.epoch,
            link_version=self.formats.ours,
            identity=self._node_grant.identity,
            life=self._node_grant.life,
            grpc=self._node_grant.grpc,
            root=root_to_wire(self._node_grant.root),
        )
        try:
            stub = self._channels.stub(cut.grpc, cut.node)
            reply = await stub.OpenLink(request, timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.ALREADY_EXISTS:
                self._log_refused(route, error.details() or "")
            raise ZoneNotYet(error.details() or error.code().name) from error
        if (reply.authoritative or reply.link_version) and not self.formats.is_ours(
            cut.node, reply.link_version, route.apex
        ):
            raise ZoneNotYet("the node has another link format")
        if reply.authoritative:
            has_predecessor = reply.HasField("predecessor")
            predecessor = place_from_wire(reply.predecessor) if has_predecessor else None
            transitions = passages_from_wire(reply.passages)
            known = self._edge.zones.epoch_of
            try:
                address = parse_address(reply.link)
                check_near("epoch", reply.epoch, route.epoch)
                check_passages(route.apex, transitions, known)
                if predecessor is not None:
                    check_predecessor(JournalId(route.apex, reply.epoch), predecessor, known)
                self._record_root(checked_root(reply, self._node_grant))
            except (ValueError, PeerError) as error:
                raise ZoneNotYet(brief(str(error))) from error
            self._edge.on_owner(route, reply.epoch, predecessor, transitions)
            return address, reply.token
        if reply.epoch >= cut.epoch:
            raise ZoneGone
        raise ZoneNotYet("the node does not serve the zone yet")

    def _record_root(self, root: KnownRoot | None) -> None:
        """Store the root durably before any position in its journal is stored."""
        try:
            self._node_grant.record_root(root)
        except StoreError as error:
            raise ZoneNotYet(str(error)) from error

    def _log_refused(self, route: Route, reason: str) -> None:
        # The call is repeated each second; each refusal is logged once.
        if self._told.is_news(route.apex, reason):
            log.error("link.name_conflict", zone=route.apex, reason=reason)

    def _grant_credit(self) -> None:
        for protocol in self._open.values():
            if protocol.end is not None:
                self._flush_queue.mark_dirty(protocol.end)


class _Quiet(Factory):
    """A factory without a log line for each connection."""

    noisy = False


class _Dialed(LinkProtocol):
    """A link whose end can be awaited."""

    closed: asyncio.Future[None]

    def connectionLost(self, reason: object = None) -> None:
        super().connectionLost()
        if not self.closed.done():
            self.closed.set_result(None)
