"""SHELL: makes Spark sessions for the commands, and reduces Spark's traces to one line."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from txbroker.model.errors import PipelineError
from txbroker.pipeline.source.error_reasons import is_sparks, line_of
from txbroker.pipeline.source.source_options import LAST_PORT
from txbroker.pipeline.spark.java import find_java
from txbroker.pipeline.spark.masters import REMEDY, addresses, is_here, is_master

DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    # Spark walks its plans by recursion, in large frames until they are compiled, which takes long
    # on a busy machine. A smaller stack overflows; Spark's own tests use this size.
    "spark.driver.defaultJavaOptions": "-Xss4m",
    "spark.executor.defaultJavaOptions": "-Xss4m",
}
LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""Settings for masters of this machine, so that Spark binds no other address."""

ANSWER = 10.0
"""Seconds that a standalone master may be silent."""


def session(
    master: str = "local[*]",
    name: str = "txbroker",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """
    Return a session with the source and the sink registered.

    Spark's own settings (`spark-defaults.conf`) hold; `settings` override all others. Raises
    `PipelineError`, also if no Java is found or `master` is not a master.
    """
    from txbroker.pipeline.source.source import register

    if not is_master(master):
        raise PipelineError(f"master: {master!r}: {REMEDY}")
    _check_answers(master)
    os.environ["JAVA_HOME"] = str(find_java())
    # Workers need the same Python, or they would not find the package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_here(master):
        # Otherwise Spark looks for an external address of this machine, and prints a warning.
        os.environ.setdefault("SPARK_LOCAL_IP", LOCAL["spark.driver.host"])
    builder = SparkSession.builder.master(master).appName(name)
    chosen = {**DEFAULTS, **(LOCAL if is_here(master) else {}), **(settings or {})}
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        raise PipelineError(f"Spark does not start at {master}: {reason(error)}") from None
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def _check_answers(master: str) -> None:
    """Raise `PipelineError` if no standalone master answers; Spark needs a minute to say so."""
    trouble = None
    for host, port in addresses(master):
        try:
            if port > LAST_PORT:
                # The resolver would cut the port to 16 bits, and a foreign port might answer.
                raise OverflowError(f"ports end at {LAST_PORT}")
            socket.create_connection((host, port), ANSWER).close()
            return
        except (OSError, OverflowError) as error:
            trouble = error
    if trouble is not None:
        raise PipelineError(
            f"{master}: no Spark master answers ({trouble}); is it running, and is the address"
            " right?"
        )


@contextmanager
def one_line() -> Iterator[None]:
    """Convert an error of Spark, or of its bridge to Java, to a `PipelineError` of one line."""
    try:
        yield
    except Exception as error:
        if not is_sparks(error):
            raise
        raise PipelineError(reason(error)) from error


def reason(error: BaseException) -> str:
    """Return the line that says what was wrong (see `error_reasons.line_of`)."""
    return line_of(str(error)) or type(error).__name__
