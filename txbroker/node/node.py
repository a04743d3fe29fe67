"""
Composition: one node, and its life.

Everything is constructed in `Node.__init__`, in the order of the layers. `start` binds the
listeners and begins to join, `stop` undoes that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txbroker import __version__
from txbroker.config import NodeConfig, reread
from txbroker.core import KIND
from txbroker.delegation.timeouts import LOST_AFTER
from txbroker.model.errors import ConfigError
from txbroker.mqtt.transport.protocol import MqttFactory
from txbroker.node.control_plane import ControlPlane
from txbroker.node.edge_role import EdgeRole
from txbroker.node.node_base import NodeBase
from txbroker.node.node_checks import NodeChecks
from txbroker.node.node_status import NodeStatus
from txbroker.node.owner_role import OwnerRole
from txbroker.node.sys_values import EVERY, NodeFigures, SysRates, SysValues
from txbroker.node.table_sizes import TableSizes
from txbroker.runtime.periodic import BEAT, PeriodicTasks
from txbroker.runtime.sockets.listeners import Listeners
from txbroker.runtime.structured_log import get_logger
from txbroker.storage.disk_watermark import LOOK_EVERY

log = get_logger()

SETTLE_GRACE = 1.0
"""Seconds that other nodes have to learn of the end of this node's connections."""


