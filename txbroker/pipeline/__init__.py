"""
The message history through Spark: see docs/pipeline.md.

The import is cheap: each function imports Spark and gRPC when it is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from txbroker.model.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txbroker.pipeline.archives.archives import read_archive
    from txbroker.pipeline.jobs.archive import archive
    from txbroker.pipeline.jobs.audit import audit
    from txbroker.pipeline.jobs.plan import plan
    from txbroker.pipeline.jobs.replay import replay
    from txbroker.pipeline.jobs.report import report
    from txbroker.pipeline.jobs.rollup import read_rollup, rollup
    from txbroker.pipeline.jobs.traffic import traffic
    from txbroker.pipeline.report_page.windows import rollup_rows

JOBS = {
    "archive": "jobs.archive",
    "audit": "jobs.audit",
    "plan": "jobs.plan",
    "read_archive": "archives.archives",
    "read_rollup": "jobs.rollup",
    "replay": "jobs.replay",
    "report": "jobs.report",
    "rollup": "jobs.rollup",
    "rollup_rows": "report_page.windows",
    "traffic": "jobs.traffic",
}
"""The functions for notebooks, and the module of each."""

EXTRA = ("pyspark", "pyarrow", "pandas", "numpy")


def register(spark: SparkSession) -> None:
    """
    Register the format `txbroker` with a session, for reading and writing; raises `PipelineError`.

    Enables filters for Python data sources (`spark.sql.python.filterPushdown.enabled`).
    """
    with_extra()
    from txbroker.pipeline.source.source import register as register_source

    register_source(spark)


def __getattr__(name: str) -> Any:
    """Import a job at its first use; raises `PipelineError` without the extra."""
    if name not in JOBS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with_extra()
    return getattr(import_module(f"{__name__}.{JOBS[name]}"), name)


def with_extra() -> None:
    """Raise `PipelineError` unless the packages that the pipeline needs are installed."""
    from importlib.util import find_spec

    absent = [name for name in EXTRA if find_spec(name) is None]
    if absent:
        raise PipelineError(
            f"the pipeline needs {', '.join(absent)}; run: pip install 'txbroker[pipeline]'"
        )


__all__ = [
    "archive",
    "audit",
    "plan",
    "read_archive",
    "read_rollup",
    "register",
    "replay",
    "report",
    "rollup",
    "rollup_rows",
    "traffic",
]
