"""
SHELL: the gRPC service that reads the history to clients with their own offsets.

The service sends records in their stored form and holds no state about its readers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache, partial
from struct import Struct
from typing import Any, NamedTuple

import attrs
import grpc
import grpc.aio

from txbroker.core import Sieve
from txbroker.journal.history.journal_catalog import CatalogPart, JournalCatalog
from txbroker.journal.history.read_throttle import ReadThrottle
from txbroker.journal.store.journal_parts import JournalPart
from txbroker.model.counters import Counters
from txbroker.model.errors import PeerError, StoreError
from txbroker.model.log_position import JournalId
from txbroker.model.topics import TopicError, matches, validate_topic_filter
from txbroker.mqtt.wire.framing import encode_length
from txbroker.rpc.streams import STREAM_ERRORS, brief
from txbroker.storage.log_cursor import EntryTrimmed, LogCursor
from txbroker.storage.segment import FORMAT, BatchHead
from txbroker.v1.journal_pb2 import (
    KeptPart,
    PartsReply,
    PartsRequest,
    RecordsReply,
    RecordsRequest,
    SeekReply,
    SeekRequest,
)

MOST_STREAMS = 32
"""The most concurrent streams of records."""

AT_ONCE = 1024 * 1024
"""Bytes of a reply, exceeded by one batch at most."""

AT_ONCE_BUSY = 128 * 1024
"""Bytes of a reply while clients need the node."""

FOREVER = (1 << 63) - 1

WORD_EVERY = 1.0
"""Seconds after which a reader without results hears the scanned offset."""


@attrs.frozen(kw_only=True)
class RecordsWanted:
    """
    The request of a stream: offsets from `start` up to `end`, times from `since` up to `until`.
    """

    start: int
    end: int
    since: int
    until: int
    sieve: Sieve
    is_all: bool


class JournalService:
    """
    The handlers of the gRPC service `Journal`.

    `node` is this node's name. `on_failed` hears of an unreadable journal and ends the node: a node
    never serves silently truncated data.
    """

    def __init__(
        self,
        *,
        node: str,
        parts: JournalCatalog,
        pace: ReadThrottle,
        counters: Counters,
        on_failed: Callable[[StoreError], None],
    ) -> None:
        self._node = node
        self._parts = parts
        self._pace = pace
        self._counters = counters
        self._on_failed = on_failed
        self._streams = 0
        self._is_ended = False

    def close(self) -> None:
        """End all streams, as the node ends."""
        self._is_ended = True
        self._pace.close()

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers for a server. The reading thread encodes the replies of `Records`."""
        return grpc.method_handlers_generic_handler(
            "txbroker.v1.Journal",
            {
                "Parts": grpc.unary_unary_rpc_method_handler(
                    self.parts, PartsRequest.FromString, PartsReply.SerializeToString
                ),
                "Seek": grpc.unary_unary_rpc_method_handler(
                    self.seek, SeekRequest.FromString, SeekReply.SerializeToString
                ),
                "Records": grpc.unary_stream_rpc_method_handler(
                    self.records, RecordsRequest.FromString, None
                ),
            },
        )

    # the calls

    async def parts(self, request: PartsRequest, context: Any) -> PartsReply:
        """List this node's parts; records appended before the call lie below the ends."""
        await self._parts.refresh()
        kept = [
            KeptPart(
                zone=one.key.zone,
                epoch=one.key.epoch,
                first=one.first,
                end=one.end,
                closed=one.is_closed,
                cut_off=one.is_cut_off,
            )
            for one in self._parts.all()
        ]
        return PartsReply(node=self._node, parts=kept)

    async def seek(self, request: SeekRequest, context: Any) -> SeekReply:
        """
        Return the first offset received at a time or later; the part's end if all records are
        older.
        """
        part = await self._part(request.zone, request.epoch, context)
        try:
            offset = part.log.offset_at(request.time)
        except StoreError as error:
            await self._fail(error, context)
            raise
        return SeekReply(offset=min(offset, self._parts.describe(part).end))

    async def records(self, request: RecordsRequest, context: Any) -> None:
        """Stream the records of a part, in order."""
        part = await self._part(request.zone, request.epoch, context)
        wanted = await self._wanted(request, self._parts.describe(part), context)
        if self._streams >= MOST_STREAMS:
            self._counters.add("history.refused")
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"node {self._node!r} serves {MOST_STREAMS} readers at once; try again later",
            )
        self._streams += 1
        try:
            await self._stream(part, wanted, context)
        except STREAM_ERRORS:
            pass  # the reader is gone
        finally:
            self._streams -= 1

    # internal

    async def _part(self, zone: str, epoch: int, context: Any) -> JournalPart:
        found = self._parts.get(JournalId(zone, epoch))
        if found is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                brief(f"node {self._node!r} keeps no journal of zone {zone!r} at epoch {epoch}"),
            )
        assert found is not None
        return found

    async def _wanted(
        self, request: RecordsRequest, kept: CatalogPart, context: Any
    ) -> RecordsWanted:
        if request.filter:
            try:
                validate_topic_filter(request.filter)
            except TopicError as error:
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"filter {brief(repr(request.filter))}: {error}",
                )
        topic_filter = request.filter
        return RecordsWanted(
            start=request.start or kept.first,
            end=min(request.end or FOREVER, kept.end),
            since=request.since or -FOREVER,
            until=request.until or FOREVER,
            sieve=Sieve(lambda topic: not topic_filter or matches(topic_filter, topic)),
            is_all=not topic_filter,
        )

    async def _stream(self, part: JournalPart, wanted: RecordsWanted, context: Any) -> None:
        cursor = LogCursor(part.log, wanted.start)
        through, told = wanted.start, time.monotonic()
        while through < wanted.end:
            try:
                found = await self._next(part, cursor, wanted, context)
            except EntryTrimmed:
                await self._send_trimmed(part, through, context)
                return
            except (StoreError, PeerError) as error:
                await self._fail(error, context)
                return
            if found is None:
                break
            through = found.through
            if found.batches or through == wanted.end or time.monotonic() > told + WORD_EVERY:
                await self._pace.send(context.write(found.reply))
                told = time.monotonic()
        if through < wanted.end or wanted.start >= wanted.end:
            last = RecordsReply(format=FORMAT, through=max(wanted.start, wanted.end))
            await context.write(last.SerializeToString())

    async def _next(
        self, part: JournalPart, cursor: LogCursor, wanted: RecordsWanted, context: Any
    ) -> _Reply | None:
        """Return the next reply; None at the end. Raises the cursor's errors."""
        while True:
            if self._is_ended:
                await context.abort(grpc.StatusCode.UNAVAILABLE, f"node {self._node!r} ends")
            await self._part(*part.key, context)
            if not cursor.poll():
                return None
            size = AT_ONCE_BUSY if self._pace.is_busy else AT_ONCE
            found = await self._pace.work(partial(_read, cursor, wanted, size))
            if found is not None:
                return found

    async def _send_trimmed(self, part: JournalPart, start: int, context: Any) -> None:
        zone, epoch = part.key
        first = self._parts.describe(part).first
        await context.abort(
            grpc.StatusCode.OUT_OF_RANGE,
            f"node {self._node!r} keeps zone {zone!r} at epoch {epoch} from offset {first} on, no"
            f" longer from {start} on",
        )

    async def _fail(self, error: StoreError | PeerError, context: Any) -> None:
        if isinstance(error, StoreError):
            self._on_failed(error)
        await context.abort(grpc.StatusCode.DATA_LOSS, str(error))


