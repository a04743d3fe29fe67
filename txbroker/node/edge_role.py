"""Composition: a node as an edge: clients, their sessions, and the routes to owners."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Final

import attrs

from txbroker.authority.authority import Authority
from txbroker.core import limit_levels
from txbroker.delegation.rpc.node_retirement import NodeRetirement
from txbroker.directory.directory import Directory, ShellPorts
from txbroker.directory.directory import DirectoryTables as DirectoryTables
from txbroker.directory.members import Members
from txbroker.directory.node_lifetime import NodeLifetime
from txbroker.directory.rpc.directory_calls import DirectoryCalls
from txbroker.directory.rpc.directory_service import DirectoryService
from txbroker.directory.rpc.request_server import RequestServer
from txbroker.directory.session_ownership import OwnershipTables
from txbroker.edge.routing.edge_parts import EdgeParts
from txbroker.edge.routing.route import Route
from txbroker.edge.sessions.connect_runner import ConnectRunner
from txbroker.edge.sessions.edge import Edge
from txbroker.edge.sessions.session_connect import PublishBarrier, SessionConnect
from txbroker.edge.sessions.session_store import SessionStore, SessionTables
from txbroker.edge.sessions.session_transfer import SessionTransfer
from txbroker.edge.store.journal_outbox import JournalOutboxes
from txbroker.edge.store.resolver_cache_file import ResolverCacheFile
from txbroker.journal.history.journal_reader import JournalReader
from txbroker.link.dialer import Dialer
from txbroker.model.epoch_transition import EpochTransition
from txbroker.mqtt.transport.service import MqttService
from txbroker.node.node_base import NodeBase
from txbroker.node.settings import connection_limits, directory_settings, edge_limits
from txbroker.runtime import machine_check
from txbroker.runtime.structured_log import get_logger, log_limited

log = get_logger()

KINDS: Final = {
    "group.pending": "zone",
    "group.unreachable": "reason",
    "interest.confirmed": "client_id",
    "interest.pending": "client_id",
}
"""
The field that tells kinds apart of an event that a client causes thousands of times in one turn.

The lines on 9,000 shared subscriptions whose zone did not answer in time took 300 ms.
"""


class EventLog:
    """The cores' `Reporter`: logs each event, but few of each kind of `KINDS`."""

    def event(self, name: str, **fields: object) -> None:
        """Log one event with its constant name."""
        field = KINDS.get(name)
        if field is None:
            log.info(name, **fields)
        else:
            log_limited(log.info, name, kind=str(fields[field]), **fields)


