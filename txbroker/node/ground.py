"""Composition: what both roles of a node stand on: time, room, its data, and who it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import attrs

from txbroker.aio import Tasks
from txbroker.alarms import ReactorTimers, keep_time
from txbroker.config import Address, NodeConfig
from txbroker.control.channels import Channels
from txbroker.core import Exchange
from txbroker.counters import Counters
from txbroker.mqtt.service import Outputs
from txbroker.node.settings import policy, segment_bytes
from txbroker.pressure import Pressure
from txbroker.shares import Shares
from txbroker.standing import Standing
from txbroker.store import backup
from txbroker.store.disk import Disk
from txbroker.store.lived import Ages
from txbroker.store.renumber import renumber_parts, renumber_tables
from txbroker.store.retention import Retention
from txbroker.store.space import DiskSpace
from txbroker.store.state import DataFolder, NodeState
from txbroker.strangers import Halves, Strangers, most_halves
from txbroker.streams.poller import Poller
from txbroker.streams.reactor import StreamReactor
from txbroker.telemetry import get_logger
from txbroker.turn import Turn

log = get_logger()

SWITCH = 0.001
"""
Seconds for which a thread that has synced waits for a loop that is busy; with the usual 5 ms, each
commit takes tens of them.
"""


class Ground:
    """`config` changes with `apply`; `on_fatal` gets the one line of an error of the disk."""

    def __init__(
        self, config: NodeConfig, reactor: Any, *, on_fatal: Callable[[str], None]
    ) -> None:
        keep_time(reactor)
        sys.setswitchinterval(SWITCH)
        self.config = config
        self.reactor = reactor
        self.counters = Counters()
        self.strangers = Strangers(self.counters, config.limits.unauthenticated)
        self.halves = Halves(self.counters, config.limits.packet)
        self.turn = Turn(lambda action: reactor.callLater(0, action))
        self.shares = Shares(
            later=lambda action: reactor.callLater(0, action),
            now=reactor.seconds,
            worked=time.thread_time,
            turn=self.turn,
            tell=lambda waiting: self.sockets.crowd(waiting),
        )
        self.tasks = Tasks(self.turn)
        self.timers = ReactorTimers(reactor, self.turn)
        self.pressure = Pressure(self.timers)
        self.space = DiskSpace(
            config.data, config.limits.disk_free, timers=self.timers, counters=self.counters
        )
        self.exchange = Exchange(lambda: self.turn.mark_dirty(self.outputs))
        self.outputs = Outputs(self.exchange, self.turn.mark_next)
        self.sockets = self.exchange.make_sockets()
        self.shares.when_hurried(self.sockets.hurry)
        self.poller = Poller(reactor.seconds, self.turn, self.sockets)
        self.streams = StreamReactor(reactor, self.poller)
        self.channels = Channels()
        self.folder = DataFolder(config.data, on_failed=lambda error: on_fatal(str(error)))
        state = self.folder.load(config.node, config.zone)
        made = self._made_at(state)
        self.standing = self._build_standing(state, made)
        self._renumber_parts()
        self.disk = self._build_disk(on_fatal)
        self._renumber_tables()
        if config.ledger:
            self.disk.keep_ledger(
                is_copy=made is not None,
                is_full=lambda: self.space.is_full,
                counters=self.counters,
            )
        else:
            self.disk.keep_no_ledger()
        if made is not None:
            self._restore(made)
        self.retention = Retention(
            journals=self.disk.journals,
            table=self.disk.tables.table("kept"),
            policy=policy(config),
            counters=self.counters,
            ages=Ages(self.disk.tables.table("ages"), self.disk.lived),
            now=self.disk.lived,
        )

    def apply(self, config: NodeConfig) -> None:
        """Other limits from now on."""
        self.config = config
        self.retention.policy = policy(config)
        self.space.set_reserve(config.limits.disk_free)
        self.strangers.most = config.limits.unauthenticated
        self.halves.most = most_halves(config.limits.packet)

    def tidy(self) -> None:
        """Now and then, every second or so."""
        self.disk.lived.tick()
        self.disk.tables.clean()
        self.disk.scan()

    def close(self) -> None:
        """Everything is on the disk; the data folder is free for another process."""
        self.disk.close()
        self.folder.close()

    # internal

    def _made_at(self, state: NodeState) -> float | None:
        """When the data was copied, by a backup or by other means; None: it is no copy."""
        folder = self.config.data
        made = backup.made_at(folder)
        copied = self.folder.copied_at(state)
        if made is None and copied is not None:
            backup.mark(folder, made := copied)
        return made

    def _build_standing(self, state: NodeState, made: float | None) -> Standing:
        config = self.config
        # An edge whose data was lost must not give the numbers of its streams a second time.
        incarnation = state.incarnation or backup.unused_incarnation(0, time.time())
        state = attrs.evolve(state, place=self.folder.place, incarnation=incarnation)
        return Standing(
            self.folder,
            state if made is None else backup.restored(state, time.time()),
            str(Address(config.dial_host, config.grpc.port)),
            None if config.parent is None else str(config.parent),
        )

    def _build_disk(self, on_fatal: Callable[[str], None]) -> Disk:
        config = self.config
        return Disk(
            config.data,
            durability=config.durability,
            sync_interval=config.sync_interval,
            segment_bytes=segment_bytes(config),
            turn=self.turn,
            timers=self.timers,
            on_full=self.space.set_full,
            on_failed=lambda error: on_fatal(str(error)),
            on_written=self.space.note_written,
            on_behind=self.space.set_behind,
            on_awaited=self.shares.await_sync,
        )

    def _renumber_parts(self) -> None:
        for old, new in self.standing.renumbering:
            renumber_parts(self.config.data / "journal", old, new, data=self.config.data)

    def _renumber_tables(self) -> None:
        for old, new in self.standing.renumbering:
            renumber_tables(self.disk.tables, old, new)
        if self.standing.renumbering:
            self.disk.committer.when_durable(self.standing.finish_renumbering)

    def _restore(self, made: float) -> None:
        """The data is a copy, made at that time: nothing that was used since is used again."""
        log.warning("node.restored", made=datetime.fromtimestamp(made, UTC).isoformat())
        self.standing.restore()
        self.disk.committer.when_durable(lambda: backup.forget(self.config.data))
