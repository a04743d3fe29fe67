"""
SHELL: both ends of a journal transfer: a zone's journal returns to the parent.

The transfer sends batches as they are stored. Most batches are copied before the fence, while the
zone is served; batches of meanwhile follow after the fence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txbroker.core import StoredRecords
from txbroker.data.data_directory import DataDirectory
from txbroker.delegation.peer_checks import check_part, check_records
from txbroker.delegation.state.staged_journal import StagedJournal
from txbroker.delegation.timeouts import HANDOVER_STEP
from txbroker.journal.store.journal_parts import JournalPart
from txbroker.journal.store.record_format import read_marks
from txbroker.model.errors import PeerError, StoreError
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.topics import is_within
from txbroker.rpc.streams import write
from txbroker.rpc.zone_convert import place_from_wire, place_to_wire
from txbroker.storage.segment import FORMAT, Batch
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2 import HandBackRequest

AT_ONCE = 256 * 1024
"""Bytes of one message; a larger batch makes a larger message."""

OVERHEAD = 32
"""Bytes of a batch on the wire besides its body."""

FEW = 500
"""The most records that may remain to be sent while the zone is fenced."""

PASSES = 10
"""The most passes that try to catch up with a growing journal before the fence."""


class JournalSender:
    """The child's end."""

    def __init__(self, data_directory: DataDirectory, apex: str, present: JournalId) -> None:
        self._data_directory = data_directory
        self._apex = apex
        self._present = present
        self._sent = 0
        self._known: set[JournalId] = set()  # parts that the parent has

    @property
    def size(self) -> int:
        """Return the bytes of the parts that may be sent."""
        return sum(part.log.size for part in self._parts())

    async def copy(self, call: Any, have: set[JournalId]) -> None:
        """
        Send all parts as they are now, the present part last.

        `call` is the hand-back's stream; parts in `have` are skipped.
        """
        self._known = set(have)
        for part in self._parts():
            if part.key in self._known:
                continue
            sent = await self._send_part(call, part)
            if part.key == self._present:
                self._sent = sent
                await self._catch_up(call, part)

    async def rest(self, call: Any) -> None:
        """
        Send the batches that were appended since the copy.

        Parts of zones below that have come back here since are sent, too.
        """
        await self._data_directory.committer.drain()
        present = self._data_directory.journals.get(self._present)
        if present is not None:
            self._sent = await self._send(call, present, self._sent)
        for part in self._parts():
            if part.key not in self._known:
                await self._send_part(call, part)

    async def _send_part(self, call: Any, part: JournalPart) -> int:
        """Begin a part at the parent, and send its batches; return the last sent offset."""
        header = control_pb2.JournalPart(zone=part.key.zone, epoch=part.key.epoch, format=FORMAT)
        if part.predecessor is not None:
            header.predecessor.CopyFrom(place_to_wire(LogPosition(*part.predecessor)))
        await write(call, HandBackRequest(part=header), HANDOVER_STEP)
        self._known.add(part.key)
        return await self._send(call, part, 0)

    async def _catch_up(self, call: Any, part: JournalPart) -> None:
        for _ in range(PASSES):
            if part.log.written - self._sent <= FEW:
                break
            self._sent = await self._send(call, part, self._sent)

    async def _send(self, call: Any, part: JournalPart, after: int) -> int:
        """
        Send the batches of a part that are written by now; return the last sent offset.

        Batches that are written during the transfer are left out.
        """
        written = part.log.written
        batches = control_pb2.JournalBatches()
        size = 0
        for batch in part.log.batches(after):
            if batch.first > written:
                break
            batches.batches.add(
                first=batch.first, count=batch.count, time=batch.time, body=batch.body
            )
            after = batch.first + batch.count - 1
            size += len(batch.body) + OVERHEAD
            if size >= AT_ONCE:
                await write(call, HandBackRequest(batches=batches), HANDOVER_STEP)
                batches, size = control_pb2.JournalBatches(), 0
        if size:
            await write(call, HandBackRequest(batches=batches), HANDOVER_STEP)
        return after

    def _parts(self) -> list[JournalPart]:
        ours = [
            p
            for k, p in self._data_directory.journals.parts.items()
            if is_within(k.zone, self._apex)
        ]
        return sorted(ours, key=lambda part: (part.key == self._present, part.key))


def parts_within(data_directory: DataDirectory, apex: str) -> list[JournalId]:
    """Return the local parts of a zone and of zones below it."""
    return [key for key in data_directory.journals.parts if is_within(key.zone, apex)]


class JournalReceiver:
    """
    The parent's end.

    Each received part must belong to the zone of `given`, or to a lower zone. `given` is the part
    that the child serves last. `parts` are the received parts. `is_full`: True if the disk must
    accept no more bytes and local publishes wait for room. A child may send more than it announced.
    `known` returns the last epoch of a zone that this node knows.
    """

    def __init__(
        self,
        arriving: StagedJournal,
        given: JournalId,
        *,
        is_full: Callable[[], bool],
        known: Callable[[str], int],
    ) -> None:
        self.parts: list[JournalId] = []
        self.is_committed = False
        self._known = known
        self._arriving = arriving
        self._given = given
        self._is_full = is_full

    def close(self) -> None:
        """Close the files: no batch follows."""
        self._arriving.close()

    async def receive(self, request: HandBackRequest) -> bool:
        """
        Process a message of the journal; return False if the message has another kind.

        Raises `StoreError`, and `PeerError` for a part or batch that is not of the zone's journal.
        """
        match request.WhichOneof("kind"):
            case "part":
                self._begin(request.part)
            case "batches":
                for batch in request.batches.batches:
                    await self._append(
                        Batch(
                            first=batch.first, count=batch.count, time=batch.time, body=batch.body
                        )
                    )
            case _:
                return False
        return True

    def _begin(self, header: control_pb2.JournalPart) -> None:
        if header.format != FORMAT:
            raise StoreError(
                f"the journal of zone {header.zone!r} comes in format {header.format}, and is"
                f" kept in format {FORMAT} here; use one version of txbroker for both nodes"
            )
        part = JournalId(header.zone, header.epoch)
        before = None
        if header.HasField("predecessor"):
            before = place_from_wire(header.predecessor)
        check_part(self._given, part, before, self._known)
        self._arriving.start_part(part, before)
        self.parts.append(part)

    async def _append(self, batch: Batch) -> None:
        if not self.parts:
            raise PeerError("a batch of a journal came before its part")
        if self._is_full():
            raise StoreError("the parent's disk has no room for the rest of the journal")
        _check_batch(self.parts[-1].zone, batch)
        await self._arriving.append(batch)


def _check_batch(zone: str, batch: Batch) -> None:
    """
    Refuse unreadable batches, and topics of other zones; raises `PeerError`.

    An unreadable batch would end this node at its next read.
    """
    stored = StoredRecords()
    stored.add(batch.first, batch.body, batch.count)
    check_records(zone, stored)
    try:
        read_marks(batch.body)
    except ValueError:
        raise PeerError(f"the batch of offset {batch.first} has marks that are none") from None
