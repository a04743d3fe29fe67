"""
SHELL: delivers stray publishes to the owner: this node accepted them for another node's zone.

A root with a lost disk serves its children's zones too, until the children are back. So does a node
whose copy dates from before a delegation. Clients have acknowledgements for these publishes. So the
publishes continue to the owner, as an outbox whose entries lie in the journal. None enters the
owner's journal twice, also if this node dies meanwhile. A session that received such a publish here
receives the owner's copy again.

A restored copy holds the strays of each earlier life in a part of its own. The owner names this
zone's epoch at the owner's last grant: records of later epochs are strays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import attrs

from txbroker.data.data_directory import DataDirectory
from txbroker.delegation.grant_state import Strays
from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.rpc.delegation_base import DelegationBase
from txbroker.delegation.rpc.procedure_runner import settled
from txbroker.edge.routing.outbox_manager import OutboxManager
from txbroker.edge.routing.stored_outbox import DrainState, OutboxState
from txbroker.edge.store.journal_outbox import JournalEntries, JournalOutboxes
from txbroker.model.errors import StoreError
from txbroker.model.log_position import JournalId
from txbroker.model.topics import is_within
from txbroker.mqtt.wire.message import Message
from txbroker.runtime.structured_log import get_logger, log_limited

log = get_logger()

RETRY = 1.0
"""Seconds until the next attempt after a failed save."""

NO_LIFE = 0
"""
The incarnation in the streams of strays. Such streams outlive the process, and no process has this
number.
"""

Publish = Callable[[Message, Callable[[], None]], None]
"""Publish for no session; the action runs when the owner has the message or it is durable here."""


class StrayCollector:
    """
    Collects stray publishes and publishes them through the edge's `publish`.

    The node grant remembers the remaining strays, also over a restart.
    """

    def __init__(
        self,
        base: DelegationBase,
        *,
        outboxes: OutboxManager,
        store: JournalOutboxes,
        publish: Publish,
    ) -> None:
        self._node_grant = base.node_grant
        self._authority = base.authority
        self._data_directory = base.data_directory
        self._tasks = base.tasks
        self._outboxes = outboxes
        self._store = store
        self._publish = publish

    def held(self) -> set[JournalId]:
        """Return the journal parts that retention must not trim."""
        return {self._part_of(strays) for strays in self._node_grant.strays}

    def start(self) -> None:
        """
        Continue with the strays that an earlier process left.

        Their outboxes are there before the first link: an owner forgets the marks of streams that
        no Hello names.
        """
        by_apex: dict[str, list[_Strays]] = {}
        for strays in self._node_grant.strays:
            by_apex.setdefault(strays.apex, []).append(self._hand_on(strays, {}))
        for apex, some in by_apex.items():
            self._tasks.start(self._finish(apex, some, {}))

    def earlier(self, granted_by: JournalId) -> dict[int, int]:
        """
        Return the later epochs at which earlier lives of this copy accepted messages.

        `granted_by`: this node's zone and epoch at the child's last grant. Each epoch above that
        one maps to its last offset.
        """
        zone, granted = granted_by
        if not granted or zone != (self._node_grant.zone or ""):
            return {}
        parts = (
            self._data_directory.journals.get(JournalId(zone, life))
            for life in self._node_grant.lives
        )
        return {
            part.key.epoch: part.next - 1
            for part in parts
            if part is not None and part.key.epoch > granted and part.next > 1
        }

    def collect(self, some: Sequence[Strays], retained: Iterable[Message] = ()) -> None:
        """
        Deliver the strays of one zone to its owner, in order.

        `retained` are the values that the zone had here: the records may lack some of them.
        """
        apex = some[0].apex
        offsets = sum(strays.through - strays.after for strays in some)
        log.warning("zone.forgotten", zone=apex, offsets=offsets)
        self._tasks.start(self._collect(apex, some, {m.topic: m for m in retained}))

    async def _collect(
        self, apex: str, some: Sequence[Strays], retained: dict[str, Message]
    ) -> None:
        assert self._authority is not None
        await settled(self._authority)  # records that are not durable yet cannot be read
        handed = [self._hand_on(strays, retained) for strays in some]
        await self._finish(apex, handed, retained)

    async def _finish(self, apex: str, some: list[_Strays], retained: dict[str, Message]) -> None:
        """Publish the retained values that no record has, when the owner has all strays."""
        for strays in some:
            await strays.is_over.wait()
        count = sum(strays.count for strays in some)
        count += await self._publish_all(retained.values())
        log.warning("zone.strays_forwarded", zone=apex, messages=count)

    def _hand_on(self, strays: Strays, retained: dict[str, Message]) -> _Strays:
        """Make the strays an outbox; a record's retained value leaves `retained`."""
        part = self._part_of(strays)
        handed = _Strays(strays, part, retained, self._node_grant, self._data_directory)
        entries = JournalEntries(
            strays.through,
            handed.read,
            handed.save,
            lambda done: self._tasks.start(handed.end(done)),
        )
        state = OutboxState(
            zone=strays.apex,
            incarnation=NO_LIFE,
            stream=part.epoch,
            drains=(DrainState(apex=strays.apex, taken=strays.after),),
        )
        self._store.add(state, entries)
        self._outboxes.adopt(state, entries)
        return handed

    def _part_of(self, strays: Strays) -> JournalId:
        node_grant = self._node_grant
        return JournalId(node_grant.zone or "", strays.epoch or node_grant.epoch)

    async def _publish_all(self, messages: Iterable[Message]) -> int:
        """Publish the messages; return their number when all are safe."""
        waiting: set[int] = set()
        done = asyncio.Event()
        count = 0

        def safe(number: int) -> None:
            waiting.discard(number)
            if not waiting:
                done.set()

        for count, one in enumerate(messages, 1):
            if one.qos:
                waiting.add(count)
            message = Message(
                one.topic,
                one.payload,
                one.qos,
                one.retain,
                one.client_id,
                properties=one.properties,
            )
            self._publish(message, partial(safe, count))
        while waiting:
            done.clear()
            await done.wait()
        return count


