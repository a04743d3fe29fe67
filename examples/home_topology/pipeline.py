"""
The house's history through Spark. Six nodes and a sensor replay run, an archive and a rollup follow
as it goes, and a report tells the result. `make pipeline` calls this; docs/pipeline.md tells the
rest.

    .venv/bin/python examples/home_topology/pipeline.py --seconds 20
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import attrs
import run
from mapping import MappingError
from nodes import Home, NodeError, prepare
from readings import SourceError
from replay import ReplayError
from rich.console import Console
from rich.table import Table

from txbroker.model.errors import PipelineError
from txbroker.pipeline import archive, read_archive, read_rollup, report, rollup
from txbroker.pipeline.spark.spark_session import one_line, session

FIELD = "value"
"""Where in the readings' JSON the number stands."""
RATE = 2_000.0
"""Readings a second, unless said otherwise."""


@attrs.frozen(kw_only=True, slots=True)
class Results:
    """Where everything lies that the pipeline makes."""

    folder: Path

    @property
    def archive(self) -> Path:
        return self.folder / "archive"

    @property
    def rollup(self) -> Path:
        return self.folder / "rollup-1m"

    @property
    def report(self) -> Path:
        return self.folder / "report.html"


class Following:
    """
    Jobs that follow the journals, each in a thread of its own, until `finish`.
    """

    def __init__(self) -> None:
        self._is_stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopping.set()
        for thread in self._threads:
            thread.join()

    def start(self, job: Callable[..., None], **arguments: Any) -> None:
        """
        Have the job follow.
        """
        arguments["is_stopping"] = self._is_stopping.is_set
        thread = threading.Thread(target=self._run, args=(job, arguments))
        self._threads.append(thread)
        thread.start()

    def finish(self) -> None:
        """
        Have all of them end; raises what the first of them that failed raised.
        """
        self.__exit__()
        if self._failures:
            raise self._failures[0]

    def _run(self, job: Callable[..., None], arguments: Mapping[str, Any]) -> None:
        try:
            with one_line():
                job(**arguments)
        except BaseException as error:
            self._failures.append(error)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """
    The options of `run.py`, and where the results go.
    """
    parser = run.new_parser((__doc__ or "").strip().split("\n\n")[0])
    parser.add_argument("--out", type=Path, help="put the results here (default: a fresh folder)")
    parser.add_argument("--master", default="local[*]", help="where Spark runs (%(default)s)")
    return parser.parse_args(arguments)


def demonstrate(options: argparse.Namespace, directory: Path, stop: run.Stop) -> bool:
    """
    The whole run; True if every reading that was published is in the archive and in the rollup.
    """
    console = Console()
    readings = run.open_readings(options)
    results = Results(folder=options.out or Path(tempfile.mkdtemp(prefix="txbroker-pipeline-")))
    rate = RATE if options.rate is None else options.rate
    with Home(prepare(directory, options.ports_base, ledger=True), directory / "logs") as home:
        if not home.start(stop.publishing):
            console.print("stopped before the nodes were ready")
            return False
        run.introduce(console, home)
        console.print(f"\nSpark at {options.master}: an archive and a rollup follow the journals")
        with one_line(), Following() as following:
            jobs = _jobs(session(options.master), home["house"].grpc, results)
            for job, chosen in jobs.items():
                following.start(job, **chosen)
            outcome = run.replay(
                home,
                readings,
                rate,
                options.seconds,
                stop,
                console,
                expiry=run.expiry_of(options),
                is_lasting=True,
            )
            following.finish()
            for job, chosen in jobs.items():
                job(**chosen, once=True)
            good = run.report(console, home, outcome)
            return _reckon(console, results, outcome.snapshot.issued) and good


def _jobs(spark: Any, root: str, results: Results) -> dict[Callable[..., None], dict[str, Any]]:
    common = {"spark": spark, "root": root, "interval": "2 seconds"}
    return {
        archive: {**common, "archive": results.archive},
        rollup: {**common, "out": results.rollup, "field": FIELD, "publish": root},
    }


def _reckon(console: Console, results: Results, published: int) -> bool:
    """
    Print what the archive and the rollup have, and write the report.
    """
    spark = session()
    rows = read_archive(spark, results.archive).where("topic NOT LIKE '%/rollup/%'")
    windows = read_rollup(spark, results.rollup)
    archived = rows.count()
    counted = windows.selectExpr("sum(count)").first()[0]
    console.print(f"\npublished {published}, archived {archived}, rolled up {counted}")
    table = Table("topic", "minute (UTC)", "count", "min", "mean", "max", "last")
    for row in windows.orderBy("topic", "start").limit(8).collect():
        numbers = (f"{row[name]:.2f}" for name in ("min", "mean", "max", "last"))
        table.add_row(row.topic, f"{row.start:%H:%M}", str(row["count"]), *numbers)
    console.print(table)
    path = report(
        rows, read_archive(spark, results.archive, ledger=True), out=results.report, title="A house"
    )
    console.print(f"report: {path}", soft_wrap=True, highlight=False)
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(path.resolve().as_uri())
    return archived == counted == published


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Exit status: 0 all published readings are in the results, 1 something is missing, 2 usage.
    """
    options = parse_arguments(arguments)
    stop = run.Stop()
    stop.listen()
    directory = options.data or Path(tempfile.mkdtemp(prefix="txbroker-home-"))
    try:
        good = demonstrate(options, directory, stop)
    except (PipelineError, NodeError, ReplayError, MappingError, SourceError, OSError) as error:
        print(f"pipeline.py: {error}", file=sys.stderr)
        good = False
    if options.data is None and good:
        shutil.rmtree(directory, ignore_errors=True)
    elif not good:
        print(f"pipeline.py: the nodes' logs are in {directory / 'logs'}", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
