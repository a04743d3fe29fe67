"""
Composition: one node, built from its parts and wired.

Everything is constructed in `Node.__init__`, in the order of the layers; nothing else in the
package knows all of it. `start` binds the listeners and begins to join, `stop` undoes that.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import grpc.aio
from twisted.internet.task import LoopingCall

from txbroker import __version__
from txbroker.aio import Tasks
from txbroker.alarms import ReactorTimers
from txbroker.authority.authority import Authority
from txbroker.config import Address, NodeConfig, reread
from txbroker.control.channels import SERVER_OPTIONS, Channels
from txbroker.control.departure import Departure
from txbroker.control.directory import DirectoryShell
from txbroker.control.divergent import Divergence
from txbroker.control.joiner import Joiner
from txbroker.control.operator import losses, session_pages
from txbroker.control.parent import Parent
from txbroker.control.reading import JournalReader
from txbroker.control.reclaim import Reclaimer
from txbroker.control.servicer import ControlServicer
from txbroker.control.takeback import TakeBack
from txbroker.counters import Counters
from txbroker.directory.directory import Directory
from txbroker.directory.directory import Settings as DirectorySettings
from txbroker.directory.directory import Tables as DirectoryTables
from txbroker.directory.members import Members
from txbroker.edge.clients import EdgeLimits
from txbroker.edge.edge import Edge
from txbroker.edge.keeper import Keeper
from txbroker.edge.moving import Moving
from txbroker.edge.own_zone import OwnZone
from txbroker.edge.roaming import Roaming, Successions
from txbroker.errors import ConfigError
from txbroker.holding import Holding
from txbroker.link.convert import cut_to_wire
from txbroker.link.dialer import Dialer
from txbroker.link.listener import LinkListener
from txbroker.listeners import Listeners
from txbroker.mqtt.protocol import MqttFactory
from txbroker.mqtt.service import MqttService
from txbroker.mqtt.window import SessionLimits
from txbroker.pressure import Pressure
from txbroker.standing import Standing
from txbroker.store import backup
from txbroker.store.backup import Backups
from txbroker.store.ceiling import Ceiling, lift
from txbroker.store.disk import Disk, wall
from txbroker.store.known import KnownZones
from txbroker.store.retention import Policy, Retention
from txbroker.store.space import DiskSpace
from txbroker.store.state import DataFolder
from txbroker.store.zone import ZoneStore
from txbroker.sysinfo import EVERY, Rates, SysInfo
from txbroker.telemetry import get_logger
from txbroker.turn import Turn
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2_grpc import add_ControlServicer_to_server
from txbroker.v1.directory_pb2_grpc import add_DirectoryServicer_to_server

log = get_logger()

STOP_GRACE = 1.0
"""Seconds that gRPC calls in progress have when the node stops."""

HELD_IN_MEMORY = 64 * 1024 * 1024
"""Bytes of publishes that wait for owners in memory; then clients who brought them are not read."""

SMALL_SEGMENT = 1024 * 1024
LARGE_SEGMENT = 64 * 1024 * 1024
"""Bytes of a journal's segment: a sixteenth of what is kept, within these bounds."""

SETTLE_GRACE = 1.0
"""Seconds that other nodes have to hear of the end of this one's connections."""

RETIRE_GRACE = 2.0
"""Seconds that links have to drain after the zone was given back."""


class Report:
    """The cores' `Reporter`: facts go to the log."""

    def event(self, name: str, **fields: object) -> None:
        """One fact with its constant name."""
        log.info(name, **fields)