class TurnWork:
    """Work that runs in a turn of its own (`Flushable`)."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.flush = work


class EdgeRole:
    """The edge, its clients' connections, and its part of the client directory."""

    def __init__(self, node_base: NodeBase, authority: Authority | None) -> None:
        self._node_base = node_base
        self._known = ResolverCacheFile(node_base.config.data / "zones")
        self._dialer = Dialer(
            connections=node_base.connection_parts,
            node_grant=node_base.node_grant,
            dialing=node_base.streams,
            channels=node_base.channels,
            tasks=node_base.tasks,
        )
        self.reader = JournalReader(
            data_directory=node_base.data_directory,
            authority=authority,
            node_grant=node_base.node_grant,
            channels=node_base.channels,
            tasks=node_base.tasks,
            now=node_base.timers.now,
        )
        self.reporter = EventLog()
        self.outbox_store = JournalOutboxes(node_base.data_directory.outboxes)
        self._worker = TurnWork(lambda: self.edge.work())
        self.edge = self._build_edge()
        node_base.sockets.wire_owners(Route.sender)
        self.reader.wire(self.edge.zones, self.edge.interests)
        self._dialer.wire(self.edge)
        self.members = self._build_members()
        self.directory_shell = self._build_directory_shell()
        self._successions = PublishBarrier()
        self.directory = self._build_directory()
        self.mqtt = self._build_mqtt()
        limit_levels(node_base.config.limits.levels)

    # life

    def load(self) -> None:
        """Load the state of an earlier process: zones, sessions, outboxes, directory entries."""
        self.edge.zones.restore(self._known.load())
        self.edge.load()
        self.transfer.load(self.edge.outboxes.contains)
        self.members.announce(self._node_base.node_grant.grpc)
        self.directory.start()
        self.directory_shell.start()

    def on_lineage(self) -> None:
        """Notify the edge that the zones above this node's are known, or have changed."""
        self.edge.on_lineage(self._node_base.node_grant.lineage)

    def refresh(self) -> None:
        """Resolve expired routes again, and store the resolver cache; runs once a second."""
        self.edge.refresh_stale()
        known = self.edge.zones.known()
        if self._known.is_news(known):
            self._node_base.tasks.start(self._known.save(known))

    def checkpoint(self) -> None:
        """Make stream positions and outboxes durable, and send low-water marks to the owners."""
        self.edge.cursors.checkpoint(self.edge.low_water.send_marks)
        self.edge.outboxes.save()

    def record(self, transitions: Iterable[EpochTransition]) -> None:
        """Write passages to the ledger, and sometimes its whole state; runs once a second."""
        ledger_writer, ledger = self.edge.recording, self._node_base.data_directory.ledger
        if ledger_writer is None or ledger is None:
            return
        if ledger.is_due and not ledger_writer.is_stating:
            ledger_writer.state(self.edge.clients.sessions.values())
        if ledger_writer.advance(transitions):
            ledger.state()

    def expire_sessions(self) -> None:
        """Expire sessions; runs every now and then."""
        self.edge.clients.expire_sessions()

    def apply(self) -> None:
        """Apply changed limits: that of packets to new connections, all others at once."""
        config = self._node_base.config
        limits = config.limits
        # Clients were told the others at their CONNECT.
        self.mqtt.limits = attrs.evolve(
            self.mqtt.limits,
            packet=limits.packet,
            connections=limits.connections,
            connect_timeout=limits.connect_timeout,
            client_id=limits.client_id,
            subscriptions=limits.subscriptions,
        )
        limit_levels(limits.levels)
        self.edge.set_limits(edge_limits(config))

    def departure(self) -> NodeRetirement:
        """Make the procedure that ends this role when the node retires."""
        return NodeRetirement(
            node_grant=self._node_base.node_grant,
            members=self.members,
            mqtt=self.mqtt,
            edge=self.edge,
            directory=self.directory,
            shell=self.directory_shell,
        )

    # building

    def _build_edge(self) -> Edge:
        node_base = self._node_base
        tables = node_base.data_directory.tables
        flush_queue, worker = node_base.flush_queue, self._worker
        return Edge(
            EdgeParts(
                name=node_base.config.node,
                incarnation=node_base.node_grant.incarnation,
                router=node_base.router,
                connector=self._dialer,
                timers=node_base.timers,
                counters=node_base.counters,
                reporter=self.reporter,
                again=lambda: flush_queue.mark_next(worker),
            ),
            session_store=SessionStore(
                SessionTables.of(tables.table),
                node_base.data_directory.committer,
                lived=node_base.data_directory.lived,
                now=node_base.reactor.seconds,
                message_clock=node_base.data_directory.message_clock,
            ),
            reader=self.reader,
            outbox_store=self.outbox_store,
            limits=edge_limits(node_base.config),
            ledger=node_base.data_directory.ledger,
        )

    def _build_members(self) -> Members:
        config = self._node_base.config
        return Members(
            config.node,
            config.site,
            self._node_base.data_directory.tables.table("members"),
            is_root=config.parent is None,
            identity=self._node_base.node_grant.identity,
        )

    def _build_directory_shell(self) -> DirectoryService:
        node_base = self._node_base
        calls = DirectoryCalls(
            commit=node_base.data_directory.committer,
            tables=node_base.data_directory.tables,
            channels=node_base.channels,
            tasks=node_base.tasks,
            now=node_base.reactor.seconds,
        )
        server = RequestServer(
            calls=calls,
            shares=node_base.shares,
            tasks=node_base.tasks,
            flush_queue=node_base.flush_queue,
            counters=node_base.counters,
        )
        return DirectoryService(
            calls,
            server,
            shares=node_base.shares,
            tasks=node_base.tasks,
            flush_queue=node_base.flush_queue,
            now=node_base.reactor.seconds,
        )

    def _build_directory(self) -> Directory:
        node_base, tables = self._node_base, self._node_base.data_directory.tables
        self.transfer = SessionTransfer(
            self.edge,
            self._successions,
            tables.table("directory.left"),
            tables.table("directory.left_places"),
        )
        self.edge.wire(self.transfer.keys, self.transfer.places)
        directory = Directory(
            members=self.members,
            tables=DirectoryTables(
                entries=tables.table("directory.entries"),
                sessions=OwnershipTables(
                    held=tables.table("directory.held"),
                    gone=tables.table("directory.gone"),
                    arriving=tables.table("directory.arriving"),
                ),
                wills=tables.table("directory.wills"),
                sent_wills=tables.table("directory.sent_wills"),
                discards=tables.table("directory.discards"),
                sites=tables.table("directory.sites"),
            ),
            host=self.transfer,
            life=NodeLifetime(
                number=node_base.node_grant.incarnation,
                now=node_base.reactor.seconds,
                lived=node_base.data_directory.lived,
                moment=machine_check.moment,
            ),
            settings=directory_settings(node_base.config),
            shell=ShellPorts(
                spawn=self.directory_shell.run,
                wake=self.directory_shell.wake,
                make_token=lambda: secrets.token_bytes(8),
            ),
        )
        self.directory_shell.wire(directory)
        self.edge.clients.wire(directory.connected)
        return directory

    def _build_mqtt(self) -> MqttService:
        node_base = self._node_base
        return MqttService(
            self.edge,
            node_base.connection_parts,
            watermark=node_base.watermark,
            connects=SessionConnect(
                self.edge.clients,
                self.directory,
                ConnectRunner(
                    self.directory_shell, self.edge.session_store.when_durable, node_base.timers
                ),
            ),
            successions=self._successions,
            limits=connection_limits(node_base.config),
        )