class _Strays:
    """
    A range of strays on its way: the records that are read of it, and those that the owner has.
    """

    def __init__(
        self,
        strays: Strays,
        part: JournalId,
        retained: dict[str, Message],
        node_grant: NodeGrant,
        data_directory: DataDirectory,
    ) -> None:
        self.count = 0
        self.is_over = asyncio.Event()
        self._left: Strays | None = strays
        self._apex, self._through = strays.apex, strays.through
        self._counted = strays.after
        self._part = part
        self._retained = retained
        self._node_grant = node_grant
        self._data_directory = data_directory

    def read(self, after: int) -> tuple[list[tuple[int, Message]], int]:
        """Return the next records of the zone, and the offset up to which they are complete."""
        part = self._data_directory.journals.get(self._part)
        if part is None:
            return [], self._through
        chunk = self._data_directory.read(part, after, self._through, bound=self._through)
        found = []
        for record in chunk.records:
            message = record.message
            if not is_within(message.topic, self._apex):
                continue
            if message.retain:
                self._retained.pop(message.topic, None)
            if record.offset > self._counted:
                self._counted = record.offset
                self.count += 1
            found.append((record.offset, attrs.evolve(message, edge="", will=None)))
        return found, max(chunk.through, after + 1)

    def save(self, taken: int) -> None:
        """Record how far the owner has the strays; a start repeats what is not recorded."""
        if self._left is None or not self._left.after < taken < self._through:
            return
        try:
            self._left = self._node_grant.record_forwarded(self._left, taken)
        except StoreError as error:
            log_limited(log.warning, "zone.strays_deferred", zone=self._apex, reason=str(error))

    async def end(self, done: Callable[[], None]) -> None:
        """Record that the owner has all strays, then forget their stream."""
        while self._left is not None:
            try:
                self._left = self._node_grant.record_forwarded(self._left, self._through)
            except StoreError as error:
                log_limited(log.warning, "zone.strays_deferred", zone=self._apex, reason=str(error))
                await asyncio.sleep(RETRY)
        done()
        self.is_over.set()
