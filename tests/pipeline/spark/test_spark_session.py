"""
The data source and the sink in a real Spark, on real nodes.

All in one file: test files run in processes of their own, and a Spark takes long to start.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'txbroker[pipeline]'")

from pyspark.errors import PySparkException

from tests.pipeline.site import (
    Stream,
    command,
    house,
    numbered,
    publish,
    publishers,
    republish,
    until,
)
from tests.support.nodes import NodeProcess, topology
from txbroker.model.errors import PipelineError
from txbroker.pipeline.source.row_schema import PROPERTIES
from txbroker.pipeline.spark.spark_session import one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """Two nodes with 60 messages, for tests that only read."""
    with house(tmp_path_factory.mktemp("site")) as (root, kitchen):
        publish(root, numbered("home/kitchen/t", 0, 30))
        publish(root, numbered("garage/door", 30, 30))
        yield root, kitchen


def history(spark: SparkSession, node: NodeProcess, **options: str) -> DataFrame:
    return spark.read.format("txbroker").option("root", node.grpc).options(**options).load()


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.payload.decode()) for row in frame.select("payload").collect())


# -- batches


def test_rows_are_what_was_published(spark: SparkSession, site: Any) -> None:
    _, kitchen = site
    rows = history(spark, kitchen).orderBy("zone", "epoch", "offset").collect()

    assert 60 == len(rows)
    first = rows[30].asDict()
    assert datetime.now() - first.pop("created") < timedelta(minutes=10)
    assert {
        "zone": "home/kitchen",
        "epoch": 1,
        "offset": 1,
        "topic": "home/kitchen/t",
        "payload": bytearray(b"0"),
        "qos": 1,
        "retain": False,
        "client_id": "publisher",
        "node": "root",
        **dict.fromkeys(PROPERTIES),
    } == first
    assert [("", 1, n) for n in range(1, 31)] == [(r.zone, r.epoch, r.offset) for r in rows[:30]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"filter": "home/#"}, range(30)),
        ({"filter": "+/door"}, range(30, 60)),
        ({"filter": "nothing/here"}, range(0)),
        ({"startingOffsets": '{"home/kitchen": {"epoch": 1, "offset": 21}}'}, range(20, 60)),
        (
            {
                "endingOffsets": '{"home/kitchen": {"epoch": 1, "offset": 3}}',
                "startingOffsets": '{"": {"epoch": 2, "offset": 1}}',
            },
            range(2),
        ),
        ({"startingOffsets": "2020-01-01T00:00:00Z"}, range(60)),
        ({"endingOffsets": "2020-01-01T00:00:00+01:00"}, range(0)),
        ({"startingOffsets": "latest"}, range(0)),
    ],
)
def test_options(spark: SparkSession, site: Any, options: dict[str, str], expected: range) -> None:
    assert list(expected) == numbers(history(spark, site[0], **options))


@pytest.mark.parametrize(
    ("condition", "expected", "is_exact"),
    [
        ("zone = 'home/kitchen'", range(30), True),
        ("zone in ('', 'x')", range(30, 60), True),
        ("topic = 'garage/door'", range(30, 60), True),
        ("topic = 'a/#'", range(0), True),
        ("topic like 'home/kit%'", range(30), False),
        ("zone = '' and offset > 3 and offset <= 5", range(33, 35), True),
        ("offset = 2 and epoch = 1", [1, 31], True),
        ("epoch >= 2", range(0), True),
        ("created >= '2020-01-01'", range(60), True),
        ("created < timestamp '2020-01-01 00:00:00'", range(0), True),
        ("payload = cast('7' as binary) or qos = 2", range(7, 8), False),
        ("zone = '' or offset = 1", [0, *range(30, 60)], False),
    ],
)
def test_filters_reach_the_nodes(
    spark: SparkSession, site: Any, condition: str, expected: Any, is_exact: bool
) -> None:
    frame = history(spark, site[1], pushDown="true").where(condition)

    assert list(expected) == numbers(frame)
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert is_exact == ("Filter" not in plan.replace("RuntimeFilters", ""))


def test_times_are_the_same_on_both_sides(spark: SparkSession, site: Any) -> None:
    rows = history(spark, site[0]).select("created", "payload").orderBy("created").collect()
    middle = rows[len(rows) // 2].created
    expected = sorted(int(row.payload.decode()) for row in rows if row.created >= middle)
    wanted = middle.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")

    frame = history(spark, site[0], pushDown="true")

    assert 0 < len(expected) < 60
    assert expected == numbers(frame.where(f"created >= '{wanted}'"))


def test_a_frame_is_used_again_with_other_filters(spark: SparkSession, site: Any) -> None:
    """Without `pushDown`, as Spark would apply the filters of one use to all."""
    frame = history(spark, site[0])

    assert (30, 60, 5) == (
        frame.where("zone = ''").count(),
        frame.count(),
        frame.where("offset = 1").union(frame.where("offset = 2 or payload = '7'")).count(),
    )


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"maxRecords": "1"}, "option maxrecords: unknown; the options are root, filter, "),
        ({"password": "x"}, "option password: reserved until nodes have TLS"),
        ({"filter": "a/#/b"}, "option filter: 'a/#/b': "),
        ({"root": "nowhere"}, "option root: 'nowhere': a node's gRPC address is wanted"),
        ({"root": "127.0.0.1:9"}, "127.0.0.1:9 cannot be reached; is it a node's gRPC address"),
        ({"startingOffsets": "yesterday"}, "option startingOffsets: 'yesterday': wanted: "),
        ({"startingOffsets": "2020-01-01T00:00:00"}, "an ISO 8601 time with its zone"),
        ({"startingOffsets": '{"a": 1}'}, "option startingOffsets: the position of zone 'a'"),
        ({"endingOffsets": '{"x": {"epoch": 1, "offset": 1}}'}, "zone 'x': no node keeps"),
        ({"maxRecordsPerBatch": "0"}, "option maxRecordsPerBatch: '0': a whole number"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss: 'maybe': true or false"),
    ],
)
def test_mistakes_are_one_line(
    spark: SparkSession, site: Any, options: dict[str, str], line: str
) -> None:
    with pytest.raises(PipelineError) as caught, one_line():
        history(spark, site[0], **options).count()

    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_program_ends_with_the_line(spark: SparkSession, site: Any, tmp_path: Path) -> None:
    """Without `one_line`, too: it is what Python prints last of Spark's exception."""
    stream = Stream(spark, tmp_path, site[0].grpc, filter="a/#/b")
    actions = (
        lambda: history(spark, site[0], filter="a/#/b").count(),
        lambda: _run(stream),
        lambda: spark.range(1).write.format("txbroker").mode("append").save(),
    )
    for action, said in zip(
        actions, ("option filter: 'a/#/b'", "option filter: 'a/#/b'", "column payload"), strict=True
    ):
        with pytest.raises(PySparkException) as caught:
            action()
        last = traceback.format_exception(caught.value)[-1].rstrip().splitlines()[-1]
        assert last.startswith(f"txbroker: {said}")


