"""What became of messages, by what ledgers and nodes say of them: on rows made up for that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from txbroker.pipeline.jobs.audit import compare
from txbroker.pipeline.ledgers.evidence import Evidence
from txbroker.pipeline.source.row_schema import (
    CURSOR_ARROW,
    CURSOR_COLUMNS,
    LEDGER_ARROW,
    LEDGER_COLUMNS,
    MESSAGE_ARROW,
    MESSAGE_COLUMNS,
)

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def at(minutes: float) -> datetime:
    """A time after the beginning."""
    return BEGAN + timedelta(minutes=minutes)


def message(offset: int, topic: str, *, zone: str = "", epoch: int = 1, qos: int = 1) -> Any:
    """It came as many minutes after the beginning as its offset says."""
    return {
        "zone": zone,
        "epoch": epoch,
        "offset": offset,
        "topic": topic,
        "payload": b"",
        "qos": qos,
        "retain": False,
        "client_id": "publisher",
        "node": "n",
        "created": at(offset),
    }


class Book:
    """A ledger: rows are added with their numbers, one a minute."""

    def __init__(self, node: str = "n", first: int = 1) -> None:
        self.rows: list[dict[str, Any]] = []
        self._node = node
        self._number = first

    def add(self, kind: str, client_id: str | None, offset: int, **values: Any) -> Book:
        row = dict.fromkeys(LEDGER_ARROW.names) | {
            "node": self._node,
            "ledger": f"of {self._node}",
            "number": self._number,
            "kind": kind,
            "client_id": client_id,
            "zone": "",
            "epoch": 1,
            "offset": offset,
            "time": at(self._number),
        }
        self.rows.append(row | values)
        self._number += 1
        return self

    def start(self, client_id: str, text: str, offset: int = 0, **values: Any) -> Book:
        return self.add("start", client_id, offset, filter=text, **{"qos": 1, **values})

    def end(self, client_id: str, text: str, offset: int, **values: Any) -> Book:
        return self.add("end", client_id, offset, filter=text, **{"qos": 1, **values})

    def deliveries(self, client_id: str, *offsets: int, **values: Any) -> Book:
        for offset in offsets:
            self.add("delivery", client_id, offset, **values)
        return self


def cursor(client_id: str, offset: int, *open_: int, **values: Any) -> Any:
    common = {"node": "n", "kept": True, "client_id": client_id, "zone": "", "epoch": 1}
    return {**common, "offset": offset, "open": list(open_), **values}


def told(
    spark: SparkSession, messages: list[Any], book: Book, cursors: list[Any]
) -> dict[str, dict[tuple[str, int, int], str]]:
    """The status by client and (zone, epoch, offset); each comes once."""
    made = [
        (messages, MESSAGE_ARROW, MESSAGE_COLUMNS),
        (book.rows, LEDGER_ARROW, LEDGER_COLUMNS),
        (cursors, CURSOR_ARROW, CURSOR_COLUMNS),
    ]
    frames = [
        spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema), columns)
        for rows, schema, columns in made
    ]
    rows = compare(Evidence(messages=frames[0], ledger=frames[1], cursors=frames[2])).collect()
    found: dict[str, dict[tuple[str, int, int], str]] = {}
    for row in rows:
        of_client = found.setdefault(row.client_id, {})
        assert (row.zone, row.epoch, row.offset) not in of_client
        of_client[row.zone, row.epoch, row.offset] = row.status
    return found


def in_root(statuses: dict[int, str]) -> dict[tuple[str, int, int], str]:
    return {("", 1, offset): status for offset, status in statuses.items()}


def test_what_is_owed_and_what_became_of_it(spark: SparkSession) -> None:
    """
    Each status, for sessions that are told apart by what is said of them alone. A subscription goes
    along with a zone; a part that a node has not heard of is ahead of its sessions.
    """
    messages = [message(n, "a/b") for n in range(1, 7)] + [message(7, "a/b", qos=0)]
    messages += [message(8, "$SYS/x"), message(9, "other"), message(10, "z/x")]
    messages += [message(n, "z/x", zone="z") for n in (1, 2)] + [message(16, "z/x")]
    messages += [message(1, "z/x", zone="z", epoch=2)]
    book = Book()
    for client in ("lost", "pending", "dropped", "gone", "away", "late"):
        book.start(client, "a/#").deliveries(client, 1, 2, 2)
    book.start("all", "#").start("all", "a/+").start("none", "#", qos=0).start("late", "a/#", 4)
    book.deliveries("all", *range(1, 17)).deliveries("all", 1, 2, zone="z")
    book.deliveries("lost", 4, 5).add("dropped", "dropped", 3, through=6).end("late", "a/#", 2)
    book.start("here", "z/#").start("there", "z/#")
    book.deliveries("here", 10, 16).deliveries("here", 1, zone="z")
    passages = [("z", 1, 0, "", 1, 12), ("", 1, 14, "z", 1, 2), ("z", 2, 0, "", 1, 18)]
    for zone, epoch, offset, left, left_epoch, through in passages:
        went = {"zone": zone, "epoch": epoch, "through": through, "filter": "z"}
        book.add("passage", None, offset, left_zone=left, left_epoch=left_epoch, **went)
    cursors = [
        *(cursor(client, 17) for client in ("lost", "dropped", "all", "none", "here")),
        cursor("pending", 3, 3),
        cursor("late", 6, 5),
        cursor("away", 6, kept=False),
        cursor("there", 0),
        cursor("there", 0, zone="z"),
    ]

    found = told(spark, messages, book, cursors)

    first = {1: "delivered", 2: "delivered"}
    rest = range(3, 7)
    of_z = {("z", 1, 1): "delivered", ("z", 1, 2): "delivered", ("z", 2, 1): "pending"}
    waiting = [("", 1, 10), ("z", 1, 1), ("z", 1, 2), ("", 1, 16), ("z", 2, 1)]
    assert {
        "all": in_root(dict.fromkeys([1, 2, 3, 4, 5, 6, 9, 10, 16], "delivered")) | of_z,
        "lost": in_root(first | {3: "lost", 4: "delivered", 5: "delivered", 6: "lost"}),
        "pending": in_root(first | dict.fromkeys(rest, "pending")),
        "dropped": in_root(first | dict.fromkeys(rest, "dropped")),
        "gone": in_root(first | dict.fromkeys(rest, "lost")),
        "away": in_root(first | dict.fromkeys(rest, "unknown")),
        "late": in_root(first | {5: "pending", 6: "lost"}),
        "here": in_root({10: "delivered", 16: "delivered"}) | of_z | {("z", 1, 2): "lost"},
        "there": dict.fromkeys(waiting, "pending"),
    } == found


def test_what_nobody_can_tell(spark: SparkSession) -> None:
    """A gap in a ledger, and a ledger that begins after the message."""
    messages = [message(n, "x") for n in (1, 5, 200)]
    book = Book(first=4).start("gone", "x").start("behind", "x")
    book.add("gap", None, 1).start("behind", "x", 100)

    found = told(spark, messages, book, [cursor("behind", 300)])

    assert {
        "gone": in_root({5: "unknown", 200: "unknown"}),
        "behind": in_root({5: "unknown", 200: "lost"}),
    } == found
