"""SHELL: a Spark session for the commands, and what Spark's long traces say in one line."""

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
    # Spark walks its plans by recursion, with frames that are larger until they are compiled, which
    # takes long on a machine that is busy. Its own tests run with as much.
    "spark.driver.defaultJavaOptions": "-Xss4m",
    "spark.executor.defaultJavaOptions": "-Xss4m",
}
LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""For masters of this machine: nothing listens on other addresses."""

ANSWER = 10.0
"""Seconds for which a standalone master may be silent."""


def session(
    master: str = "local[*]",
    name: str = "txbroker",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """
    A session that the source and the sink are registered with; raises `PipelineError`, also where
    no Java is found or the master is none. Spark's own settings (`spark-defaults.conf`) hold,
    `settings` win over all.
    """
    from txbroker.pipeline.source.source import register

    if not is_master(master):
        raise PipelineError(f"master: {master!r}: {REMEDY}")
    _check_answers(master)
    os.environ["JAVA_HOME"] = str(find_java())
    # Workers run the same Python, and find the same package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_here(master):
        # Else Spark looks for an address of this machine that others see, and says so.
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
    """Raise `PipelineError` where no standalone master is; Spark takes a minute to say so."""
    trouble = None
    for host, port in addresses(master):
        try:
            if port > LAST_PORT:
                # The resolver would cut it to 16 bits, and somebody else's port may answer.
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
    """What Spark or its bridge to Java raises becomes `PipelineError`, of the line that matters."""
    try:
        yield
    except Exception as error:
        if not is_sparks(error):
            raise
        raise PipelineError(reason(error)) from error


def reason(error: BaseException) -> str:
    """One line that says what was wrong, see `reasons.line_of`."""
    return line_of(str(error)) or type(error).__name__
