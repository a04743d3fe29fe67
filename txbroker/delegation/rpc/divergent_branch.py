"""
SHELL: the branch of a node whose zone was reclaimed: shown, replayed or dropped by command.

A branch is a part of a journal. A branch has the records that the node accepted at an epoch that
its parent ended without it. Sessions on any node that had not read past the branch have set its
cursor aside. When the node has its zone again, these sessions find the part and continue at their
cursors (protocol rule 15). So a replay delivers to each session the missed records once. Dropping
the branch deletes the part.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

from txbroker.delegation.rpc.delegation_base import DelegationBase
from txbroker.journal.store.journal_parts import JournalPart
from txbroker.journal.store.record_format import decode_records
from txbroker.model.errors import StoreError
from txbroker.model.log_position import JournalId
from txbroker.mqtt.wire.message import Message
from txbroker.runtime.structured_log import get_logger
from txbroker.storage.lived_time import SECOND
from txbroker.v1 import control_pb2

log = get_logger()

AT_ONCE = 500
"""Records after which a scan yields to other work."""

ANSWERED_IN = 10.0
"""Seconds in which the parent should answer a node that asks for its zone again."""

TOPICS = 1_000
"""The most topics that a report lists one by one."""


class DivergentError(Exception):
    """The command cannot be done; one line with the reason. No state has changed."""


class DivergentBranch:
    """
    The commands on the node's branch.

    `ask_again` asks the parent for the zone, which the node may have again once the branch is
    settled. It waits for so many seconds, and returns why the zone is not granted, or "".
    """

    def __init__(
        self, base: DelegationBase, *, ask_again: Callable[[float], Awaitable[str]]
    ) -> None:
        self._node_grant = base.node_grant
        self._data_directory = base.data_directory
        self._retention = base.retention
        self._flush_queue = base.flush_queue
        self._ask_again = ask_again
        self._now = base.data_directory.lived
        self._table = base.data_directory.tables.table("divergent")
        self._lock = asyncio.Lock()

    def held(self) -> set[JournalId]:
        """Return the journal parts that retention must not trim: sessions may still read them."""
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

    async def missing_messages(self, zone: str) -> control_pb2.DivergentReply:
        """Return the branch's messages that some edge may lack; raises `DivergentError`."""
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
        """
        Let sessions read the records of the branch that they miss.

        Raises `DivergentError`, `StoreError`.
        """
        async with self._lock:
            branch = self._branch_of(zone)
            self._table.put(f"{branch.epoch} {zone}".encode(), self._now().to_bytes(8))
            await self._data_directory.committer.drain()
            log.warning("divergent.replayed", zone=zone, epoch=branch.epoch)
            return await self._settle(branch)

    async def drop(self, zone: str) -> control_pb2.DivergentReply:
        """Delete the branch; raises `DivergentError`, `StoreError`."""
        async with self._lock:
            branch = self._branch_of(zone)
            if branch in self._data_directory.journals.parts:
                self._data_directory.journals.drop(branch)
            log.warning("divergent.dropped", zone=zone, epoch=branch.epoch)
            return await self._settle(branch)

    # internal

    @property
    def _branch(self) -> JournalId | None:
        node_grant = self._node_grant
        if not node_grant.divergent or node_grant.zone is None:
            return None
        return JournalId(node_grant.zone, node_grant.divergent)

    def _branch_of(self, zone: str) -> JournalId:
        branch = self._branch
        if branch is None or branch.zone != zone:
            raise DivergentError(
                f"node {self._node_grant.node!r} has no divergent branch of zone {zone!r}"
            )
        return branch

    async def _settle(self, branch: JournalId) -> control_pb2.DivergentReply:
        """Ask for the zone: other reasons than the branch may keep the node from it."""
        self._node_grant.record_settled()
        self._flush_queue.end()
        refusal = await self._ask_again(ANSWERED_IN)
        return control_pb2.DivergentReply(done=True, epoch=branch.epoch, reason=refusal)

    def _unseen(self, branch: JournalId) -> Iterator[tuple[Message, int]]:
        part = self._data_directory.journals.get(branch)
        return iter(()) if part is None else _above(part, self._retention.lowest(branch))


def _above(part: JournalPart, offset: int) -> Iterator[tuple[Message, int]]:
    """Yield messages of QoS 1 and 2 above an offset, each with its time in UTC microseconds."""
    try:
        for batch in part.log.batches(offset):
            for record in decode_records(batch):
                if record.offset > offset and record.message.qos:
                    yield record.message, batch.time
    except ValueError as error:
        raise StoreError(f"{part.log.folder}: not readable as a journal: {error}") from error
