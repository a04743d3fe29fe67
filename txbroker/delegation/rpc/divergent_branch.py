"""
SHELL: the branch of a node whose zone was reclaimed: shown, replayed or dropped by command.

The branch is what the node took at an epoch that its parent has ended without it: a part of a
journal like others. Sessions that had not passed it, anywhere, have set it aside; when the node has
its zone again they find the part there, and read on from where they were (protocol rule 15). So a
replay brings each session what it misses, once, and to drop the branch is to delete the part.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator

from txbroker.data.data_directory import DataDirectory
from txbroker.delegation.state.node_grant import NodeGrant
from txbroker.journal.store.journal_parts import JournalPart
from txbroker.journal.store.record_format import decode_records
from txbroker.journal.store.retention import Retention
from txbroker.model.errors import StoreError
from txbroker.model.log_position import JournalId
from txbroker.mqtt.wire.message import Message
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.structured_log import get_logger
from txbroker.storage.lived_time import SECOND
from txbroker.v1 import control_pb2

log = get_logger()

AT_ONCE = 500
"""Records that are worked through before others have their turn."""

TOPICS = 1_000
"""Topics that are told of one by one."""


class DivergentError(Exception):
    """There is nothing that could be done so; one line why. Nothing has changed."""


class DivergentBranch:
    """
    `on_settled` is called when the node may ask for its zone again; `now`: what the node has lived.
    """

    def __init__(
        self,
        *,
        standing: NodeGrant,
        disk: DataDirectory,
        retention: Retention,
        turn: FlushQueue,
        on_settled: Callable[[], None],
        now: Callable[[], int],
    ) -> None:
        self._standing = standing
        self._disk = disk
        self._retention = retention
        self._turn = turn
        self._on_settled = on_settled
        self._now = now
        self._table = disk.tables.table("divergent")
        self._lock = asyncio.Lock()

    def held(self) -> set[JournalId]:
        """Parts of the journal that have to be kept whole, as sessions may yet come for them."""
        held = {} if self._branch is None else {self._branch: None}
        until = self._now() - int(self._retention.policy.session_age * SECOND)
        for name, value in list(self._table.items()):
            epoch, _, zone = name.decode().partition(" ")
            if int.from_bytes(value) < until:
                self._table.delete(name)
            else:
                held[JournalId(zone, int(epoch))] = None
        return set(held)

    # from operators

    async def look(self, zone: str) -> control_pb2.DivergentReply:
        """What the branch has that some edge may not have; raises `DivergentError`."""
        async with self._lock:
            branch = self._branch_of(zone)
            reply = control_pb2.DivergentReply(done=True, epoch=branch.epoch)
            messages: Counter[str] = Counter()
            for number, (message, time) in enumerate(self._unseen(branch), 1):
                reply.messages += 1
                reply.size += message.size
                reply.first = reply.first or time
                reply.last = time
                if message.topic in messages or len(messages) < TOPICS:
                    messages[message.topic] += 1
                if number % AT_ONCE == 0:
                    await asyncio.sleep(0)
            for topic, count in messages.items():
                reply.topics.add(topic=topic, messages=count)
            return reply

    async def replay(self, zone: str) -> control_pb2.DivergentReply:
        """Let sessions have what they miss of it; raises `DivergentError`, `StoreError`."""
        async with self._lock:
            branch = self._branch_of(zone)
            self._table.put(f"{branch.epoch} {zone}".encode(), self._now().to_bytes(8))
            await self._disk.committer.drain()
            log.warning("divergent.replayed", zone=zone, epoch=branch.epoch)
            self._settle()
            return control_pb2.DivergentReply(done=True, epoch=branch.epoch)

    async def drop(self, zone: str) -> control_pb2.DivergentReply:
        """Give the branch up; raises `DivergentError`, `StoreError`."""
        async with self._lock:
            branch = self._branch_of(zone)
            if branch in self._disk.journals.parts:
                self._disk.journals.drop(branch)
            log.warning("divergent.dropped", zone=zone, epoch=branch.epoch)
            self._settle()
            return control_pb2.DivergentReply(done=True, epoch=branch.epoch)

    # internal

    @property
    def _branch(self) -> JournalId | None:
        standing = self._standing
        if not standing.divergent or standing.zone is None:
            return None
        return JournalId(standing.zone, standing.divergent)

    def _branch_of(self, zone: str) -> JournalId:
        branch = self._branch
        if branch is None or branch.zone != zone:
            raise DivergentError(
                f"node {self._standing.node!r} has no divergent branch of zone {zone!r}"
            )
        return branch

    def _settle(self) -> None:
        self._standing.settle()
        self._on_settled()
        self._turn.end()

    def _unseen(self, branch: JournalId) -> Iterator[tuple[Message, int]]:
        part = self._disk.journals.get(branch)
        return iter(()) if part is None else _above(part, self._retention.lowest(branch))


def _above(part: JournalPart, offset: int) -> Iterator[tuple[Message, int]]:
    """The messages of QoS 1 and 2 above an offset, with the time of each in UTC microseconds."""
    try:
        for batch in part.log.batches(offset):
            for record in decode_records(batch):
                if record.offset > offset and record.message.qos:
                    yield record.message, batch.time
    except ValueError as error:
        raise StoreError(f"{part.log.folder}: not readable as a journal: {error}") from error
