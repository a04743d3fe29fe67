"""Delivery ledgers in the archive: copied once, read back, and used by what looks at history."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.rows import messages, table
from tests.pipeline.site import PATIENCE, house, numbered, publish, until
from tests.pipeline.test_audit_nodes import subscribe, take
from tests.support.nodes import NodeProcess
from tests.system import commands
from txbroker.journal.delivery_ledger import LedgerKind, LedgerRow, encode_rows
from txbroker.model.errors import PipelineError
from txbroker.model.log_position import JournalId
from txbroker.pipeline import archive, read_archive, traffic
from txbroker.pipeline.archives.archives import write_batch
from txbroker.pipeline.archives.commits import Commits
from txbroker.pipeline.jobs.audit import compare
from txbroker.pipeline.ledgers import ledger_archive
from txbroker.pipeline.ledgers import ledgers as ledgers
from txbroker.pipeline.ledgers.evidence import NO_NODES, Evidence, gather, without_nodes
from txbroker.pipeline.ledgers.ledger_archive import LedgerCopy, next_spans
from txbroker.pipeline.ledgers.ledgers import LedgerSpan, read_span
from txbroker.pipeline.source.row_schema import LEDGER_COLUMNS
from txbroker.v1.journal_pb2 import LedgerReply, LedgerState


@attrs.frozen
class Site:
    """Two nodes with ledgers, and an archive of what `panel` has got at the root."""

    root: NodeProcess
    kitchen: NodeProcess
    archive: Path


@pytest.fixture(scope="module")
def site(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Eight messages of two zones; the last two wait for the panel."""
    folder = tmp_path_factory.mktemp("site")
    with house(folder, ledger=True) as (root, kitchen):
        subscribe(root, "panel", "home/#")
        publish(root, [*numbered("home/hall", 1, 3), *numbered("home/kitchen", 1, 3)])
        take(root, "panel", 6)
        publish(root, [("home/hall", "9"), ("home/kitchen", "9")])
        archive(spark, root=root.grpc, archive=folder / "history", once=True)
        yield Site(root, kitchen, folder / "history")


def sorted_rows(rows: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, rows.collect()), key=lambda row: row[1:3])


def version_of_ledger(site: Site) -> int:
    """How often the archive of the ledgers was committed to."""
    return Commits(site.archive / "_ledger").load().version


def statuses(evidence: Evidence) -> dict[str, int]:
    """How many messages are what."""
    return dict(Counter(row.status for row in compare(evidence).select("status").collect()))


def test_rows_are_those_of_the_nodes(spark: SparkSession, site: Site) -> None:
    """All of both ledgers, once, in files of a ledger and day."""
    found = read_archive(spark, site.archive, ledger=True)

    assert sorted_rows(ledgers.ledger(spark, site.root.grpc)) == sorted_rows(found)
    assert 6 == found.where("kind = 'delivery' and client_id = 'panel'").count()
    assert spark.createDataFrame([], LEDGER_COLUMNS).dtypes == found.dtypes
    files = Commits(site.archive / "_ledger").load().files.values()
    assert {file.path.split("/")[0] for file in files} == {f"ledger={file.zone}" for file in files}


def test_traffic_knows_deliveries(site: Site) -> None:
    """Of an archive that has them."""
    row = traffic(str(site.archive), depth=1).collect()[0]

    assert (8, 6, 0.75) == (row.messages, row.deliveries, row.fan_out)


def test_the_audit_of_an_archive(spark: SparkSession, site: Site) -> None:
    """With the nodes it is theirs; without, nobody knows where sessions are."""
    messages = read_archive(spark, site.archive)
    ledger = read_archive(spark, site.archive, ledger=True)
    both = messages.unionByName(spark.read.format("txbroker").option("root", site.root.grpc).load())

    with_nodes, notes = gather(spark, site.root.grpc, both, ledger)
    alone, limits = without_nodes(spark, messages, ledger)

    assert ((), (NO_NODES,)) == (notes, limits)
    assert {"delivered": 6, "pending": 2} == statuses(with_nodes)
    assert {"delivered": 6, "unknown": 2} == statuses(alone)