def test_a_batch_does_not_pass_over_a_node_that_is_away(
    spark: SparkSession, tmp_path: Path
) -> None:
    with house(tmp_path) as (root, kitchen):
        publish(root, numbered("home/kitchen/t", 0, 3))
        publish(root, numbered("x", 3, 3))
        kitchen.kill()

        with pytest.raises(PipelineError, match="zone 'home/kitchen' cannot be read"), one_line():
            history(spark, root).count()
        assert [3, 4, 5] == numbers(history(spark, root, filter="x"))


# -- streams


def test_every_record_once_whatever_happens(spark: SparkSession, tmp_path: Path) -> None:
    """The query is stopped, a node killed, its zone retired and taken back."""
    with house(tmp_path) as (root, kitchen):
        publish(root, numbered("home/kitchen/t", 0, 20))
        publish(root, numbered("x", 20, 20))
        stream = Stream(spark, tmp_path, root.grpc, maxRecordsPerBatch="7")
        stream.start()
        stream.wait_for(range(40))
        kitchen.kill()
        publish(root, numbered("x", 40, 5))
        stream.wait_for(range(45))
        kitchen.start()
        publish(root, numbered("home/kitchen/t", 45, 20))
        stream.stop()
        stream.start()
        command("retire", kitchen.grpc)
        kitchen.wait()
        publish(root, numbered("home/kitchen/t", 65, 5))
        stream.wait_for(range(70))
        kitchen.start()
        kitchen.wait_event("join.granted")
        publish(root, numbered("home/kitchen/t", 70, 5))
        stream.wait_for(range(75))
        ends = json.loads(stream.query.lastProgress["sources"][0]["endOffset"])
        stream.stop()

    assert 3 == ends["home/kitchen"]["epoch"]


