"""SHELL: a Spark session for the commands, and what Spark's long traces say in one line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from txbroker.errors import PipelineError, TxbrokerError
from txbroker.pipeline.java import find_java

DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
}
LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""For masters of this machine: nothing listens on other addresses."""

_OURS = re.compile(r"^(?:\w+\.)*txbroker\.errors\.\w+: (.+)$", re.MULTILINE)
_ERROR_CLASS = re.compile(r"^\[[A-Z_.]+\]\s*")
_SECONDARY = re.compile(r"Caused by: [\w.$]+(?:Exception|Error): (.+)")


def session(
    master: str = "local[*]",
    name: str = "txbroker",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """
    A session that the source and the sink are registered with; raises `PipelineError`, also where
    no Java is found. Spark's own settings (`spark-defaults.conf`) hold, `settings` win over all.
    """
    from txbroker.pipeline.source import register

    os.environ["JAVA_HOME"] = str(find_java())
    # Workers run the same Python, and find the same package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    is_local = master.startswith("local")
    builder = SparkSession.builder.master(master).appName(name)
    chosen = {**DEFAULTS, **(LOCAL if is_local else {}), **(settings or {})}
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        raise PipelineError(f"Spark does not start at {master}: {reason(error)}") from None
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


@contextmanager
def one_line() -> Iterator[None]:
    """What Spark raises inside is raised as `PipelineError`, with the line that matters."""
    try:
        yield
    except TxbrokerError:
        raise
    except PySparkException as error:
        raise PipelineError(reason(error)) from error


def reason(error: BaseException) -> str:
    """
    One line that says what was wrong: the text of our own error where one is inside, which Spark
    wraps in the traces of its processes; else the first line of what Spark says.
    """
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1]).strip()
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    if not lines:
        return type(error).__name__
    first = _ERROR_CLASS.sub("", lines[0])
    causes = _SECONDARY.findall(text)
    return f"{first}: {causes[-1].strip()}" if causes and causes[-1] not in first else first
