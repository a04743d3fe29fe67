"""
SHELL: delivers stray publishes to the owner: this node accepted them for another node's zone.

A root with a lost disk serves its children's zones too, until the children are back. So does a node
whose copy dates from before a delegation. Clients have acknowledgements for these publishes. So the
publishes continue to the owner, as if out of an outbox. A session that received such a publish here
receives the owner's copy again.

A restored copy holds the strays of each earlier life in a part of its own. The owner names this
zone's epoch at the owner's last grant: records of later epochs are strays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from txbroker.authority.authority import Authority
from txbroker.data.data_directory import DataDirectory
from txbroker.delegation.grant_state import Strays
from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.rpc.procedure_runner import settled
from txbroker.journal.zone_journal import Record
from txbroker.model.errors import StoreError
from txbroker.model.log_position import JournalId
from txbroker.model.topics import is_within
from txbroker.mqtt.wire.message import Message
from txbroker.runtime.aio import Tasks
from txbroker.runtime.structured_log import get_logger

log = get_logger()

RETRY = 1.0
"""Seconds until the next attempt after a failed read or save."""

Publish = Callable[[Message, Callable[[], None]], None]
"""Publish for no session; the action runs when the owner has the message or it is durable here."""


class StrayCollector:
    """
    Collects stray publishes and publishes them through the edge's `publish`.

    The node grant remembers the remaining strays, also over a restart.
    """

    def __init__(
        self,
        *,
        node_grant: NodeGrant,
        authority: Authority | None,
        data_directory: DataDirectory,
        tasks: Tasks,
        publish: Publish,
    ) -> None:
        self._node_grant = node_grant
        self._authority = authority
        self._data_directory = data_directory
        self._tasks = tasks
        self._publish = publish

    def held(self) -> set[JournalId]:
        """Return the journal parts that retention must not trim."""
        return {self._part_of(strays) for strays in self._node_grant.strays}

    def start(self) -> None:
        """Continue with the strays that an earlier process left."""
        by_apex: dict[str, list[Strays]] = {}
        for strays in self._node_grant.strays:
            by_apex.setdefault(strays.apex, []).append(strays)
        for some in by_apex.values():
            self.collect(some)

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
        offsets = sum(strays.through - strays.after for strays in some)
        log.warning("zone.forgotten", zone=some[0].apex, offsets=offsets)
        self._tasks.start(self._collect(some, {m.topic: m for m in retained}))

    async def _collect(self, some: Sequence[Strays], retained: dict[str, Message]) -> None:
        count = 0
        for strays in some:
            count += await self._collect_one(strays, retained)
        count += await self._publish_all(retained.values())
        log.warning("zone.strays_forwarded", zone=some[0].apex, messages=count)

    async def _collect_one(self, strays: Strays, retained: dict[str, Message]) -> int:
        """Deliver one range of strays; a record's retained value leaves `retained`."""
        count = 0
        left: Strays | None = strays
        while left is not None:
            try:
                await settled(self._require())
                records, through = self._read(left)
                for record in records:
                    if record.message.retain:
                        retained.pop(record.message.topic, None)
                count += await self._publish_all(record.message for record in records)
                left = self._node_grant.record_forwarded(left, through)
            except (StoreError, TimeoutError) as error:
                log.warning("zone.strays_deferred", zone=strays.apex, reason=str(error))
                await asyncio.sleep(RETRY)
        return count

    def _part_of(self, strays: Strays) -> JournalId:
        node_grant = self._node_grant
        return JournalId(node_grant.zone or "", strays.epoch or node_grant.epoch)

    def _require(self) -> Authority:
        assert self._authority is not None
        return self._authority

    def _read(self, strays: Strays) -> tuple[list[Record], int]:
        """
        Return the next records of the zone, and the offset up to which the records are complete.
        """
        part = self._data_directory.journals.get(self._part_of(strays))
        if part is None:
            return [], strays.through
        chunk = self._data_directory.read(part, strays.after, strays.through, bound=strays.through)
        found = [r for r in chunk.records if is_within(r.message.topic, strays.apex)]
        return found, max(chunk.through, strays.after + 1)

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
