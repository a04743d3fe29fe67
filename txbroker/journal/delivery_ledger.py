"""
CORE: the rows of a node's delivery ledger, and the form in which they are stored and sent.

The ledger says what became of what durable sessions were to get: which client has acknowledged
what, from where to where its subscriptions held, what was dropped. It decides nothing: no message
is sent, kept or acknowledged because of it. Whoever compares it with the journals can tell a
message that was lost (docs/pipeline/audit.md).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from txbroker.model.log_position import JournalId
from txbroker.v1 import ledger_pb2

FORMAT = 1
"""Of the rows of a batch."""

BATCH_ROWS = 4_096
BATCH_BYTES = 256 * 1024
"""Rows in a batch at the most, and bytes of names in it, about."""


class LedgerKind(enum.IntEnum):
    """What a row says; its name in lower case is what readers see."""

    DELIVERY = 1
    """The client has acknowledged the message at `offset`."""

    START = 2
    """From here on the subscription holds in the part: for what lies above `offset`, at `qos`."""

    END = 3
    """It holds no more: for nothing above `offset`."""

    DROPPED = 4
    """The session does not get what it wanted from `offset` to `through`; that was counted."""

    PASSAGE = 5
    """
    Topics within the apex `filter` went from the part `left`, which they left behind its offset
    `through`, to `part`, where they go on behind `offset`.
    """

    GAP = 6
    """Before this row others are missing, `offset` of them if that is known."""


class LedgerRow(NamedTuple):
    """One row; `time` is UTC in microseconds. What a kind does not speak of is empty."""

    kind: LedgerKind
    time: int
    client_id: str = ""
    topic_filter: str = ""
    qos: int = 0
    part: JournalId | None = None
    offset: int = 0
    through: int = 0
    left: JournalId | None = None


class LedgerRecorder(Protocol):
    """Who takes rows, in their order."""

    @property
    def now(self) -> Callable[[], int]:
        """The time: UTC in microseconds."""

    def add(self, row: LedgerRow) -> None:
        """It happened."""


def batches(rows: Sequence[LedgerRow]) -> Iterator[Sequence[LedgerRow]]:
    """Cut rows into what goes into one batch each."""
    start, size = 0, 0
    for place, row in enumerate(rows):
        size += len(row.client_id) + len(row.topic_filter)
        if place + 1 - start >= BATCH_ROWS or size >= BATCH_BYTES:
            yield rows[start : place + 1]
            start, size = place + 1, 0
    if start < len(rows):
        yield rows[start:]


def encode_rows(rows: Sequence[LedgerRow]) -> bytes:
    """The body of a batch; at least one row."""
    clients: _Names[str] = _Names()
    filters: _Names[str] = _Names()
    parts: _Names[JournalId] = _Names()
    since = rows[0].time
    stored = ledger_pb2.LedgerRows(
        format=FORMAT,
        time=since,
        kinds=bytes([row.kind for row in rows]),
        qos=bytes([row.qos for row in rows]),
        client=[clients.place(row.client_id) for row in rows],
        part=[parts.place(row.part) for row in rows],
        offset=[row.offset for row in rows],
        later=[row.time - since for row in rows],
    )
    # Most batches have deliveries alone.
    if any(row.kind is not LedgerKind.DELIVERY for row in rows):
        stored.filter.extend(filters.place(row.topic_filter) for row in rows)
        stored.through.extend(row.through for row in rows)
        stored.left.extend(parts.place(row.left) for row in rows)
    stored.clients.extend(clients)
    stored.filters.extend(filters)
    stored.parts.extend(ledger_pb2.LedgerPart(zone=part.zone, epoch=part.epoch) for part in parts)
    return stored.SerializeToString()


T = TypeVar("T")


class _Names(Generic[T]):
    """Values that rows name by their place, from 1 on; 0 stands for none."""

    def __init__(self) -> None:
        self._places: dict[T, int] = {}

    def place(self, value: T | None) -> int:
        """Of a value, which gets one if it has none."""
        if not value:
            return 0
        return self._places.setdefault(value, len(self._places) + 1)

    def __iter__(self) -> Iterator[T]:
        return iter(self._places)