_BATCH, _PLACES = b"\x1a", b"\x2a"
_HEAD = Struct("<BQBIBqB")
_FIRST, _COUNT, _TIME, _BODY = 0x09, 0x15, 0x19, 0x22
"""
Tags of `RecordsReply` and `StoredBatch`: the field number times 8, plus the wire type. Wire types 1
and 5 are numbers of 8 and 4 bytes, 2 is bytes behind their length.
"""

_length = lru_cache(4096)(encode_length)


class _Reply(NamedTuple):
    """An encoded reply with its number of batches, and the offset up to which the scan went."""

    through: int
    batches: int
    reply: bytes


def _read(cursor: LogCursor, wanted: RecordsWanted, size: int) -> _Reply | None:
    """Read the next reply, in a thread; None at the end of a file."""
    read = cursor.read(size)
    if not read:
        return None
    pieces: list[bytes] = []
    through = wanted.end
    for head, body in read:
        if head.first >= wanted.end:
            through = wanted.end
            break
        through = min(head.first + head.entries, wanted.end)
        if wanted.since <= head.time < wanted.until:
            pieces += _encoded(head, body, wanted)
    pieces.append(RecordsReply(format=FORMAT, through=through).SerializeToString())
    return _Reply(through, len(pieces) // 2, b"".join(pieces))


def _encoded(head: BatchHead, body: bytes, wanted: RecordsWanted) -> tuple[bytes, ...]:
    """
    Return the requested records of a batch, encoded as a field of a reply.

    The encoding is written by hand: copying bodies into messages of protobuf takes as long as all
    the rest. A reply may have very many small batches.
    """
    count, places = head.entries, b""
    is_inside = wanted.start <= head.first and head.first + count <= wanted.end
    if not (wanted.is_all and is_inside):
        left = wanted.sieve.sift(head.first, body, count, wanted.start, wanted.end)
        if left is not None:
            body, places = left
            count = len(places) // 2
            if not count:
                return ()
    fields = _HEAD.pack(_FIRST, head.first, _COUNT, count, _TIME, head.time, _BODY)
    size = _length(len(body))
    behind = places and _PLACES + _length(len(places)) + places
    whole = len(fields) + len(size) + len(body) + len(behind)
    return b"".join((_BATCH, _length(whole), fields, size)), body + behind
