"""
SHELL: what this node took for a zone that another node held all the time goes to that node.

A root with a lost disk serves the zones of its children, too, until they are back; so does a node
with a copy from before a delegation. The clients' publishes were acknowledged: they go on to the
owner, as if they had waited in an outbox for it. Who had them from here has them from there again.

A copy of such a life has what that had taken, in a part of its own. The owner says at which epoch
of this zone it was last granted: all that was taken at later ones is not this node's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from txbroker.authority.authority import Authority
from txbroker.data.data_directory import DataDirectory
from txbroker.delegation.rpc.snapshot_copy import settled
from txbroker.delegation.state.node_grant import NodeGrant
from txbroker.delegation.state.node_state import Strays
from txbroker.journal.zone_journal import Record
from txbroker.model.errors import StoreError
from txbroker.model.log_position import JournalId
from txbroker.model.topics import is_within
from txbroker.mqtt.wire.message import Message
from txbroker.runtime.aio import Tasks
from txbroker.runtime.structured_log import get_logger

log = get_logger()

RETRY = 1.0
"""Seconds until what could not be read or saved is tried again."""

Publish = Callable[[Message, Callable[[], None]], None]
"""Publish for no session; the action is run when the owner has it, or it is durable here."""


class StrayCollector:
    """`publish` is the edge's; the state remembers what is left, also over a restart."""

    def __init__(
        self,
        *,
        standing: NodeGrant,
        authority: Authority | None,
        disk: DataDirectory,
        tasks: Tasks,
        publish: Publish,
    ) -> None:
        self._standing = standing
        self._authority = authority
        self._disk = disk
        self._tasks = tasks
        self._publish = publish

    def held(self) -> set[JournalId]:
        """Parts of the journal that have to be kept whole."""
        return {self._part_of(strays) for strays in self._standing.strays}

    def start(self) -> None:
        """Go on with what an earlier process left."""
        by_apex: dict[str, list[Strays]] = {}
        for strays in self._standing.strays:
            by_apex.setdefault(strays.apex, []).append(strays)
        for some in by_apex.values():
            self.collect(some)

    def earlier(self, granted_by: JournalId) -> dict[int, int]:
        """
        The epochs at which earlier lives of this copy took messages after a child was last granted
        its zone, by this part's node at that time; with their last offsets.
        """
        zone, granted = granted_by
        if not granted or zone != (self._standing.zone or ""):
            return {}
        parts = (self._disk.journals.get(JournalId(zone, life)) for life in self._standing.lives)
        return {
            part.key.epoch: part.next - 1
            for part in parts
            if part is not None and part.key.epoch > granted and part.next > 1
        }

    def collect(self, some: Sequence[Strays], retained: Iterable[Message] = ()) -> None:
        """
        Give those of one zone to its owner, one after the other. `retained` are the values that the
        zone had here; records may not have them all.
        """
        offsets = sum(strays.through - strays.after for strays in some)
        log.warning("zone.forgotten", zone=some[0].apex, offsets=offsets)
        self._tasks.start(self._collect(some, {m.topic: m for m in retained}))

    async def _collect(self, some: Sequence[Strays], retained: dict[str, Message]) -> None:
        count = 0
        for strays in some:
            count += await self._collect_one(strays, retained)
        count += await self._give(retained.values())
        log.warning("zone.strays", zone=some[0].apex, messages=count)

    async def _collect_one(self, strays: Strays, retained: dict[str, Message]) -> int:
        """Of those in `retained` the ones that come with a record are taken out."""
        count = 0
        left: Strays | None = strays
        while left is not None:
            try:
                await settled(self._require())
                records, through = self._read(left)
                for record in records:
                    if record.message.retain:
                        retained.pop(record.message.topic, None)
                count += await self._give(record.message for record in records)
                left = self._standing.pass_on(left, through)
            except (StoreError, TimeoutError) as error:
                log.warning("zone.strays_wait", zone=strays.apex, reason=str(error))
                await asyncio.sleep(RETRY)
        return count

    def _part_of(self, strays: Strays) -> JournalId:
        standing = self._standing
        return JournalId(standing.zone or "", strays.epoch or standing.epoch)

    def _require(self) -> Authority:
        assert self._authority is not None
        return self._authority

    def _read(self, strays: Strays) -> tuple[list[Record], int]:
        """The next records of the zone, and up to where that is all."""
        part = self._disk.journals.get(self._part_of(strays))
        if part is None:
            return [], strays.through
        chunk = self._disk.read(part, strays.after, strays.through, bound=strays.through)
        found = [r for r in chunk.records if is_within(r.message.topic, strays.apex)]
        return found, max(chunk.through, strays.after + 1)

    async def _give(self, messages: Iterable[Message]) -> int:
        """Publish them, and return how many when all are safe."""
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
            message = Message(one.topic, one.payload, one.qos, one.retain, one.client_id)
            self._publish(message, partial(safe, count))
        while waiting:
            done.clear()
            await done.wait()
        return count
