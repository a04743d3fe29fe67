"""
The message history through Spark: see docs/pipeline.md.

Cheap to import: Spark and gRPC are loaded by what is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txbroker.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXTRA = ("pyspark", "pyarrow", "pandas", "numpy")


def register(spark: SparkSession) -> None:
    """
    Let a session read and write the format `txbroker`; raises `PipelineError`.

    Switches on that filters reach Python data sources (`spark.sql.python.filterPushdown.enabled`).
    """
    with_extra()
    from txbroker.pipeline.source import register as register_source

    register_source(spark)


def with_extra() -> None:
    """Raise `PipelineError` unless what the pipeline needs beside txbroker is installed."""
    from importlib.util import find_spec

    absent = [name for name in EXTRA if find_spec(name) is None]
    if absent:
        raise PipelineError(
            f"the pipeline needs {', '.join(absent)}; run: pip install 'txbroker[pipeline]'"
        )


__all__ = ["register"]
