"""CORE: converts stored batches of a delivery ledger to Arrow record batches."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from txbroker.journal.delivery_ledger import FORMAT, LedgerKind
from txbroker.model.errors import PipelineError
from txbroker.pipeline.source.row_schema import LEDGER_ARROW
from txbroker.v1.ledger_pb2 import LedgerRows

_KINDS = pa.array([None, *(kind.name.lower() for kind in sorted(LedgerKind))], pa.string())


def ledger_to_arrow(
    body: bytes, *, node: str, ledger: str, first: int, start: int, end: int
) -> pa.RecordBatch:
    """
    Convert the rows from number `start` up to `end` (exclusive) to `row_schema.LEDGER_ARROW`.

    The batch begins at number `first`. Raises `PipelineError` for a damaged body, or one of another
    format.
    """
    rows = _read(body, node)
    count = len(rows.kinds)
    try:
        whole = pa.RecordBatch.from_pydict(
            _columns(rows, count, node, ledger, first), schema=LEDGER_ARROW
        )
    except (pa.ArrowException, ValueError, IndexError, OverflowError) as error:
        raise PipelineError(f"node {node}: damaged rows in its ledger: {error}") from None
    skip = max(0, start - first)
    return whole.slice(skip, max(0, min(count, end - first) - skip))


def gap_before(rows: pa.RecordBatch, missing: int) -> pa.RecordBatch:
    """
    Return a row `gap` for `missing` rows that were deleted before they were read.

    The gap precedes `rows`, and has the time of their first row, as the missing rows are older.
    """
    after = rows.slice(0, 1).to_pylist()[0]
    gap = {
        "node": after["node"],
        "ledger": after["ledger"],
        "number": after["number"] - 1,
        "kind": LedgerKind.GAP.name.lower(),
        "zone": "",
        "epoch": 0,
        "offset": missing,
        "time": after["time"],
    }
    return pa.RecordBatch.from_pylist([gap], schema=LEDGER_ARROW)


def _read(body: bytes, node: str) -> LedgerRows:
    try:
        rows = LedgerRows.FromString(body)
    except Exception:  # Each implementation of protobuf has its own DecodeError.
        raise PipelineError(f"node {node}: damaged rows in its ledger") from None
    if rows.format != FORMAT:
        raise PipelineError(
            f"node {node} writes its ledger in format {rows.format}, this txbroker reads {FORMAT};"
            " install the version of the node"
        )
    return rows


def _columns(
    rows: LedgerRows, count: int, node: str, ledger: str, first: int
) -> dict[str, pa.Array]:
    kinds = pa.array(list(rows.kinds), pa.int32())
    zones = [part.zone for part in rows.parts]
    epochs = [part.epoch for part in rows.parts]
    has_through = pc.is_in(
        kinds, value_set=pa.array([LedgerKind.DROPPED, LedgerKind.PASSAGE], pa.int32())
    )
    has_qos = pc.is_in(kinds, value_set=pa.array([LedgerKind.START, LedgerKind.END], pa.int32()))
    through = pa.array(list(rows.through) or [0] * count, pa.int64())
    qos = pa.array(list(rows.qos), pa.int8())
    later = pc.add(pa.array(list(rows.later), pa.int64()), rows.time)
    return {
        "node": pa.repeat(pa.scalar(node, pa.string()), count),
        "ledger": pa.repeat(pa.scalar(ledger, pa.string()), count),
        "number": pa.array(range(first, first + count), pa.int64()),
        "kind": _KINDS.take(kinds),
        "client_id": _named(rows.client, rows.clients, pa.string(), count),
        "filter": _named(rows.filter, rows.filters, pa.string(), count),
        "qos": pc.if_else(has_qos, qos, None),
        "zone": pc.fill_null(_named(rows.part, zones, pa.string(), count), ""),
        "epoch": pc.fill_null(_named(rows.part, epochs, pa.int64(), count), 0),
        "offset": pa.array(list(rows.offset), pa.int64()),
        "through": pc.if_else(has_through, through, None),
        "left_zone": _named(rows.left, zones, pa.string(), count),
        "left_epoch": _named(rows.left, epochs, pa.int64(), count),
        "time": later.cast(LEDGER_ARROW.field("time").type),
    }


def _named(
    places: Sequence[int], names: Sequence[object], kind: pa.DataType, count: int
) -> pa.Array:
    """Return the names at the places (from 1 on) of rows; null for 0, or without any places."""
    if not places:
        return pa.nulls(count, kind)
    return pa.array([None, *names], kind).take(pa.array(list(places), pa.int32()))
