"""The source and the sink on a Spark of several processes, one of whose workers is killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'txbroker[pipeline]'")

import pyspark

from tests.pipeline.conftest import start_spark, stop_spark
from tests.pipeline.site import Stream, house, numbered, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two executors, each a process of its own, whose folder is not the package's."""
    home = tmp_path_factory.mktemp("spark")
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        stop_spark()
        yield start_spark("local-cluster[2,1,1024]")
        stop_spark()


def executors(spark: SparkSession) -> list[int]:
    """Their process ids."""
    pid = spark.sparkContext._gateway.proc.pid
    found = subprocess.run(
        ["pgrep", "-P", str(pid), "-f", "Executor"], capture_output=True, text=True
    )
    return [int(one) for one in found.stdout.split()]


def test_an_executor_is_killed(cluster: SparkSession, tmp_path: Path) -> None:
    with house(tmp_path) as (root, kitchen):
        publish(root, numbered("home/kitchen/t", 0, 40))
        stream = Stream(cluster, tmp_path, root.grpc, maxRecordsPerBatch="10")
        stream.start()
        stream.wait_for(range(40))
        before = executors(cluster)
        assert 2 == len(before)
        os.kill(before[0], signal.SIGKILL)
        publish(root, numbered("x", 40, 20))
        stream.wait_for(range(60))
        stream.stop()
        rows = cluster.range(30).selectExpr("'out' as topic", "cast(id as string) as payload")
        rows.write.format("txbroker").mode("append").option("root", kitchen.grpc).save()
        out = cluster.read.format("txbroker").options(root=root.grpc, filter="out").load()
        assert set(range(30)) == {int(row.payload.decode()) for row in out.collect()}
        assert 30 == out.count()