def test_a_zone_is_reclaimed_while_a_query_runs(spark: SparkSession, tmp_path: Path) -> None:
    with house(tmp_path) as (root, kitchen):
        publish(root, numbered("home/kitchen/t", 0, 5))
        stream = Stream(spark, tmp_path, root.grpc)
        stream.start()
        stream.wait_for(range(5))
        kitchen.kill()
        until(lambda: _reclaims(root), "the zone is reclaimed")
        publish(root, numbered("home/kitchen/t", 5, 5))
        stream.wait_for(range(10))
        kitchen.start(ready=False)
        kitchen.wait_event("zone.divergent")
        command("divergent", "drop", kitchen.grpc, "home/kitchen")
        kitchen.wait_event("join.granted")
        publish(root, numbered("home/kitchen/t", 10, 5))
        stream.wait_for(range(15))
        stream.stop()


def _reclaims(root: NodeProcess) -> bool:
    try:
        command("reclaim", root.grpc, "home/kitchen")
    except AssertionError:
        return False  # the parent has not seen it go yet
    return True


def test_available_now_ends_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    with house(tmp_path) as (root, kitchen):
        publish(root, numbered("home/kitchen/t", 0, 25))
        stream = Stream(spark, tmp_path, root.grpc, maxRecordsPerBatch="10")
        stream.start(availableNow=True)
        assert stream.query.awaitTermination(60)
        assert sorted(map(str, range(25))) == stream.payloads()
        assert 3 <= len([p for p in stream.query.recentProgress if p["numInputRows"]])
        kitchen.kill()
        publish(root, numbered("x", 25, 5))
        stream.start(availableNow=True)
        assert stream.query.awaitTermination(60)
        assert sorted(map(str, range(30))) == stream.payloads()


def test_what_retention_took_is_told(spark: SparkSession, tmp_path: Path) -> None:
    keys = {"retention": {"size": "1MiB"}, "durability": "memory"}
    large = "x" * 1_000_000
    with NodeProcess(tmp_path, topology("root", zone="", **keys)) as root:
        publish(root, numbered("x", 0, 5))
        stream = Stream(spark, tmp_path, root.grpc)
        stream.start()
        stream.wait_for(range(5))
        stream.stop()
        start = json.dumps({"": {"epoch": 1, "offset": 1}})
        publish(root, [("y", large)] * 150)
        until(
            lambda: not history(spark, root, filter="x", failOnDataLoss="false").count(),
            "retention has taken the first",
        )

        for action in (lambda: _run(stream), lambda: _count(spark, root, start)):
            with pytest.raises(PipelineError) as caught, one_line():
                action()
            assert "zone '', epoch 1: the offsets " in str(caught.value)
            assert "failOnDataLoss=false" in str(caught.value)
        lossy = Stream(spark, tmp_path, root.grpc, failOnDataLoss="false", filter="x")
        publish(root, numbered("x", 5, 5))
        _run(lossy)
        assert sorted(map(str, range(10))) == lossy.payloads()


def _run(stream: Stream) -> None:
    stream.start(availableNow=True)
    stream.query.awaitTermination(60)


def _count(spark: SparkSession, node: NodeProcess, start: str) -> int:
    return history(spark, node, startingOffsets=start).count()


