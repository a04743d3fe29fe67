"""Composition: what both roles of a node stand on: time, room, its data, and who it is."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import attrs

from txbroker.config import Address, NodeConfig
from txbroker.core import Router
from txbroker.data import backups
from txbroker.data.data_directory import DataDirectory, StoreSettings, require_folders
from txbroker.delegation.grant_state import NodeState
from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.rpc.grant_saver import save_in_time
from txbroker.delegation.state.node_state import DataFolder
from txbroker.journal.store.part_renumber import renumber_parts, renumber_tables
from txbroker.journal.store.retention import Retention
from txbroker.model.counters import Counters
from txbroker.node.settings import policy, segment_bytes
from txbroker.rpc.channels import Channels
from txbroker.runtime.aio import Tasks
from txbroker.runtime.backpressure import Backpressure
from txbroker.runtime.checked_turns import make_flush_queue
from txbroker.runtime.connection_parts import ConnectionParts
from txbroker.runtime.fair_shares import FairShares
from txbroker.runtime.periodic import ReactorTimers, use_monotonic_clock
from txbroker.runtime.sockets.poller import Poller, SocketOutputs
from txbroker.runtime.sockets.reactor import StreamReactor
from txbroker.runtime.structured_log import get_logger
from txbroker.runtime.unauthenticated import HalfPackets, Unauthenticated, most_halves
from txbroker.storage.commit_ports import CommitEvents
from txbroker.storage.disk_watermark import DiskWatermark
from txbroker.storage.lived_time import EntryAges

log = get_logger()

SWITCH = 0.0001
"""
Seconds that a thread waits for a busy loop, before and after a sync.