def test_rows_come_once_however_the_job_ends(
    spark: SparkSession, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends before a commit, and behind it; each row is there once, and again nothing is new."""
    take(site.root, "panel", 2)
    commit = Commits.commit

    def die_before(self: Commits, *given: Any) -> Any:
        raise RuntimeError("killed")

    def die_behind(self: Commits, *given: Any) -> Any:
        commit(self, *given)
        raise RuntimeError("killed")

    for dies in (die_before, die_behind):
        monkeypatch.setattr(Commits, "commit", dies)
        with pytest.raises(RuntimeError):
            LedgerCopy(spark, site.root.grpc, site.archive).all()
        monkeypatch.setattr(Commits, "commit", commit)
    version = version_of_ledger(site)
    LedgerCopy(spark, site.root.grpc, site.archive).between()

    assert version == version_of_ledger(site)
    found = read_archive(spark, site.archive, ledger=True)
    assert sorted_rows(ledgers.ledger(spark, site.root.grpc)) == sorted_rows(found)
    assert 8 == found.where("kind = 'delivery' and client_id = 'panel'").count()


def test_rows_come_once_though_the_job_is_killed(spark: SparkSession, site: Site) -> None:
    """With kill -9, before its commit and behind it."""
    program = [sys.executable, "-m", "tests.pipeline.killed_copy", site.root.grpc]
    versions = [version_of_ledger(site)]
    for when in ("before", "behind"):
        subscribe(site.root, f"killed-{when}", "home/#")
        done = subprocess.run(
            [*program, site.archive, when],
            env=commands.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=110,
        )
        assert -signal.SIGKILL == done.returncode, done.stdout
        versions.append(version_of_ledger(site))
    LedgerCopy(spark, site.root.grpc, site.archive).all()

    first, before, behind = versions
    assert (first, first + 1) == (before, behind)
    found = read_archive(spark, site.archive, ledger=True)
    assert sorted_rows(ledgers.ledger(spark, site.root.grpc)) == sorted_rows(found)
    assert {"killed-before", "killed-behind"} <= {row.client_id for row in found.collect()}


def test_a_node_that_is_away_is_left_for_later(
    spark: SparkSession, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named; the other one's rows come, commit by commit where there are many."""
    monkeypatch.setattr(ledgers, "SPAN_ROWS", 2)
    told: list[Mapping[str, Any]] = []
    subscribe(site.root, "late", "home/+")
    subscribe(site.root, "later", "home/+")
    site.kitchen.terminate()
    before = version_of_ledger(site)

    def report(event: str, fields: Mapping[str, Any]) -> None:
        told.append(fields)

    LedgerCopy(spark, site.root.grpc, site.archive, report=report).all()
    LedgerCopy(spark, "127.0.0.1:1", site.archive, report=report).all()

    clients = {row.client_id for row in read_archive(spark, site.archive, ledger=True).collect()}
    assert {"late", "later"} <= clients
    assert 2 <= version_of_ledger(site) - before
    away = [line for fields in told for line in fields.get("ledger_away", ())]
    assert [True, True] == ["kitchen" in away[0], "127.0.0.1:1" in away[1]]
    site.kitchen.start()
    until(lambda: not ledgers.ledgers(site.root.grpc).missing, "a whole tree", PATIENCE)


def test_an_archive_without_a_ledger(spark: SparkSession, tmp_path: Path) -> None:
    """Has no rows; what is no archive is an error."""
    with pytest.raises(PipelineError, match="nothing was written there yet"):
        read_archive(spark, tmp_path / "none", ledger=True)
    write_batch(spark.createDataFrame(table(messages(["home"], range(3)))), tmp_path, "q", 0)

    assert [] == read_archive(spark, tmp_path, ledger=True).collect()
    assert [None] == [row.deliveries for row in traffic(str(tmp_path), depth=0).collect()]
    with pytest.raises(PipelineError, match="only `since` and `until`"):
        read_archive(spark, tmp_path, ledger=True, filter="home/#")


def test_what_retention_took_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row in place of those that are gone, with the time of the next one."""
    delivery = LedgerRow(LedgerKind.DELIVERY, 1000, "c", part=JournalId("home", 1), offset=7)

    class Stub:
        def __init__(self, channel: object) -> None: ...

        def Ledger(self, request: object) -> list[LedgerReply]:
            reply = LedgerReply(state=LedgerState(node="n", kept=True, ledger="l", first=9, end=10))
            body = encode_rows([delivery])
            reply.batches.add(first=9, count=1, body=body)
            return [reply]

    monkeypatch.setattr(ledgers, "JournalStub", Stub)
    missing: list[int] = []
    span = LedgerSpan(node="n", address="127.0.0.1:1", ledger="l", start=4, end=10)
    rows = [row for batch in read_span(span, missing.append) for row in batch.to_pylist()]

    assert [5] == missing
    assert [("gap", 8, 5), ("delivery", 9, 7)] == [
        (row["kind"], row["number"], row["offset"]) for row in rows
    ]
    assert rows[0]["time"] == rows[1]["time"]


def test_a_commit_takes_what_is_furthest_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """One stretch of each ledger, in bounds."""
    spans = [
        LedgerSpan(node=name, address="", ledger=name, start=start, end=start + 10)
        for name in "abc"
        for start in (1, 11)
    ]
    monkeypatch.setattr(ledger_archive, "ROWS_AT_ONCE", 15)

    chosen = next_spans(spans, {"a": 300, "b": 100})

    assert [("c", 1), ("b", 1)] == [(span.ledger, span.start) for span in chosen]
