"""Rows of a ledger, from the node's form to Arrow."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txbroker.journal.delivery_ledger import BATCH_ROWS, LedgerKind, LedgerRow, batches, encode_rows
from txbroker.model.errors import PipelineError
from txbroker.model.log_position import JournalId
from txbroker.pipeline.ledgers.ledger_batches import ledger_to_arrow
from txbroker.pipeline.source.row_schema import LEDGER_ARROW
from txbroker.v1.ledger_pb2 import LedgerRows

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
numbers = st.integers(0, (1 << 62) - 1)
parts = st.builds(JournalId, st.text("ab/", max_size=3), st.integers(1, 1 << 40))
times = st.integers(0, 1 << 52)


@st.composite
def _row(draw: st.DrawFn) -> LedgerRow:
    """Any, with what its kind speaks of."""
    kind, time, offset = draw(st.sampled_from(LedgerKind)), draw(times), draw(numbers)
    if kind is LedgerKind.GAP:
        return LedgerRow(kind, time, offset=offset)
    part = draw(parts)
    if kind is LedgerKind.PASSAGE:
        through, left = draw(numbers), draw(parts)
        return LedgerRow(kind, time, "", draw(names), 0, part, offset, through, left)
    if kind is LedgerKind.DELIVERY:
        return LedgerRow(kind, time, draw(names), part=part, offset=offset)
    if kind is LedgerKind.DROPPED:
        return LedgerRow(kind, time, draw(names), part=part, offset=offset, through=draw(numbers))
    return LedgerRow(kind, time, draw(names), draw(names), draw(st.integers(0, 2)), part, offset)


rows = _row()


def shown(number: int, row: LedgerRow) -> dict[str, Any]:
    """What a reader sees of a row."""
    has_qos = row.kind in (LedgerKind.START, LedgerKind.END)
    has_through = row.kind in (LedgerKind.DROPPED, LedgerKind.PASSAGE)
    return {
        "node": "n",
        "ledger": "l",
        "number": number,
        "kind": row.kind.name.lower(),
        "client_id": row.client_id or None,
        "filter": row.topic_filter or None,
        "qos": row.qos if has_qos else None,
        "zone": "" if row.part is None else row.part.zone,
        "epoch": 0 if row.part is None else row.part.epoch,
        "offset": row.offset,
        "through": row.through if has_through else None,
        "left_zone": None if row.left is None else row.left.zone,
        "left_epoch": None if row.left is None else row.left.epoch,
        "time": datetime.fromtimestamp(row.time // 10**6, UTC).replace(
            microsecond=row.time % 10**6
        ),
    }


@given(st.lists(rows, min_size=1, max_size=20), st.integers(1, 10**6), st.data())
def test_rows_come_back_as_they_were(
    some: list[LedgerRow], first: int, data: st.DataObject
) -> None:
    """Of all kinds, beside one another; and any range of them."""
    start = data.draw(st.integers(first - 2, first + len(some)))
    end = data.draw(st.integers(start, first + len(some) + 2))
    found = ledger_to_arrow(
        encode_rows(some), node="n", ledger="l", first=first, start=start, end=end
    )

    assert LEDGER_ARROW == found.schema
    expected = [shown(number, row) for number, row in enumerate(some, first)]
    assert [row for row in expected if start <= row["number"] < end] == found.to_pylist()


def test_batches_have_bounds() -> None:
    """In rows, and in bytes of names; nothing is left out."""
    short = [
        LedgerRow(LedgerKind.DELIVERY, 0, "c", part=JournalId("", 1), offset=n)
        for n in range(10_000)
    ]
    long = [
        LedgerRow(LedgerKind.DELIVERY, 0, "c" * 60_000, part=JournalId("", 1), offset=n)
        for n in range(10)
    ]

    assert [BATCH_ROWS, BATCH_ROWS, 10_000 - 2 * BATCH_ROWS] == [len(b) for b in batches(short)]
    assert short == [row for batch in batches(short) for row in batch]
    assert [5, 5] == [len(batch) for batch in batches(long)]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"\xff", "damaged"),
        (LedgerRows(format=2).SerializeToString(), "format 2, this txbroker reads 1"),
        (LedgerRows(format=1, kinds=b"\1", qos=b"\0").SerializeToString(), "damaged"),
        (LedgerRows(format=1, kinds=b"\1", qos=b"\0", client=[7], part=[1], offset=[1], later=[0])
         .SerializeToString(), "damaged"),
    ],
)  # fmt: skip
def test_what_is_no_batch_is_refused_in_one_line(body: bytes, said: str) -> None:
    """A node is not trusted."""
    with pytest.raises(PipelineError, match=said) as caught:
        ledger_to_arrow(body, node="n", ledger="l", first=1, start=1, end=2)
    assert "\n" not in str(caught.value)
