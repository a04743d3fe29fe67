"""One Spark for all tests of a process that need one; without PySpark they are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.nodes import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REASON = "PySpark is not installed: pip install 'txbroker[pipeline]'"


def start_spark(master: str, **settings: str) -> Any:
    """A session on this machine; its workers run this checkout."""
    pytest.importorskip("pyspark", reason=REASON)
    from txbroker.pipeline.spark import session

    defaults = {
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
    }
    return session(master, "txbroker tests", {**defaults, **settings})


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores."""
    warehouse: Path = tmp_path_factory.mktemp("warehouse")
    started = start_spark("local[2]", **{"spark.sql.warehouse.dir": str(warehouse)})
    yield started
    started.stop()
