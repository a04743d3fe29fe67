"""What became of messages, by what ledgers and nodes say of them: on rows made up for that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from txbroker.pipeline.audit import Evidence, audit
from txbroker.pipeline.rows import (
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
    spark: SparkSession,
    messages: list[Any],
    book: Book,
    cursors: list[Any],
    *,
    is_whole: bool = True,
) -> dict[tuple[str, str, int, int], str]:
    """The status by (client, zone, epoch, offset); each comes once."""
    made = [
        (messages, MESSAGE_ARROW, MESSAGE_COLUMNS),
        (book.rows, LEDGER_ARROW, LEDGER_COLUMNS),
        (cursors, CURSOR_ARROW, CURSOR_COLUMNS),
    ]
    frames = [
        spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema), columns)
        for rows, schema, columns in made
    ]
    rows = audit(
        Evidence(messages=frames[0], ledger=frames[1], cursors=frames[2], is_whole=is_whole)
    ).collect()
    found = {(row.client_id, row.zone, row.epoch, row.offset): row.status for row in rows}
    assert len(found) == len(rows)
    return found


def test_what_is_owed_and_what_became_of_it(spark: SparkSession) -> None:
    """Each status, for sessions that are told apart by what is said of them alone."""
    messages = [message(n, "a/b") for n in range(1, 7)] + [message(7, "a/b", qos=0)]
    messages += [message(8, "$SYS/x"), message(9, "other")]
    book = Book()
    for client in ("lost", "pending", "dropped", "gone", "away", "late"):
        book.start(client, "a/#").deliveries(client, 1, 2, 2)
    book.start("all", "#").start("all", "a/+").start("none", "#", qos=0).start("late", "a/#", 4)
    book.deliveries("all", *range(1, 10)).deliveries("lost", 4, 5)
    book.add("dropped", "dropped", 3, through=6)
    book.end("late", "a/#", 2)
    cursors = [
        cursor("lost", 6),
        cursor("pending", 3, 3),
        cursor("dropped", 6),
        cursor("all", 9),
        cursor("none", 9),
        cursor("late", 6, 5),
        cursor("away", 6, kept=False),
    ]

    found = told(spark, messages, book, cursors)

    by_client: dict[str, dict[int, str]] = {}
    for (client, _, _, offset), status in found.items():
        by_client.setdefault(client, {})[offset] = status
    first = {1: "delivered", 2: "delivered"}
    rest = range(3, 7)
    assert {
        "all": dict.fromkeys([1, 2, 3, 4, 5, 6, 9], "delivered"),
        "lost": first | {3: "lost", 4: "delivered", 5: "delivered", 6: "lost"},
        "pending": first | dict.fromkeys(rest, "pending"),
        "dropped": first | dict.fromkeys(rest, "dropped"),
        "gone": first | dict.fromkeys(rest, "lost"),
        "away": first | dict.fromkeys(rest, "unknown"),
        "late": first | {5: "pending", 6: "lost"},
    } == by_client


def test_zones_that_changed_hands(spark: SparkSession) -> None:
    """A subscription goes along; a part that the node has not heard of is ahead of its sessions."""
    messages = [message(1, "a/x"), message(1, "a/x", zone="a"), message(2, "a/x", zone="a")]
    messages += [message(6, "a/x"), message(7, "b"), message(1, "a/x", zone="a", epoch=2)]
    book = Book().start("here", "a/#").start("there", "a/#")
    passages = [("a", 1, 0, "", 1, 5), ("", 1, 5, "a", 1, 2), ("a", 2, 0, "", 1, 9)]
    for zone, epoch, offset, left, left_epoch, through in passages:
        went = {"zone": zone, "epoch": epoch, "through": through, "filter": "a"}
        book.add("passage", None, offset, left_zone=left, left_epoch=left_epoch, **went)
    book.deliveries("here", 1, 6).deliveries("here", 1, zone="a")
    cursors = [cursor("here", 7), cursor("there", 0), cursor("there", 0, zone="a")]

    found = told(spark, messages, book, cursors)

    assert {
        ("here", "", 1, 1): "delivered",
        ("here", "a", 1, 1): "delivered",
        ("here", "a", 1, 2): "lost",
        ("here", "", 1, 6): "delivered",
        ("here", "a", 2, 1): "pending",
        **{("there", *place): "pending" for place in [("", 1, 1), ("a", 1, 1), ("a", 1, 2)]},
        ("there", "", 1, 6): "pending",
        ("there", "a", 2, 1): "pending",
    } == found


@pytest.mark.parametrize("is_whole", [True, False])
def test_what_nobody_can_tell(spark: SparkSession, is_whole: bool) -> None:
    """A node that was not asked, a gap in a ledger, a ledger that begins after the message."""
    messages = [message(n, "x") for n in (1, 5, 200)]
    book = Book(first=4).start("gone", "x").start("behind", "x")
    book.add("gap", None, 1).start("behind", "x", 100)
    cursors = [cursor("behind", 300)]

    found = told(spark, messages, book, cursors, is_whole=is_whole)

    assert {
        ("gone", "", 1, 5): "unknown",
        ("gone", "", 1, 200): "unknown",
        ("behind", "", 1, 5): "unknown",
        ("behind", "", 1, 200): "lost",
    } == found