class Node:
    """
    A broker process; `on_fatal` gets the one line of an error that ends it. After `on_restart` the
    node is to be stopped, and another one made of the same data.
    """

    def __init__(
        self,
        config: NodeConfig,
        reactor: Any,
        *,
        on_fatal: Callable[[str], None],
        on_retired: Callable[[], None],
        on_restart: Callable[[], None],
    ) -> None:
        self._node_base = node_base = NodeBase(config, reactor, on_fatal=on_fatal)
        self._listeners = Listeners(config, node_base.streams)
        self._owner = None if config.zone is None else OwnerRole(node_base, config.zone)
        self.authority = None if self._owner is None else self._owner.authority
        self._edge_role = EdgeRole(node_base, self.authority)
        self.edge = self._edge_role.edge
        if self._owner is not None:
            self._owner.wire(self._edge_role)
        self._control = ControlPlane(
            node_base,
            self._edge_role,
            self._owner,
            on_fatal=on_fatal,
            on_retired=on_retired,
            on_restart=on_restart,
        )
        self.counters, self.node_grant = node_base.counters, node_base.node_grant
        self.members, self.parent = self._edge_role.members, self._control.parent
        sizes = TableSizes(node_base, self._edge_role, self._owner)
        self._figures = NodeFigures(SysRates(self.edge, reactor.seconds), sizes.all)
        self._status = NodeStatus(
            node_base,
            self._edge_role,
            authority=self.authority,
            parent=self.parent,
            figures=self._figures,
            listeners=self._listeners,
        )
        self._sys = self._build_sys()
        self.edge.sys.when_federation_is_asked(self._fetch_sys)
        self._removed: set[str] = set()
        self.members.when_changed(self._forget_removed)
        self._heart = PeriodicTasks(reactor)
        self._heart.every(BEAT, self._edge_role.directory_shell.beat)
        self._heart.every(LOOK_EVERY, node_base.watermark.measure)
        self._heart.every(1.0, self._each_second)
        self._heart.every(EVERY, self._each_sys_period)
        self.checks = NodeChecks(node_base, self._edge_role, self._owner)
        self.checks.start(self._heart)

    # life

    async def start(self, before_ready: Callable[[], None] = lambda: None) -> None:
        """
        Bind every listener, then open the zone and join; raises `ConfigError`.

        The node calls `before_ready` when all lasting objects exist, just before it logs
        `node.ready`.
        """
        owner, node_grant = self._owner, self.node_grant
        self._node_base.watermark.measure()
        await self._control.start(
            self._listeners, status=self._status.reply, sys_values=self._sys.values
        )
        me = self.members.get(node_grant.node)
        await self._control.refuse_twin(None if me is None else me.grpc)
        if owner is not None:
            await self._listeners.for_links(owner.links)
        self._edge_role.load()
        if owner is not None and node_grant.serving:
            owner.holding.open()
        self._edge_role.on_lineage()
        self.edge.interests.refresh()
        is_copy = node_grant.restored and node_grant.parent is not None
        if is_copy:
            await self._control.join_first()
        if is_copy or self._node_base.was_copied:
            # Otherwise a client would get here what it has got at the node to which it had moved. A
            # root once restored stays so: its later starts need not wait.
            await self._edge_role.directory_shell.await_rivals(LOST_AFTER)
        await self._listeners.for_clients(MqttFactory(self._edge_role.mqtt))
        mqtt = self._listeners.mqtt
        before_ready()
        log.info(
            "node.ready",
            zone=node_grant.zone,
            mqtt=mqtt[0] if len(mqtt) == 1 else mqtt,
            grpc=node_grant.grpc,
            link=self._listeners.link,
            core=KIND,
            version=__version__,
        )
        self._heart.start()
        if not is_copy:
            self._control.join()

    async def stop(self) -> None:
        """Close listeners and connections without publishing wills; then close the store."""
        self._node_base.watermark.stop()
        await self._listeners.close()
        self._edge_role.mqtt.stop()
        # Without this wait, a keeper of entries takes the end for a death and publishes wills.
        await self._edge_role.directory_shell.await_keepers(SETTLE_GRACE)
        self._heart.stop()
        self.parent.close()
        await self._node_base.tasks.stop()
        await self._node_base.channels.close()
        if self._owner is not None:
            self._owner.holding.own_zone.beat()
        self.edge.cursors.checkpoint_now()
        if self._owner is not None:
            self._owner.store.close()
        self._node_base.poller.close()
        # The last port must close after the data folder: its end may trigger a restart of the node.
        self._node_base.close()
        await self._control.stop()

    def reload(self) -> None:
        """Read the topology file again; a file with an error changes nothing."""
        try:
            found = reread(self._node_base.config)
        except ConfigError as error:
            log.error("config.refused", reason=str(error))
            return
        self._node_base.apply(found.config)
        self._edge_role.apply()
        if self._owner is not None:
            self._owner.links.max_links = found.config.limits.links
            self._owner.apply()
        say = log.warning if found.restart_needed else log.info
        restart_needed = list(found.restart_needed)
        say("config.reloaded", changed=found.changed, restart_needed=restart_needed)

    # internal

    def _build_sys(self) -> SysValues:
        node_base, connections = self._node_base, self._edge_role.mqtt.connections
        return SysValues(
            node_base,
            edge=self.edge,
            authority=self.authority,
            figures=self._figures,
            clients=lambda: len(connections),
        )

    def _fetch_sys(self) -> None:
        self._node_base.tasks.start(self._sys.fetch())

    def _forget_removed(self) -> None:
        """Forget the marks and retention claims of removed members (protocol rule 4)."""
        removed = {member.name for member in self.members.all if member.removed}
        for name in removed - self._removed:
            if self.authority is None:
                self._node_base.retention.forget(name)
            else:
                self.authority.reception.forget(name)
        self._removed = removed

    def _each_second(self) -> None:
        self._figures.rates.sample()
        self._edge_role.refresh()
        if self._owner is not None:
            self._owner.holding.own_zone.beat()
            self._owner.groups.beat()
        self._edge_role.checkpoint()
        self._edge_role.record(() if self.authority is None else self.authority.transitions)
        if self._owner is not None:
            self._owner.store.checkpoint.write_if_due()
        self._node_base.tidy()
        self._node_base.flush_queue.end()

    def _trim(self) -> None:
        """Trim the records of journals that neither retention nor a held part requires."""
        store = None if self._owner is None else self._owner.store
        present, saved = (None, 0) if store is None else (store.present, store.checkpoint.saved)
        held = self._control.held()
        claimed = self._node_base.node_grant.held_part
        if present is None and claimed is not None:
            # The zone waits for a grant of its parent or an operator. Trimming its part would lose
            # the zone's retained messages and marks, and the zone would begin anew.
            held.add(claimed)
        self._node_base.retention.trim(present, saved, held)

    def _each_sys_period(self) -> None:
        self._sys.refresh()
        if self.authority is not None:
            self.authority.wills.forget_old(self._node_base.data_directory.lived())
            if self.authority.serving:
                self.authority.expire_retained()
                self.authority.held.look()
        self._edge_role.expire_sessions()
        if self._owner is None:
            self._trim()
        else:
            self._owner.store.checkpoint.sync(self._trim)
        if self._node_base.data_directory.ledger is not None:
            self._node_base.data_directory.ledger.trim(self._node_base.retention.policy)
        self.edge.backlog.poll_cut_off(self.edge.clients.sessions.values())
        self._node_base.flush_queue.end()
        self._fetch_sys()
