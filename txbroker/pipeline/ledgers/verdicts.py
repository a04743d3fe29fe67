"""
CORE: decides the audit status of messages that the ledgers and cursors leave open.

Such a message has no row `delivery` or `dropped` for its session. In the message's part, the
session neither waits for it nor has it in flight.
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
"""Maximum difference of two nodes' clocks, in microseconds, for judging a gap of a ledger."""


def has_passed(
    part: JournalId, reaches: Mapping[JournalId, int], transitions: Sequence[EpochTransition]
) -> bool:
    """
    True if a session has received all of a part, and has left the part.

    `reaches` has the session's offset in each part that its node reports. A part that the node does
    not know lies ahead of the session.
    """
    if part in reaches:
        return True
    known = [other.epoch for other in reaches if other.zone == part.zone]
    if known:
        return max(known) > part.epoch
    for transition in transitions:
        if transition.is_return and transition.left.part == part:
            entered = transition.entered
            if entered.part in reaches:
                return reaches[entered.part] >= entered.offset
            return has_passed(entered.part, reaches, transitions)
    return False


def verdict(
    row: Mapping[str, Any], transitions: Sequence[EpochTransition], *, is_whole: bool
) -> str:
    """
    Return the status of one message for one session.

    `row` has the message's position, its time `created`, and the time `said` when the subscription
    was written; both in microseconds. If a node knows the session, `row` has `kept` (True if the
    node keeps a ledger) and `parts`. `gap` is the time of the last gap in a ledger with rows of the
    session, or None.
    """
    if row["parts"] is None:
        status = "lost" if is_whole else "unknown"
    else:
        reaches = {
            JournalId(one["zone"], one["epoch"]): one["come"]
            for one in row["parts"]
            if one["zone"] is not None
        }
        if not has_passed(JournalId(row["zone"], row["epoch"]), reaches, transitions):
            return "pending"
        status = "lost" if row["kept"] else "unknown"
    gap = row["gap"]
    is_clear = gap is None or (row["created"] > gap + SLACK and row["said"] > gap)
    return status if is_clear else "unknown"


def judge(
    transitions: Sequence[EpochTransition], *, is_whole: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a worker function: rows without a `status` become rows of `row_schema.AUDIT_ARROW`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            times = batch.column("created").cast(pa.int64())
            numbers = batch.set_column(batch.schema.get_field_index("created"), "created", times)
            open_ = batch.column("status").is_null()
            found = [
                verdict(row, transitions, is_whole=is_whole)
                for row in numbers.filter(open_).to_pylist()
            ]
            same = [batch.column(name) for name in AUDIT_ARROW.names[:-1]]
            status = pc.replace_with_mask(
                batch.column("status"), open_, pa.array(found, pa.string())
            )
            yield pa.RecordBatch.from_arrays([*same, status], names=AUDIT_ARROW.names)

    return run
