"""Message and ledger rows for the jobs' tests, made without a broker and without Spark."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from txbroker.pipeline.source.row_schema import MESSAGE_ARROW, TIME

BEGIN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
HARMONIC = 7.485470860550343
"""1 + 1/2 + ... + 1/1000: what Zipf shares with s = 1.0 over 1,000 subtrees are divided by."""

LEDGER_ARROW = pa.schema(
    [
        ("kind", pa.string()),
        ("client_id", pa.string()),
        ("zone", pa.string()),
        ("epoch", pa.int64()),
        ("offset", pa.int64()),
        ("time", TIME),
        ("node", pa.string()),
    ]
)

Row = dict[str, Any]


def message(offset: int, topic: str, **changes: object) -> Row:
    """One message row of the root zone; `changes` are columns."""
    row: Row = {
        "zone": "",
        "epoch": 1,
        "offset": offset,
        "topic": topic,
        "payload": b"12.5",
        "qos": 1,
        "retain": False,
        "client_id": "sensor",
        "node": "house",
        "created": BEGIN + timedelta(seconds=offset),
    }
    return {**row, **changes}


def delivery(of: Row, client_id: str, node: str, after: float = 0.01) -> Row:
    """One ledger row: the message `of` got to a client at a node, `after` seconds."""
    key = {name: of[name] for name in ("zone", "epoch", "offset")}
    time = of["created"] + timedelta(seconds=after)
    return {**key, "kind": "delivery", "client_id": client_id, "time": time, "node": node}


def write(path: Path, rows: Iterable[Row], schema: pa.Schema = MESSAGE_ARROW) -> str:
    """The rows as one Parquet file; gives its name."""
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path)
    return str(path)


def zipf_rows(messages: int, *, subtrees: int = 1000, seconds: float = 600.0) -> list[Row]:
    """
    The skewed workload: subtree k of `plant/s0001` ... gets 1/k of what the first one gets.

    Each subtree has one publisher and one subscriber of its own, all of them connected to `house`,
    which owns everything. Times are spread over `seconds`, the order of topics is random.
    """
    shares = [1 / rank for rank in range(1, subtrees + 1)]
    whole = sum(shares)
    names = [
        f"plant/s{rank + 1:04}/value"
        for rank, share in enumerate(shares)
        for _ in range(max(1, round(messages * share / whole)))
    ]
    random.Random(7).shuffle(names)
    step = seconds / len(names)
    return [
        message(
            number,
            name,
            client_id=f"sensor-{name[6:11]}",
            created=BEGIN + timedelta(seconds=number * step),
        )
        for number, name in enumerate(names, 1)
    ]


def own_subscribers(rows: Iterable[Row], count: int = 1) -> list[Row]:
    """Each message to `count` subscribers of its subtree, at the node it came in on."""
    return [
        delivery(row, f"display-{row['topic'][6:11]}-{number}", row["node"])
        for row in rows
        for number in range(count)
    ]


def home_rows() -> list[Row]:
    """Ten minutes of a home: the kitchen's node owns its zone, the house's all else."""
    dice = random.Random(9)
    rooms = {"kitchen": 9, "living": 6, "bath": 3, "outside": 2}
    kinds = {"temperature": 4, "humidity": 3, "motion": 1}
    offsets = {"": 0, "home/kitchen": 0}
    rows = []
    for number in range(3000):
        room = dice.choices(list(rooms), list(rooms.values()))[0]
        kind = dice.choices(list(kinds), list(kinds.values()))[0]
        zone = "home/kitchen" if room == "kitchen" else ""
        offsets[zone] += 1
        row = message(
            offsets[zone],
            f"home/{room}/{kind}",
            zone=zone,
            client_id=f"{room}-{kind}",
            # The bath's sensors reach the kitchen's node better.
            node="kitchen" if room in ("kitchen", "bath") else "house",
            payload=f"{dice.uniform(15, 25):.2f}".encode(),
            created=BEGIN + timedelta(seconds=number * 0.2),
        )
        rows.append(row)
    return rows
