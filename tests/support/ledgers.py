"""The delivery ledgers of real nodes, row by row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from txbroker.model.zone_cut import ZoneCut
from txbroker.pipeline.ledgers.ledgers import cursors, ledgers_of, read_span

from .nodes import NodeProcess


def holder(node: NodeProcess) -> ZoneCut:
    """The node as readers know it."""
    return ZoneCut(apex="", epoch=0, node=node.name, grpc=node.grpc)


def ledger_rows(*nodes: NodeProcess) -> list[dict[str, Any]]:
    """All rows of all of these, node after node."""
    known = ledgers_of([holder(node) for node in nodes])
    assert not known.missing
    return [row for span in known.spans for batch in read_span(span) for row in batch.to_pylist()]


def places(rows: Iterable[dict[str, Any]], kind: str, client_id: str) -> list[tuple[str, int, int]]:
    """(zone, epoch, offset) of a client's rows of one kind, as they come."""
    return [
        (row["zone"], row["epoch"], row["offset"])
        for row in rows
        if row["kind"] == kind and row["client_id"] == client_id
    ]


def cursor_rows(*nodes: NodeProcess) -> list[dict[str, Any]]:
    """How far sessions have come."""
    table, away = cursors([holder(node) for node in nodes])
    assert not away
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
