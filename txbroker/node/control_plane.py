"""Composition: a node's control plane: its zone's grants and handovers, and its gRPC services."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import grpc.aio

from txbroker.config import Address
from txbroker.data import backups
from txbroker.delegation.join_rules import JoinRefused
from txbroker.delegation.rpc.copied_root import living_twin
from txbroker.delegation.rpc.delegation_base import DelegationBase
from txbroker.delegation.rpc.divergent_branch import DivergentBranch
from txbroker.delegation.rpc.edge_retirement import EdgeRetirement
from txbroker.delegation.rpc.hand_back_server import HandBackServer
from txbroker.delegation.rpc.join_client import JoinClient
from txbroker.delegation.rpc.join_server import JoinServer
from txbroker.delegation.rpc.procedure_runner import DelegationRunner
from txbroker.delegation.rpc.stray_publishes import StrayCollector
from txbroker.delegation.rpc.zone_reclaim import ZoneReclaim
from txbroker.delegation.state.lost_root import LostRoot
from txbroker.delegation.timeouts import LOST_AFTER
from txbroker.journal.history.held_journals import HoldingSessions
from txbroker.journal.history.journal_catalog import JournalCatalog
from txbroker.journal.history.journal_service import JournalService
from txbroker.journal.history.ledger_service import LedgerService
from txbroker.journal.history.read_throttle import ReadThrottle
from txbroker.model.errors import ConfigError, StoreError
from txbroker.model.log_position import JournalId
from txbroker.node.control_service import ControlService, DelegationCalls, NodeCalls
from txbroker.node.edge_role import EdgeRole
from txbroker.node.member_removal import MemberRemoval
from txbroker.node.node_base import NodeBase
from txbroker.node.owner_role import OwnerRole
from txbroker.node.session_listing import session_pages
from txbroker.rpc.channels import CALLS, CALLS_OF_HOST, SERVER_OPTIONS, Doorkeeper
from txbroker.rpc.control_port import ControlPort
from txbroker.rpc.pieced_calls import Pieces
from txbroker.runtime.sockets.listeners import Listeners
from txbroker.runtime.structured_log import get_logger, log_limited
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2_grpc import add_ControlServicer_to_server
from txbroker.v1.directory_pb2_grpc import add_DirectoryServicer_to_server

log = get_logger()

STOP_GRACE = 1.0
"""Seconds that running gRPC calls have when the node stops."""

RETIRE_GRACE = 2.0
"""Seconds that links have to drain after the zone was handed back."""


class ControlPlane:
    """
    The control plane of a node, as parent and as child of other nodes.

    `on_fatal` receives the one line of a refusal that ends the node.
    """

    def __init__(
        self,
        node_base: NodeBase,
        edge_role: EdgeRole,
        owner: OwnerRole | None,
        *,
        on_fatal: Callable[[str], None],
        on_retired: Callable[[], None],
        on_restart: Callable[[], None],
    ) -> None:
        self._node_base = node_base
        self._edge_role = edge_role
        self._owner = owner
        self._authority = None if owner is None else owner.authority
        self._on_fatal = on_fatal
        self._on_retired = on_retired
        self._lost_root = LostRoot(node_base.node_grant, restart=on_restart)
        self._holding = HoldingSessions(
            data_directory=node_base.data_directory,
            channels=node_base.channels,
            zones=edge_role.edge.zones,
        )
        self._base = self._build_base()
        self.collector = self._build_collector()
        self.parent = self._build_parent()
        self._take_back = HandBackServer(
            self._base, parent=self.parent, watermark=node_base.watermark
        )
        self._reclaimer = ZoneReclaim(self._base, parent=self.parent, on_granted=self._on_granted)
        self.joiner = self._build_joiner()
        self.divergence = self._build_divergence()
        self._pace = ReadThrottle()
        self._journal_service = self._build_journal_service()
        self._ledger_service = self._build_ledger_service()
        self._server: grpc.aio.Server | None = None
        self._port: ControlPort | None = None

    # life

    async def start(
        self,
        listeners: Listeners,
        *,
        status: Callable[[], control_pb2.StatusReply],
        sys_values: Callable[[], dict[str, str]],
    ) -> None:
        """Bind the gRPC port and answer calls; raises `ConfigError`."""
        config = self._node_base.config
        server = grpc.aio.server(
            interceptors=[
                Pieces(self._node_base.counters, CALLS_OF_HOST),
                Doorkeeper(config.node),
            ],
            options=SERVER_OPTIONS,
            maximum_concurrent_rpcs=CALLS,
        )
        servicer = self._build_servicer(lambda: listeners.link, status, sys_values)
        add_ControlServicer_to_server(servicer, server)
        add_DirectoryServicer_to_server(self._edge_role.directory_shell.server, server)
        handlers = self._journal_service.handlers(), self._ledger_service.handlers()
        server.add_generic_rpc_handlers(handlers)
        later = asyncio.get_running_loop().call_soon_threadsafe
        self._port = port = ControlPort(later, self._on_refused_peer)
        try:
            bound = port.bind(config.grpc.host, config.grpc.port)
        except OSError as error:
            raise listeners.cannot_bind("grpc", str(config.grpc), error) from error
        server.add_insecure_port(port.inner)
        await server.start()
        self._server = server
        port.start()
        self._node_base.node_grant.grpc = str(Address(config.dial_host, bound))

    async def refuse_twin(self, earlier: str | None) -> None:
        """
        End a root on copied data if the original node is alive.

        `earlier` is the root's own address in the copied data. Raises `ConfigError`.
        """
        node_grant, node_base = self._node_base.node_grant, self._node_base
        if node_grant.parent is not None or not node_grant.restored:
            return
        other = await living_twin(node_grant, node_base.channels, [earlier] if earlier else [])
        if other is not None:
            raise ConfigError(
                node_base.config.source,
                "data",
                node_base.config.data,
                "stop that one, or set another `data`, `node` and `zone`",
                problem=f"a copy: another node {node_grant.node!r} lives at {other}",
            )

    async def join_first(self) -> None:
        """
        Let the parent judge a node on copied data; return when it has answered or is away.

        The parent may know that the original lives. The copy ends then, before a client is
        acknowledged what no other node would ever get.
        """
        self.join()
        await self.joiner.first_attempt(LOST_AFTER)

    def join(self) -> None:
        """Join the parent, and serve as the parent of the nodes below."""
        if self._node_base.node_grant.parent is not None:
            self._node_base.tasks.start(self.joiner.run())
        if self._authority is not None:
            self.parent.adopt(self._authority.cuts())
            self.collector.start()

    def held(self) -> set[JournalId]:
        """Return the parts of journals that must not be trimmed."""
        return self.divergence.held() | self.collector.held()

    async def stop(self) -> None:
        """Stop answering calls."""
        self._journal_service.close()
        self._edge_role.directory_shell.server.close()
        if self._server is not None:
            await self._server.stop(STOP_GRACE)
        if self._port is not None:
            self._port.close()

    # from the joiner

    def _on_granted(self) -> None:
        if self._owner is not None and self._owner.holding.is_due:
            self._owner.holding.open()
            self.parent.adopt(self._node_base.node_grant.table.cuts())
        self._edge_role.on_lineage()

    def _on_refused(self, refused: JoinRefused) -> None:
        node_grant, reason = self._node_base.node_grant, refused.reason
        is_new = self._owner is None or (node_grant.epoch == 0 and not refused.cut_off)
        if self._owner is not None and not is_new:
            self._owner.holding.refuse(reason, refused.cut_off)
            if refused.twin:
                self._mark_copy()
        if is_new or refused.twin:
            where = f"{self._node_base.config.source}: join refused by {node_grant.parent}"
            self._on_fatal(f"{where}: {reason}")

    def _mark_copy(self) -> None:
        """Let the next start take the data for a copy: the zone waits for a grant then."""
        try:
            backups.mark(self._node_base.config.data, time.time())
        except StoreError as error:
            log.error("state.write_failed", reason=str(error))

    # from the port

    def _on_refused_peer(self, peer: str, reason: str) -> None:
        self._node_base.counters.add("control.refused")
        log_limited(log.warning, "control.disconnected", kind=reason, peer=peer, reason=reason)

    # building

    def _build_base(self) -> DelegationBase:
        node_base = self._node_base
        departure = self._edge_role.departure()
        return DelegationBase(
            node_grant=node_base.node_grant,
            authority=self._authority,
            lifecycle=None if self._owner is None else self._owner.holding,
            members=self._edge_role.members,
            channels=node_base.channels,
            data_directory=node_base.data_directory,
            retention=node_base.retention,
            departure=departure,
            runner=DelegationRunner(
                node_grant=node_base.node_grant,
                authority=self._authority,
                committer=node_base.data_directory.committer,
                channels=node_base.channels,
                departure=departure,
            ),
            tasks=node_base.tasks,
            flush_queue=node_base.flush_queue,
            ownership=asyncio.Lock(),
        )

    def _build_parent(self) -> JoinServer:
        return JoinServer(
            self._base,
            admission=self._edge_role.directory.admission,
            lost_root=self._lost_root,
            collector=self.collector,
        )

    def _build_collector(self) -> StrayCollector:
        edge_role = self._edge_role
        return StrayCollector(
            self._base,
            outboxes=edge_role.edge.outboxes,
            store=edge_role.outbox_store,
            publish=edge_role.edge.publish,
        )

    def _build_joiner(self) -> JoinClient:
        return JoinClient(
            self._base,
            withdrawal=lambda: EdgeRetirement(self._base, lambda: self.parent.children),
            on_granted=self._on_granted,
            on_refused=self._on_refused,
            on_lineage=self._edge_role.on_lineage,
        )

    def _build_divergence(self) -> DivergentBranch:
        return DivergentBranch(self._base, ask_again=self.joiner.ask_again)

    def _build_forgetter(self) -> MemberRemoval:
        node_base = self._node_base
        return MemberRemoval(
            node_grant=node_base.node_grant,
            members=self._edge_role.members,
            admission=self._edge_role.directory.admission,
            parent=self.parent,
            channels=node_base.channels,
            commit=node_base.data_directory.committer,
        )

    def _build_servicer(
        self,
        link_address: Callable[[], str],
        status: Callable[[], control_pb2.StatusReply],
        sys_values: Callable[[], dict[str, str]],
    ) -> ControlService:
        node_base, edge_role = self._node_base, self._edge_role
        return ControlService(
            self._base,
            DelegationCalls(
                parent=self.parent,
                take_back=self._take_back,
                reclaimer=self._reclaimer,
                divergence=self.divergence,
                forgetter=self._build_forgetter(),
                joiner=self.joiner,
                lost_root=self._lost_root,
            ),
            NodeCalls(
                status=status,
                sys_values=sys_values,
                sessions=self._session_pages,
                delete_session=edge_role.edge.clients.delete,
                holding=self._holding,
                backups=backups.Backups(
                    node_base.config.data, now=time.time, extents=node_base.data_directory.extents
                ),
                retired=lambda: node_base.reactor.callLater(RETIRE_GRACE, self._on_retired),
            ),
            links=None if self._owner is None else self._owner.links,
            link_address=link_address,
            reader=edge_role.reader,
        )

    def _build_journal_service(self) -> JournalService:
        node_base = self._node_base
        return JournalService(
            node=node_base.config.node,
            parts=JournalCatalog(
                data_directory=node_base.data_directory,
                authority=self._authority,
                node_grant=node_base.node_grant,
                now=node_base.reactor.seconds,
            ),
            pace=self._pace,
            counters=node_base.counters,
            on_failed=node_base.data_directory.fail,
        )

    def _build_ledger_service(self) -> LedgerService:
        node_base, edge = self._node_base, self._edge_role.edge
        return LedgerService(
            node=node_base.config.node,
            data_directory=node_base.data_directory,
            pace=self._pace,
            sessions=lambda: edge.clients.sessions.values(),
            positions=edge.cursors.followed_now,
        )

    async def _session_pages(self) -> Iterator[control_pb2.SessionsReply]:
        edge = self._edge_role.edge
        held = await self._holding.of(edge.clients.sessions.values())
        sessions = edge.clients.sessions.values()
        now, lifetime = self._node_base.timers.now(), edge.clients.lifetime
        return session_pages(sessions, now, edge.backlog.distance, lifetime, held)
