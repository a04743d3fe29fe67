"""The archive as a command on a standalone Spark cluster, one of whose workers is killed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'txbroker[pipeline]'")

import pyarrow as pa
import pyarrow.parquet as pq

from tests.pipeline.kills import journals
from tests.pipeline.kills.journals import Row
from tests.pipeline.kills.query import Query
from tests.pipeline.site import house, numbered, publish
from tests.pipeline.standalone import Standalone
from txbroker.pipeline.archives.commits import Commits


def archived(folder: Path) -> list[Row]:
    """The rows of an archive, by its manifests, without Spark."""
    files = Commits(folder).load().files
    rows = pa.concat_tables(pq.read_table(folder / path, partitioning=None) for path in files)
    return sorted(Row(**row) for row in rows.to_pylist())


@pytest.mark.timeout(900)
def test_a_worker_is_killed_in_a_batch(tmp_path: Path) -> None:
    """The daemon and its executor, for good; the archive is what the journals are, also later."""
    archive = tmp_path / "archive"
    with Standalone(tmp_path / "spark") as cluster, house(tmp_path) as (root, kitchen):
        publish(root, [*numbered("home/kitchen/t", 0, 2000), *numbered("x", 0, 2000)])
        query = Query(
            root.grpc,
            archive,
            tmp_path / "query.log",
            master=cluster.url,
            environment=cluster.environment(),
        )
        try:
            query.start()
            query.wait(lambda: query.has_begun(0) and 2 == len(cluster.executors()), "batch")
            assert cluster.kill_worker(random.Random(1))
            query.wait_commit(set())
            query.stop()
            assert 1 == len(query.commits())
            publish(root, [*numbered("home/kitchen/t", 2000, 50), *numbered("x", 2000, 50)])
            query.finish()
        finally:
            query.kill()
        expected = journals.read([root.grpc, kitchen.grpc])

    assert 4100 == len(expected)
    assert expected == archived(archive)
