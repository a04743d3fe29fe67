"""
SHELL: serves a node's delivery ledger and the cursors of its sessions to readers.

Rows are sent in their stored form. Before each read all gathered rows are written and synced. So a
reader that has seen a client's acknowledgement finds its row.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from typing import Any

import grpc
import grpc.aio

from txbroker.data.data_directory import DataDirectory
from txbroker.edge.sessions.ledger_writer import reaches
from txbroker.journal.history.read_throttle import ReadThrottle
from txbroker.journal.store.ledger_log import LedgerLog
from txbroker.model.errors import StoreError
from txbroker.model.log_position import JournalId
from txbroker.mqtt.session.session import Session
from txbroker.storage.log_cursor import EntryTrimmed, LogCursor
from txbroker.v1.journal_pb2 import (
    CursorsReply,
    CursorsRequest,
    LedgerReply,
    LedgerRequest,
    LedgerState,
    SessionCursor,
    SessionCursors,
)

REPLY_BYTES = 256 * 1024
"""Approximate bytes of one reply."""

CURSORS_AT_ONCE = 200
"""Sessions in one reply."""


class LedgerService:
    """The delivery handlers of the gRPC service `Journal`; `node` is this node's name."""

    def __init__(
        self,
        *,
        node: str,
        data_directory: DataDirectory,
        pace: ReadThrottle,
        sessions: Callable[[], Iterable[Session]],
        positions: Callable[[], dict[JournalId, int]],
    ) -> None:
        """Create the service; `positions` returns the edge's position in each part."""
        self._node = node
        self._data_directory = data_directory
        self._pace = pace
        self._sessions = sessions
        self._positions = positions

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers for a server, beside those of `JournalService`."""
        return grpc.method_handlers_generic_handler(
            "txbroker.v1.Journal",
            {
                "Ledger": grpc.unary_stream_rpc_method_handler(
                    self.ledger, LedgerRequest.FromString, LedgerReply.SerializeToString
                ),
                "Cursors": grpc.unary_stream_rpc_method_handler(
                    self.cursors, CursorsRequest.FromString, CursorsReply.SerializeToString
                ),
            },
        )

    # the calls

    async def ledger(self, request: LedgerRequest, context: Any) -> None:
        """Send the ledger's state, then its rows."""
        ledger = self._data_directory.ledger
        if ledger is None:
            await context.write(LedgerReply(state=LedgerState(node=self._node)))
            return
        try:
            state = await self._state(ledger)
            await context.write(LedgerReply(state=state))
            if request.ledger in ("", ledger.identity):
                start = max(request.start, state.first)
                await self._send(ledger, start, min(request.end or state.end, state.end), context)
        except EntryTrimmed:
            await context.abort(
                grpc.StatusCode.OUT_OF_RANGE,
                f"node {self._node!r} keeps its ledger from row {ledger.first} on",
            )
        except StoreError as error:
            self._data_directory.fail(error)
            await context.abort(grpc.StatusCode.DATA_LOSS, str(error))

    async def cursors(self, request: CursorsRequest, context: Any) -> AsyncIterator[CursorsReply]:
        """Stream the cursors of all durable sessions as of now."""
        for reply in list(self._pages()):
            yield reply

    # internal

    async def _state(self, ledger: LedgerLog) -> LedgerState:
        self._data_directory.committer.write()
        await asyncio.to_thread(ledger.log.sync)
        return LedgerState(
            node=self._node, kept=True, ledger=ledger.identity, first=ledger.first, end=ledger.end
        )

    async def _send(self, ledger: LedgerLog, start: int, end: int, context: Any) -> None:
        cursor = LogCursor(ledger.log, start)
        while start < end and cursor.poll():
            reply = LedgerReply(through=start)
            for head, body in await self._pace.work(partial(cursor.read, REPLY_BYTES)):
                if head.first < end:
                    reply.batches.add(first=head.first, count=head.entries, body=body)
                reply.through = min(head.first + head.entries, end)
            start = reply.through
            if reply.batches:
                await self._pace.send(context.write(reply))

    def _pages(self) -> Iterator[CursorsReply]:
        positions = self._positions()
        page = CursorsReply(node=self._node, kept=self._data_directory.ledger is not None)
        page.positions.extend(_cursor(part, offset) for part, offset in positions.items())
        for session in self._sessions():
            if session.clean or session.is_over:
                continue
            page.sessions.append(_cursors_of(session, positions))
            if len(page.sessions) >= CURSORS_AT_ONCE:
                yield page
                page = CursorsReply()
        yield page


def _cursors_of(session: Session, positions: dict[JournalId, int]) -> SessionCursors:
    """Return the session's cursors that differ from `positions` or have deliveries in flight."""
    open_: dict[JournalId, list[int]] = {}
    for part, offset in session.durable_sender.unacknowledged():
        open_.setdefault(part, []).append(offset)
    come = reaches(session, positions)
    found = SessionCursors(client_id=session.client_id)
    for part in {**come, **open_}:
        # A passed part has deliveries in flight and no other records for the session.
        offset = come.get(part, _PASSED)
        if part in open_ or positions.get(part) != offset:
            found.cursors.append(_cursor(part, offset, open_.get(part, ())))
    return found


_PASSED = (1 << 62) - 1


def _cursor(part: JournalId, offset: int, open_: Iterable[int] = ()) -> SessionCursor:
    return SessionCursor(zone=part.zone, epoch=part.epoch, offset=offset, open=open_)
