"""
SHELL: reads the delivery ledgers of all nodes of a tree, and their sessions' cursors.

`ledgers` returns the spans to read. `read_span` reads a span, on a Spark worker or elsewhere.
`ledger` does both for a Spark session. Pure edges have durable sessions and ledgers too. So every
node is asked, not only owners of zones. gRPC calls are synchronous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import attrs
import grpc
import pyarrow as pa

from txbroker.delegation.resolution import start_at
from txbroker.delegation.tree_walk import TreeWalk
from txbroker.model.errors import PipelineError
from txbroker.model.zone_cut import ZoneCut
from txbroker.pipeline.ledgers.ledger_batches import gap_before, ledger_to_arrow
from txbroker.pipeline.source.channel import open_channel
from txbroker.pipeline.source.row_schema import CURSOR_ARROW, LEDGER_ARROW, LEDGER_COLUMNS
from txbroker.rpc.channels import CALL_TIMEOUT, why
from txbroker.rpc.zone_convert import node_from_wire
from txbroker.v1.control_pb2 import StatusReply, StatusRequest
from txbroker.v1.control_pb2_grpc import ControlStub
from txbroker.v1.journal_pb2 import (
    CursorsReply,
    CursorsRequest,
    LedgerRequest,
    LedgerState,
    SessionCursor,
)
from txbroker.v1.journal_pb2_grpc import JournalStub

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

AT_ONCE = 16
"""Nodes that are asked at the same time."""

SPAN_ROWS = 500_000
"""Maximum rows that one task reads."""

QUIET_SECONDS = 30.0
"""Seconds without an answer after which a node counts as away."""


@attrs.frozen(kw_only=True)
class LedgerSpan:
    """
    The rows of one ledger from `start` to `end` (exclusive), which one task reads.

    If rows from `start` on were deleted, a row `gap` replaces them.
    """

    node: str
    address: str
    ledger: str
    start: int
    end: int


@attrs.frozen(kw_only=True)
class Ledgers:
    """
    Result of a poll of all nodes.

    `spans` are the rows to read; `without` has nodes without a ledger; `missing` has nodes that do
    not answer.
    """

    spans: tuple[LedgerSpan, ...]
    without: tuple[str, ...] = ()
    missing: tuple[ZoneCut, ...] = ()


# -- which nodes there are


def holders(root: str) -> tuple[tuple[ZoneCut, ...], tuple[ZoneCut, ...]]:
    """
    Find every node of the tree that the node at `root` belongs to.

    Return the nodes that answer, and the nodes that do not. Raises `PipelineError` if the node at
    `root` does not answer.
    """
    start = start_at(root)
    walk = TreeWalk([start], lambda node: (*node.lineage, *node.below, *node.edges))
    while queries := walk.next_queries():
        for cut, reply in _ask_all(queries, _status):
            if not isinstance(reply, grpc.RpcError):
                walk.accept_answer(cut, node_from_wire(reply, cut.grpc))
            elif cut is start:
                raise PipelineError(why(root, reply))
    missing = {cut.node: cut for cut in walk.missing()}
    return tuple(node.own for node in walk.answers.values()), tuple(missing.values())


# -- ledgers


def ledgers(root: str) -> Ledgers:
    """Find all present ledger rows; raises `PipelineError` if the node at `root` is away."""
    found, missing = holders(root)
    known = ledgers_of(found)
    return attrs.evolve(known, missing=(*missing, *known.missing))


def ledgers_of(found: Iterable[ZoneCut], reached: Mapping[str, int] | None = None) -> Ledgers:
    """Find the ledger rows of these nodes; a ledger in `reached` begins at the row given there."""
    spans: list[LedgerSpan] = []
    without: list[str] = []
    away: list[ZoneCut] = []
    for holder, state in _ask_all(found, _ledger_state):
        if isinstance(state, grpc.RpcError):
            away.append(holder)
        elif not state.kept:
            without.append(holder.node)
        else:
            spans += cut_spans(holder, state, (reached or {}).get(state.ledger, 1))
    return Ledgers(spans=tuple(spans), without=tuple(without), missing=tuple(away))


def cut_spans(holder: ZoneCut, state: LedgerState, start: int = 1) -> Iterator[LedgerSpan]:
    """
    Cut the rows of a ledger from `start` on into spans for tasks.

    The first span also covers deleted rows, so that it yields a gap. A reader from row 1 needs no
    gap: the number of its first row shows the deletion.
    """
    kept = max(start, state.first)
    for first in range(kept, state.end, SPAN_ROWS):
        yield LedgerSpan(
            node=holder.node,
            address=holder.grpc,
            ledger=state.ledger,
            start=start if first == kept and start > 1 else first,
            end=min(first + SPAN_ROWS, state.end),
        )


def read_span(
    span: LedgerSpan, on_missing: Callable[[int], None] = lambda count: None
) -> Iterator[pa.RecordBatch]:
    """
    Read the rows of a span, in order, as `row_schema.LEDGER_ARROW`.

    `on_missing` receives the number of rows that a row `gap` replaces. Raises `PipelineError`, also
    if the node has another ledger now.
    """
    missing = 0
    request = LedgerRequest(start=span.start, end=span.end, ledger=span.ledger)
    with open_channel(span.address) as channel:
        try:
            for reply in JournalStub(channel).Ledger(request):
                if reply.HasField("state"):
                    if reply.state.ledger != span.ledger:
                        raise PipelineError(
                            f"node {span.node} at {span.address} has another ledger by now;"
                            " its data was replaced: run this again"
                        )
                    missing = max(0, reply.state.first - span.start)
                for batch in reply.batches:
                    rows = ledger_to_arrow(
                        batch.body,
                        node=span.node,
                        ledger=span.ledger,
                        first=batch.first,
                        start=span.start,
                        end=span.end,
                    )
                    if missing and rows.num_rows:
                        on_missing(missing)
                        yield gap_before(rows, missing)
                        missing = 0
                    yield rows
        except grpc.RpcError as error:
            raise PipelineError(why(span.address, error)) from None


def ledger(spark: SparkSession, root: str) -> DataFrame:
    """
    Return the present ledgers of all nodes that answer (`row_schema.LEDGER_COLUMNS`).

    Raises `PipelineError`.
    """
    return read_spans(spark, ledgers(root).spans)


def read_spans(spark: SparkSession, spans: Sequence[LedgerSpan]) -> DataFrame:
    """Return the rows of spans that `ledgers` has found."""
    return plan_spans(spark, spans).mapInArrow(_read_planned, LEDGER_COLUMNS)


def plan_spans(spark: SparkSession, spans: Sequence[LedgerSpan]) -> DataFrame:
    """Return one row per span, with the fields as columns, as input for tasks."""
    fields = [field.name for field in attrs.fields(LedgerSpan)]
    columns = "node string, address string, ledger string, start long, end long"
    rows = [attrs.astuple(span) for span in spans]
    planned = spark.createDataFrame(rows, columns).select(*fields)
    return planned.repartition(max(len(rows), 1), "node", "start")


def _read_planned(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            yield from read_span(LedgerSpan(**row))
    yield pa.RecordBatch.from_pylist([], schema=LEDGER_ARROW)


# -- sessions


def cursors(found: Iterable[ZoneCut]) -> tuple[pa.Table, tuple[ZoneCut, ...]]:
    """
    Return the cursors of all durable sessions of these nodes (`row_schema.CURSOR_ARROW`).

    Also return the nodes that did not answer.
    """
    tables = [CURSOR_ARROW.empty_table()]
    away: list[ZoneCut] = []
    for holder, replies in _ask_all(found, _cursors):
        if isinstance(replies, grpc.RpcError):
            away.append(holder)
        else:
            tables.append(cursors_to_arrow(replies))
    return pa.concat_tables(tables), tuple(away)


def cursors_to_arrow(replies: Sequence[CursorsReply]) -> pa.Table:
    """Convert the replies of one node."""
    node, kept = replies[0].node, replies[0].kept
    positions = {(one.zone, one.epoch): one for one in replies[0].positions}
    rows: list[dict[str, object]] = []
    for reply in replies:
        for session in reply.sessions:
            own = {(one.zone, one.epoch): one for one in session.cursors}
            common = {"node": node, "kept": kept, "client_id": session.client_id}
            known = {**positions, **own}.values()
            rows += [common | _cursor(one) for one in known] or [common | _NOWHERE]
    return pa.Table.from_pylist(rows, schema=CURSOR_ARROW)


_NOWHERE: dict[str, object] = {"zone": None, "epoch": None, "offset": None, "open": []}


def _cursor(one: SessionCursor) -> dict[str, object]:
    return {"zone": one.zone, "epoch": one.epoch, "offset": one.offset, "open": list(one.open)}


# -- internal


def _status(channel: grpc.Channel) -> StatusReply:
    return ControlStub(channel).Status(StatusRequest(), timeout=CALL_TIMEOUT)


def _ledger_state(channel: grpc.Channel) -> LedgerState:
    # An empty range of rows asks for the ledger's state alone.
    call = JournalStub(channel).Ledger(LedgerRequest(start=1, end=1), timeout=QUIET_SECONDS)
    return next(iter(call)).state


def _cursors(channel: grpc.Channel) -> list[CursorsReply]:
    return list(JournalStub(channel).Cursors(CursorsRequest(), timeout=QUIET_SECONDS))


def _ask_all(
    found: Iterable[ZoneCut], ask: Callable[[grpc.Channel], T]
) -> Iterator[tuple[ZoneCut, T | grpc.RpcError]]:
    """Ask all nodes at the same time; yield the error of a node that does not answer."""

    def one(holder: ZoneCut) -> tuple[ZoneCut, T | grpc.RpcError]:
        with open_channel(holder.grpc) as channel:
            try:
                return holder, ask(channel)
            except grpc.RpcError as error:
                return holder, error

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(one, list(found))