class Worker:
    """Something to do in a turn of its own (`Flushable`)."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.flush = work


class Node:
    """One broker process; `on_fatal` gets the one line of an error that ends it."""

    def __init__(
        self,
        config: NodeConfig,
        reactor: Any,
        *,
        on_fatal: Callable[[str], None],
        on_retired: Callable[[], None],
    ) -> None:
        self.config = config
        self._reactor = reactor
        self._on_fatal = on_fatal
        self._on_retired = on_retired
        self._listeners = Listeners(config, reactor)
        self._folder = DataFolder(config.data)
        self._known = KnownZones(config.data / "zones")
        limits = config.limits

        self.counters = Counters()
        self.turn = Turn(lambda action: reactor.callLater(0, action))
        self.tasks = Tasks(self.turn)
        self._timers = ReactorTimers(reactor, self.turn)
        self.pressure = Pressure(self._timers)
        self.space = DiskSpace(
            config.data, limits.disk_free, timers=self._timers, counters=self.counters
        )
        self.channels = Channels()
        state = self._folder.load(config.node, config.zone)
        made = backup.made_at(config.data)
        self.standing = Standing(
            self._folder,
            state if made is None else backup.restored(state, time.time()),
            str(Address(config.dial_host, config.grpc.port)),
            None if config.parent is None else str(config.parent),
        )
        self.disk = Disk(
            config.data,
            durability=config.durability,
            sync_interval=config.sync_interval,
            segment_bytes=min(max(config.retention.size // 16, SMALL_SEGMENT), LARGE_SEGMENT),
            turn=self.turn,
            timers=self._timers,
            on_full=self.space.set_full,
            on_failed=lambda error: on_fatal(str(error)),
            on_written=self.space.note_written,
        )
        if made is not None:
            self._restore(made)
        self.retention = Retention(
            journals=self.disk.journals,
            table=self.disk.tables.table("kept"),
            policy=_policy(config),
            counters=self.counters,
            now=wall,
        )
        self._zone_store = self._build_zone_store()
        self.authority = self._build_authority()
        self._dialer = Dialer(
            reactor=reactor,
            channels=self.channels,
            tasks=self.tasks,
            turn=self.turn,
            pressure=self.pressure,
        )
        self._reader = JournalReader(
            disk=self.disk,
            authority=self.authority,
            standing=self.standing,
            channels=self.channels,
            tasks=self.tasks,
        )
        self._worker = Worker(lambda: self.edge.work())
        self.edge = self._build_edge()
        self._reader.wire(self.edge.zones)
        self._dialer.wire(self.edge)
        self.members = Members(
            config.node,
            config.site,
            self.disk.tables.table("members"),
            is_root=config.parent is None,
        )
        self._directory_shell = DirectoryShell(
            commit=self.disk.committer,
            channels=self.channels,
            tasks=self.tasks,
            turn=self.turn,
            counters=self.counters,
            now=reactor.seconds,
        )
        self._successions = Successions()
        self.directory = self._build_directory()
        self._holding = self._build_holding()
        self.mqtt = self._build_mqtt()
        self._links = self._build_links()
        ownership = asyncio.Lock()
        self.parent = Parent(
            standing=self.standing,
            authority=self.authority,
            members=self.members,
            channels=self.channels,
            tasks=self.tasks,
            turn=self.turn,
            ownership=ownership,
        )
        self._take_back = TakeBack(
            standing=self.standing,
            authority=self.authority,
            holding=self._holding,
            parent=self.parent,
            members=self.members,
            disk=self.disk,
            turn=self.turn,
            ownership=ownership,
        )
        self._reclaimer = Reclaimer(
            standing=self.standing,
            authority=self.authority,
            parent=self.parent,
            channels=self.channels,
            ownership=ownership,
        )
        self._joiner = Joiner(
            standing=self.standing,
            authority=self.authority,
            members=self.members,
            channels=self.channels,
            disk=self.disk,
            retention=self.retention,
            departure=self._build_departure(),
            turn=self.turn,
            ownership=ownership,
            on_granted=self._on_granted,
            on_refused=self._on_refused,
            on_lineage=self._on_lineage,
        )
        self._divergence = Divergence(
            standing=self.standing,
            disk=self.disk,
            retention=self.retention,
            turn=self.turn,
            on_settled=self._joiner.join_again,
            now=wall,
        )
        self._rates = Rates(self.edge, reactor.seconds)
        self._sys = SysInfo(
            edge=self.edge,
            authority=self.authority,
            channels=self.channels,
            rates=self._rates,
            now=reactor.seconds,
            clients=lambda: len(self.mqtt.connections),
            space=self.space,
            disk=self.disk,
            standing=self.standing,
        )
        self.edge.clients.when_federation_is_asked(lambda: self.tasks.start(self._sys.fetch()))
        self._sampler = LoopingCall(self._each_second)
        self._publisher = LoopingCall(self._each_sys_period)
        self._server: grpc.aio.Server | None = None

    # life

    async def start(self) -> None:
        """Bind every listener, then open the zone and join; raises `ConfigError`."""
        self.space.start()
        await self._start_control()
        if self._links is not None:
            await self._listeners.for_links(self._links)
        self.edge.zones.restore(self._known.load())
        self.edge.load()
        self.members.announce(self.standing.grpc)
        self.directory.start()
        self._directory_shell.start()
        if self.standing.serving and self._holding is not None:
            self._holding.open()
        self.edge.on_lineage(self.standing.lineage)
        self.edge.interests.refresh()
        await self._listeners.for_clients(MqttFactory(self.mqtt))
        mqtt = self._listeners.mqtt
        log.info(
            "node.ready",
            zone=self.standing.zone,
            mqtt=mqtt[0] if len(mqtt) == 1 else mqtt,
            grpc=self.standing.grpc,
            link=self._listeners.link,
            core="python",
            version=__version__,
        )
        self._sampler.start(1.0).addErrback(_log_failure)
        self._publisher.start(EVERY).addErrback(_log_failure)
        if self.standing.parent is not None:
            self.tasks.start(self._joiner.run())
        if self.authority is not None:
            self.parent.adopt(self.authority.cuts())

    async def stop(self) -> None:
        """Close listeners and connections without sending wills; then the store."""
        self.space.stop()
        for looping in (self._sampler, self._publisher):
            if looping.running:
                looping.stop()
        await self._listeners.close()
        self.mqtt.stop()
        # Whoever keeps entries must not take this for a death, and publish their wills.
        await self._directory_shell.settle(SETTLE_GRACE)
        self.parent.close()
        await self.tasks.stop()
        await self.channels.close()
        if self._holding is not None:
            self._holding.own_zone.beat()
        self.edge.positions.checkpoint()
        if self._zone_store is not None:
            self._zone_store.close()
        self.disk.close()
        # Before the last port closes: whoever waits for that may start the node again.
        self._folder.close()
        if self._server is not None:
            await self._server.stop(STOP_GRACE)

    def reload(self) -> None:
        """Read the limits in the topology file again; a file with a mistake changes nothing."""
        try:
            found = reread(self.config)
        except ConfigError as error:
            log.error("config.refused", reason=str(error))
            return
        self._apply(found.config)
        say = log.warning if found.restart_needed else log.info
        restart_needed = list(found.restart_needed)
        say("config.reloaded", changed=found.changed, restart_needed=restart_needed)

    def status(self) -> control_pb2.StatusReply:
        """What `txbroker tree` shows of this node."""
        standing, authority = self.standing, self.authority
        rate_in, rate_out = self._rates.rates()
        reply = control_pb2.StatusReply(
            node=standing.node,
            owns_zone=standing.zone is not None,
            zone=cut_to_wire(standing.cut),
            serving=authority is not None and authority.serving,
            clients=len(self.mqtt.connections),
            rate_in=rate_in,
            rate_out=rate_out,
            lineage=[cut_to_wire(cut) for cut in standing.lineage],
            version=__version__,
            counters=self.counters.snapshot(),
        )
        for delegation in standing.table.delegations():
            reply.children.add(
                zone=cut_to_wire(delegation.cut),
                owns_zone=True,
                alive=self.parent.is_alive(delegation.cut.node),
                below=[cut_to_wire(cut) for cut in delegation.below],
            )
        reply.divergent = standing.divergent
        reply.reclaimed.extend(cut_to_wire(cut) for cut in standing.table.reclaimed())
        for child in self.parent.children.values():
            if child.zone is None:
                edge = control_pb2.Child(owns_zone=False, alive=True)
                edge.zone.node, edge.zone.grpc = child.node, child.grpc
                reply.children.append(edge)
        reply.losses.extend(losses(self.edge.clients.sessions.values()))
        for zone, filters in self.edge.interests.pending_by_zone().items():
            reply.pending.add(zone=zone, filters=filters)
        return reply

    # building

    def _build_zone_store(self) -> ZoneStore | None:
        if self.config.zone is None:
            return None
        return ZoneStore(
            node=self.config.node,
            zone=self.config.zone,
            incarnation=self.standing.incarnation,
            disk=self.disk,
            now=wall,
            retention=self.retention,
            ceiling=Ceiling(
                self.disk.tables.table("zone"),
                self.counters,
                survives_kill=self.config.durability != "memory",
            ),
            keeps_qos0=self.config.journal == "all",
        )

    def _restore(self, made: float) -> None:
        """The data is a copy, made at that time: nothing that was used since is used again."""
        log.warning("node.restored", made=datetime.fromtimestamp(made, UTC).isoformat())
        lift(self.disk.tables.table("zone"), backup.offsets_since(made, time.time()))
        self.disk.committer.when_durable(lambda: backup.forget(self.config.data))

    def _build_authority(self) -> Authority | None:
        if self.config.zone is None or self._zone_store is None:
            return None
        authority = Authority(self.config.zone, self.standing.table, self._zone_store)
        self._zone_store.wire(authority)
        return authority

    def _build_holding(self) -> Holding | None:
        if self.authority is None:
            return None
        return Holding(
            standing=self.standing,
            authority=self.authority,
            own_zone=OwnZone(self.edge, self.authority, self.pressure),
            disk=self.disk,
            retention=self.retention,
            timers=self._timers,
            turn=self.turn,
        )

    def _build_edge(self) -> Edge:
        config = self.config
        return Edge(
            name=config.node,
            incarnation=self.standing.incarnation,
            connector=self._dialer,
            timers=self._timers,
            counters=self.counters,
            reporter=Report(),
            keeper=Keeper(
                sessions=self.disk.tables.table("sessions"),
                windows=self.disk.tables.table("windows"),
                messages=self.disk.tables.table("messages"),
                positions=self.disk.tables.table("positions"),
                commit=self.disk.committer,
                wall=wall,
                now=self._reactor.seconds,
            ),
            reader=self._reader,
            outbox_store=self.disk.outboxes,
            again=lambda: self.turn.mark_next(self._worker),
            limits=_edge_limits(config),
        )

    def _build_directory(self) -> Directory:
        config, tables, clients = self.config, self.disk.tables, self.edge.clients
        moving = Moving(self.edge, self._successions, tables.table("directory.publishes"))
        self.edge.wire(moving.keys)
        directory = Directory(
            members=self.members,
            tables=DirectoryTables(
                entries=tables.table("directory.entries"),
                held=tables.table("directory.held"),
                gone=tables.table("directory.gone"),
                arriving=tables.table("directory.arriving"),
                wills=tables.table("directory.wills"),
                sent_wills=tables.table("directory.sent_wills"),
            ),
            host=moving,
            life=self.standing.incarnation,
            settings=DirectorySettings(
                roaming_wait=config.roaming_wait,
                is_fresh=config.roaming == "fresh",
                will_after=config.will_after,
            ),
            now=self._reactor.seconds,
            make_token=lambda: secrets.token_bytes(8),
            spawn=self._directory_shell.run,
            wake=self._directory_shell.wake,
        )
        self._directory_shell.wire(directory)
        clients.wire(directory)
        return directory

    def _build_mqtt(self) -> MqttService:
        limits = self.config.limits
        return MqttService(
            edge=self.edge,
            roaming=Roaming(self.edge.clients, self.directory, self._directory_shell),
            successions=self._successions,
            turn=self.turn,
            clock=self._reactor,
            pressure=self.pressure,
            space=self.space,
            counters=self.counters,
            make_client_id=lambda: f"auto-{self.config.node}-{secrets.token_hex(8)}",
            max_packet=limits.packet,
            max_connections=limits.connections,
            connect_timeout=limits.connect_timeout,
        )

    def _build_departure(self) -> Departure:
        return Departure(
            standing=self.standing,
            members=self.members,
            mqtt=self.mqtt,
            edge=self.edge,
            directory=self.directory,
            shell=self._directory_shell,
            committer=self.disk.committer,
        )

    def _build_links(self) -> LinkListener | None:
        if self.authority is None:
            return None
        return LinkListener(
            authority=self.authority,
            pressure=self.pressure,
            space=self.space,
            counters=self.counters,
            turn=self.turn,
            clock=self._reactor,
            max_links=self.config.limits.links,
        )

    def _apply(self, config: NodeConfig) -> None:
        """Other limits from now on: of packets for new connections, of the rest for all."""
        self.config = config
        limits = config.limits
        self.mqtt.max_packet = limits.packet
        self.mqtt.max_connections = limits.connections
        self.mqtt.connect_timeout = limits.connect_timeout
        if self._links is not None:
            self._links.max_links = limits.links
        self.edge.clients.set_limits(_edge_limits(config))
        self.edge.outboxes.limit = limits.outbox
        self.retention.policy = _policy(config)
        self.space.set_reserve(limits.disk_free)

    def _session_pages(self) -> Iterator[control_pb2.SessionsReply]:
        edge = self.edge
        sessions = edge.clients.sessions.values()
        return session_pages(sessions, self._timers.now(), edge.backlog.distance)

    # listeners

    async def _start_control(self) -> None:
        config = self.config
        server = grpc.aio.server(options=SERVER_OPTIONS)
        servicer = ControlServicer(
            standing=self.standing,
            authority=self.authority,
            parent=self.parent,
            take_back=self._take_back,
            reclaimer=self._reclaimer,
            divergence=self._divergence,
            joiner=self._joiner,
            links=self._links,
            reader=self._reader,
            link_address=lambda: self._listeners.link,
            status=self.status,
            sys_values=self._sys.values,
            sessions=self._session_pages,
            delete_session=self.edge.clients.delete,
            backups=Backups(config.data, now=time.time, extents=self.disk.extents),
            retired=lambda: self._reactor.callLater(RETIRE_GRACE, self._on_retired),
            tasks=self.tasks,
        )
        add_ControlServicer_to_server(servicer, server)
        add_DirectoryServicer_to_server(self._directory_shell, server)
        try:
            bound = server.add_insecure_port(str(config.grpc))
        except RuntimeError:
            bound = 0
        if bound == 0:
            raise self._listeners.cannot_bind("grpc", str(config.grpc))
        await server.start()
        self._server = server
        self.standing.grpc = str(Address(config.dial_host, bound))

    # the zone

    def _on_granted(self) -> None:
        if self._holding is not None and self._holding.is_due:
            self._holding.open()
            self.parent.adopt(self.standing.table.cuts())
        self._on_lineage()

    def _on_refused(self, reason: str, cut_off: int) -> None:
        if self._holding is None or (self.standing.epoch == 0 and not cut_off):
            where = f"{self.config.source}: join refused by {self.standing.parent}"
            self._on_fatal(f"{where}: {reason}")
        else:
            self._holding.refuse(reason, cut_off)

    def _on_lineage(self) -> None:
        self.edge.on_lineage(self.standing.lineage)

    # timers

    def _each_second(self) -> None:
        self._rates.sample()
        self.edge.refresh_stale()
        known = self.edge.zones.known()
        if self._known.is_news(known):
            self.tasks.start(self._known.save(known))
        if self._holding is not None:
            self._holding.own_zone.beat()
        self.edge.positions.checkpoint()
        self.edge.outboxes.save()
        if self._zone_store is not None:
            self._zone_store.checkpoint_if_due()
        self.disk.tables.clean()
        self.disk.scan()
        self.turn.end()

    def _each_sys_period(self) -> None:
        self._sys.refresh()
        self.edge.clients.expire_sessions()
        self.edge.positions.tell_low_water()
        present = None if self._zone_store is None else self._zone_store.present
        self.retention.trim(present, self._divergence.held())
        self.edge.backlog.look_for_cut_off(self.edge.clients.sessions.values())
        self.turn.end()
        self.tasks.start(self._sys.fetch())


def _edge_limits(config: NodeConfig) -> EdgeLimits:
    return EdgeLimits(
        session=SessionLimits(
            inflight=config.limits.inflight,
            memory=config.limits.session_memory,
            messages=config.session_limits.messages,
            size=config.session_limits.bytes,
        ),
        session_age=config.session_limits.age,
        held=HELD_IN_MEMORY,
        outbox=config.limits.outbox,
        holds=config.unreachable == "hold",
        cache=config.limits.cache,
        suback_wait=config.suback_wait,
    )


def _policy(config: NodeConfig) -> Policy:
    return Policy(
        age=config.retention.age,
        size=config.retention.size,
        session_age=config.session_limits.age,
        session_size=config.session_limits.bytes,
        keeps_history=config.journal != "none",
    )


def _log_failure(failure: Any) -> None:
    log.error("timer.failed", error=str(failure.value), traceback=failure.getTraceback())