def test_latest_needs_every_node(spark: SparkSession, tmp_path: Path) -> None:
    with house(tmp_path) as (root, kitchen):
        publish(root, numbered("x", 0, 5))
        stream = Stream(spark, tmp_path / "a", root.grpc, startingOffsets="latest")
        stream.start()
        until(lambda: "Waiting" in stream.query.status["message"], "the query has begun")
        publish(root, numbered("x", 5, 5))
        stream.wait_for(range(5, 10))
        stream.stop()
        kitchen.kill()
        late = Stream(spark, tmp_path / "b", root.grpc, startingOffsets="latest")
        with pytest.raises(PipelineError, match="zone 'home/kitchen' cannot be read"), one_line():
            _run(late)


def test_a_corrupt_checkpoint_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    with NodeProcess(tmp_path, topology("root", zone="")) as root:
        publish(root, numbered("x", 0, 2))
        stream = Stream(spark, tmp_path, root.grpc)
        _run(stream)
        log = stream.checkpoint / "offsets" / "0"
        for text, remedy in (
            (log.read_text().replace('"epoch"', '"era"'), "name another checkpointLocation"),
            (log.read_text()[:-10], "delete the checkpoint: a job goes on where"),
            ("nonsense", "delete the checkpoint: a job goes on where"),
        ):
            log.write_text(text)
            (stream.checkpoint / "offsets" / ".0.crc").unlink(missing_ok=True)
            with pytest.raises(PipelineError) as caught, one_line():
                _run(stream)
            assert "checkpoint" in str(caught.value)
            assert remedy in str(caught.value)
            assert "\n" not in str(caught.value)


# -- the sink


def test_a_batch_that_is_written_again_adds_nothing(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(40).selectExpr(
        "concat('home/kitchen/', id % 3) as topic", "cast(id as string) as payload",
        "cast(id % 2 + 1 as byte) as qos", "id < 3 as retain",
    )  # fmt: skip
    with house(tmp_path) as (root, kitchen):
        for _ in range(2):
            writing = frame.write.format("txbroker").mode("append")
            writing.option("root", root.grpc).option("query", "again").save()
        assert list(range(40)) == numbers(history(spark, kitchen))
        rows = history(spark, kitchen, filter="home/kitchen/0").orderBy("offset").collect()
    by_client: dict[str, list[int]] = {}
    for row in rows:
        by_client.setdefault(row.client_id, []).append(int(row.payload.decode()))

    assert all(some == sorted(some) for some in by_client.values())
    assert {0} == {int(row.payload.decode()) for row in rows if row.retain}


def test_a_stream_that_is_killed_before_its_commit_publishes_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What Spark knows of a batch is taken away behind the sink, and the nodes are killed."""
    with house(tmp_path) as (root, kitchen):
        publish(root, numbered("in/a", 0, 30))
        republish(spark, tmp_path, root)
        first = publishers(root)
        (commit,) = (tmp_path / "cp" / "commits").glob("[0-9]*")
        commit.unlink()
        commit.with_name(f".{commit.name}.crc").unlink()
        for node in (root, kitchen):
            node.kill()
            node.start()
        kitchen.wait_event("join.granted")
        republish(spark, tmp_path, root)
        assert list(range(30)) == numbers(history(spark, root, filter="home/#"))
        publish(root, numbered("in/a", 30, 5))
        republish(spark, tmp_path, root)
        assert list(range(35)) == numbers(history(spark, root, filter="home/#"))
        second = publishers(root)

    assert [name.replace("/0/0/0", "/1/0/0") for name in first] == second
    assert 1 == len(second)


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (["'a' as topic"], "column payload is missing"),
        (["'a' as topic", "'x' as payload", "1 as size"], "column size: unknown"),
        (["1 as topic", "'x' as payload"], "column topic is of type int"),
        (["'a/#' as topic", "'x' as payload"], "'a/#' cannot be published to"),
        (["'a' as topic", "'x' as payload", "3 as qos"], "column qos: 3 on topic 'a'"),
    ],
)
def test_wrong_columns_are_one_line(
    spark: SparkSession, site: Any, columns: list[str], line: str
) -> None:
    frame = spark.range(1).selectExpr(*columns)

    with pytest.raises(PipelineError) as caught, one_line():
        frame.write.format("txbroker").mode("append").option("root", site[0].grpc).save()

    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
