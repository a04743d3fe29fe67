"""One Spark for all tests of a process that need one; without PySpark they are skipped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.nodes import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT = 900.0
"""Seconds of a test with Spark: its start alone takes two minutes where others have the machine."""

REASON = "PySpark is not installed: pip install 'txbroker[pipeline]'"


def start_spark(master: str, **settings: str) -> Any:
    """A session on this machine; its workers run this checkout."""
    pytest.importorskip("pyspark", reason=REASON)
    from txbroker.pipeline.spark.spark_session import session

    defaults = {
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
    }
    return session(master, "txbroker tests", {**defaults, **settings})


def stop_spark() -> None:
    """End the session of this process, if it has one, and its Java."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests with Spark take longer than others, unless they say how long."""
    for item in items:
        needs_spark = "spark" in getattr(item, "fixturenames", ())
        if needs_spark and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """Two cores; the same for all modules, unless one has ended it."""
    warehouse: Path = tmp_path_factory.mktemp("warehouse")
    return start_spark("local[2]", **{"spark.sql.warehouse.dir": str(warehouse)})
