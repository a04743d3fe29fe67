"""
CORE: the rows of a node's delivery ledger, and their stored and sent form.

The ledger records the outcome of each message for durable sessions. Its rows are acknowledgements
of clients, drops, and the offsets at which subscriptions begin and end. The ledger decides nothing:
no message is sent, stored or acknowledged because of it. A comparison with the journals finds lost
messages (docs/pipeline/audit.md).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from txbroker.model.log_position import JournalId
from txbroker.v1 import ledger_pb2

FORMAT = 1
"""Format of a batch's rows."""

BATCH_ROWS = 4_096
BATCH_BYTES = 256 * 1024
"""The most rows of a batch, and the approximate most bytes of names in it."""


class LedgerKind(enum.IntEnum):
    """The kind of a row; readers see its name in lower case."""

    DELIVERY = 1
    """The client has acknowledged the message at `offset`."""

    START = 2
    """The subscription holds in the part for records above `offset`, at `qos`."""

    END = 3
    """The subscription no longer holds for records above `offset`."""

    DROPPED = 4
    """The session does not get its records from `offset` to `through`; a counter counts them."""

    PASSAGE = 5
    """
    Topics within the apex `filter` moved from the part `left` to `part`. Their last offset in
    `left` is `through`, and the topics continue in `part` behind `offset`.
    """

    GAP = 6
    """Rows before this one are missing, `offset` of them if the number is known."""


class LedgerRow(NamedTuple):
    """
    A row of the ledger; `time` is UTC in microseconds. Fields that a kind does not use are empty.
    """

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
    """A recorder of rows, in order."""

    @property
    def now(self) -> Callable[[], int]:
        """Return the clock: UTC in microseconds."""

    def add(self, row: LedgerRow) -> None:
        """Append a row for an event that has happened."""


def batches(rows: Sequence[LedgerRow]) -> Iterator[Sequence[LedgerRow]]:
    """Split rows into batches."""
    start, size = 0, 0
    for place, row in enumerate(rows):
        size += len(row.client_id) + len(row.topic_filter)
        if place + 1 - start >= BATCH_ROWS or size >= BATCH_BYTES:
            yield rows[start : place + 1]
            start, size = place + 1, 0
    if start < len(rows):
        yield rows[start:]


def encode_rows(rows: Sequence[LedgerRow]) -> bytes:
    """Return the body of a batch; it needs at least one row."""
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
    """Values that rows name by number, from 1 on; 0 stands for no value."""

    def __init__(self) -> None:
        self._places: dict[T, int] = {}

    def place(self, value: T | None) -> int:
        """Return the value's number; a new value gets the next one."""
        if not value:
            return 0
        return self._places.setdefault(value, len(self._places) + 1)

    def __iter__(self) -> Iterator[T]:
        return iter(self._places)
