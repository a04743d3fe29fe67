"""
CORE: what to make of a message that no ledger says was delivered or dropped, and that its session
neither waits for nor has on its way, as far as that speaks of the message's part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.log_position import JournalId
from txbroker.pipeline.source.row_schema import AUDIT_ARROW

SLACK = 60_000_000
"""Microseconds by which the clocks of two nodes may differ where a gap of a ledger is judged."""


def has_passed(
    part: JournalId, reaches: Mapping[JournalId, int], passages: Sequence[EpochTransition]
) -> bool:
    """
    Whether a session has been given all of a part, and is beyond it; `reaches`: how far it is in
    each part of which its node says anything. A node that has not heard of a part has it ahead.
    """
    if part in reaches:
        return True
    known = [other.epoch for other in reaches if other.zone == part.zone]
    if known:
        return max(known) > part.epoch
    for passage in passages:
        if passage.is_return and passage.left.part == part:
            entered = passage.entered
            if entered.part in reaches:
                return reaches[entered.part] >= entered.offset
            return has_passed(entered.part, reaches, passages)
    return False


def verdict(row: Mapping[str, Any], passages: Sequence[EpochTransition], *, is_whole: bool) -> str:
    """
    The status of one message for one session. `row` has its place, its time (`created`) and when
    the subscription was written down (`said`), both in microseconds; where the session is known
    somewhere `kept` (whether its node keeps a ledger) and `parts`; and when a ledger that speaks of
    the session last had a gap (`gap`).
    """
    if row["parts"] is None:
        status = "lost" if is_whole else "unknown"
    else:
        reaches = {
            JournalId(one["zone"], one["epoch"]): one["come"]
            for one in row["parts"]
            if one["zone"] is not None
        }
        if not has_passed(JournalId(row["zone"], row["epoch"]), reaches, passages):
            return "pending"
        status = "lost" if row["kept"] else "unknown"
    gap = row["gap"]
    is_clear = gap is None or (row["created"] > gap + SLACK and row["said"] > gap)
    return status if is_clear else "unknown"


def judge(
    passages: Sequence[EpochTransition], *, is_whole: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """On a worker: such rows, those without a `status`, to rows of `rows.AUDIT_ARROW`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            times = batch.column("created").cast(pa.int64())
            numbers = batch.set_column(batch.schema.get_field_index("created"), "created", times)
            open_ = batch.column("status").is_null()
            found = [
                verdict(row, passages, is_whole=is_whole)
                for row in numbers.filter(open_).to_pylist()
            ]
            same = [batch.column(name) for name in AUDIT_ARROW.names[:-1]]
            status = pc.replace_with_mask(
                batch.column("status"), open_, pa.array(found, pa.string())
            )
            yield pa.RecordBatch.from_arrays([*same, status], names=AUDIT_ARROW.names)

    return run