Python begins to count anew whenever the loop makes a system call. With 1 ms, the calls of short
turns kept the thread out for up to 80 ms. With Python's default of 5 ms, each commit took that.
"""


class NodeBase:
    """
    `config` changes with `apply`; `on_fatal` gets the one line of an error of the disk.

    `was_copied`: True if this start is the first one on copied data.
    """

    def __init__(
        self, config: NodeConfig, reactor: Any, *, on_fatal: Callable[[str], None]
    ) -> None:
        use_monotonic_clock(reactor)
        sys.setswitchinterval(SWITCH)
        self.config = config
        self.reactor = reactor
        self.counters = Counters()
        # A busy node asks for a turn thousands of times a second. The reactor's `callLater` makes
        # three objects for each, and moves its one alarm of the loop.
        later = asyncio.get_running_loop().call_soon
        self.flush_queue = make_flush_queue(later)
        self.shares = FairShares(
            later=later,
            now=reactor.seconds,
            worked=time.thread_time,
            flush_queue=self.flush_queue,
            tell=lambda waiting: self.sockets.crowd(waiting),
        )
        self.tasks = Tasks(self.flush_queue)
        self.timers = ReactorTimers(reactor, self.flush_queue)
        self.backpressure = Backpressure(self.timers)
        self.connection_parts = ConnectionParts(
            clock=reactor,
            flush_queue=self.flush_queue,
            counters=self.counters,
            backpressure=self.backpressure,
            shares=self.shares,
            unauthenticated=Unauthenticated(self.counters, config.limits.unauthenticated),
            halves=HalfPackets(self.counters, config.limits.packet),
        )
        self.watermark = DiskWatermark(
            config.data, config.limits.disk_free, timers=self.timers, counters=self.counters
        )
        self.outputs = SocketOutputs(self.flush_queue.mark_next)
        self.router = Router(partial(self.flush_queue.mark_dirty, self.outputs))
        self.outputs.router = self.router
        self.shares.shorten(self.outputs)
        self.sockets = self.router.make_sockets()
        self.shares.when_hurried(self.sockets.hurry)
        self.poller = Poller(reactor.seconds, self.flush_queue, self.sockets)
        self.streams = StreamReactor(reactor, self.poller)
        self.channels = Channels()
        self.folder = DataFolder(config.data, on_failed=lambda error: on_fatal(str(error)))
        state = self.folder.load(config.node, config.zone)
        require_folders(
            config.data, is_new=not state.incarnation, owns_zone=config.zone is not None
        )
        made = self._made_at(state)
        self.node_grant = self._build_standing(state, made)
        self.was_copied = made is not None
        self._renumber_parts()
        self.data_directory = self._build_disk(on_fatal)
        self._renumber_tables()
        if config.ledger:
            self.data_directory.open_ledger(
                is_copy=self.was_copied,
                is_full=lambda: self.watermark.is_full,
                counters=self.counters,
            )
        else:
            self.data_directory.disable_ledger()
        if made is not None:
            self._restore(made)
        self.retention = Retention(
            journals=self.data_directory.journals,
            table=self.data_directory.tables.table("kept"),
            policy=policy(config),
            counters=self.counters,
            ages=EntryAges(self.data_directory.tables.table("ages"), self.data_directory.lived),
            now=self.data_directory.lived,
        )

    def apply(self, config: NodeConfig) -> None:
        """Apply changed limits."""
        self.config = config
        self.retention.policy = policy(config)
        self.watermark.set_reserve(config.limits.disk_free)
        self.connection_parts.unauthenticated.most = config.limits.unauthenticated
        self.connection_parts.halves.most = most_halves(config.limits.packet)

    def tidy(self) -> None:
        """Run periodic work; the caller calls this every second or so."""
        self.data_directory.lived.tick()
        self.data_directory.message_clock.tick()
        self.data_directory.tables.clean()
        self.data_directory.scan()

    def close(self) -> None:
        """Write everything to the disk, and free the data folder for another process."""
        self.data_directory.close()
        self.folder.close()

    # internal

    def _made_at(self, state: NodeState) -> float | None:
        """Return the time when the data was copied, by a backup or otherwise; None if never."""
        folder = self.config.data
        made = backups.made_at(folder)
        copied = self.folder.copied_at(state)
        if made is None and copied is not None:
            backups.mark(folder, made := copied)
        return made

    def _build_standing(self, state: NodeState, made: float | None) -> NodeGrant:
        config = self.config
        # Without a new incarnation, an edge that lost its data would reuse its sequence numbers.
        incarnation = state.incarnation or backups.unused_incarnation(0, time.time())
        state = attrs.evolve(state, place=self.folder.place, incarnation=incarnation)
        return NodeGrant(
            self.folder,
            state if made is None else backups.restored(state, time.time()),
            str(Address(config.dial_host, config.grpc.port)),
            None if config.parent is None else str(config.parent),
            draw=secrets.randbelow,
        )

    def _build_disk(self, on_fatal: Callable[[str], None]) -> DataDirectory:
        config = self.config
        return DataDirectory(
            config.data,
            StoreSettings(
                durability=config.durability,
                sync_interval=config.sync_interval,
                segment_bytes=segment_bytes(config),
            ),
            flush_queue=self.flush_queue,
            timers=self.timers,
            events=CommitEvents(
                on_full=self.watermark.set_full,
                on_failed=lambda error: on_fatal(str(error)),
                on_written=self.watermark.measure_after_write,
                on_behind=self.watermark.set_behind,
                on_awaited=self.shares.await_sync,
            ),
        )

    def _renumber_parts(self) -> None:
        for old, new in self.node_grant.renumbering:
            renumber_parts(self.config.data / "journal", old, new, data=self.config.data)

    def _renumber_tables(self) -> None:
        for old, new in self.node_grant.renumbering:
            renumber_tables(self.data_directory.tables, old, new)
        if self.node_grant.renumbering:
            finish = partial(save_in_time, self.node_grant.finish_renumbering, self.timers)
            self.data_directory.committer.when_durable(finish)

    def _restore(self, made: float) -> None:
        """Renew what was used after the copy was made at time `made`, so that none is reused."""
        log.warning("node.restored", made=datetime.fromtimestamp(made, UTC).isoformat())
        self.node_grant.restore()
        self.data_directory.committer.when_durable(lambda: backups.forget(self.config.data))
