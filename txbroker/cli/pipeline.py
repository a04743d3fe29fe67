"""
`txbroker pipeline NAME`: the jobs over the message history.

Each command is a few lines over the function of the same name in `txbroker.pipeline`. A command
imports Spark and the rest of the extra when it runs, and says if the extra is missing. A continuous
job ends on SIGINT and SIGTERM after its present batch, with status 0.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from txbroker.cli.options import BadArgument, HostPort, Topic
from txbroker.cli.pipeline_options import (
    AgeOption,
    DurationOption,
    MasterOption,
    MomentOption,
    SpeedOption,
)
from txbroker.cli.progress import ProgressReporter
from txbroker.config import Address
from txbroker.model.errors import TxbrokerError
from txbroker.pipeline import with_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

SETTINGS = {"spark.sql.shuffle.partitions": "8"}
"""Batches are small; Spark's own default suits a cluster."""


root = click.option("--root", type=HostPort(), help="gRPC address of any node.")
mqtt = click.option("--mqtt", type=HostPort(), help="MQTT address of any node.")
archive_folder = click.option("--archive", metavar="DIR", help="The archive's folder.")
out = click.option("--out", metavar="DIR", help="Where results go.")
topics = click.option("--filter", type=Topic(wildcards=True), help="Only topics that match it.")
since = click.option("--from", "since", type=MomentOption(), help="From this time on.")
until = click.option("--to", "until", type=MomentOption(), help="Before this time.")
master = click.option(
    "--master", type=MasterOption(), default="local[*]", help="Spark master; default: this machine."
)
once = click.option("--once", is_flag=True, help="End when all that is there now is done.")


@click.group(
    epilog="""
    Examples:

    \b
      $ txbroker pipeline audit --root 127.0.0.1:7001
    """
)
def pipeline() -> None:
    """
    Work on the message history with Spark.

    Needs the extra: pip install 'txbroker[pipeline]'.
    """


@pipeline.command()
@root
@archive_folder
@topics
@click.option(
    "--keep",
    type=AgeOption(),
    multiple=True,
    help="How long messages are kept, of all zones or of one (default 365d).",
)
@click.option(
    "--keep-ledger",
    type=DurationOption(),
    default="30d",
    show_default=True,
    help="How long rows of delivery ledgers are kept.",
)
@once
@master
def archive(
    root: Address | None,
    archive: str | None,
    filter: str | None,
    keep: tuple[tuple[str | None, timedelta], ...],
    keep_ledger: timedelta,
    once: bool,
    master: str,
) -> None:
    """
    Copy the journals into Parquet files, each message once.

    Also copies the delivery ledgers of the nodes that keep one (`ledger: true`), for the other
    jobs. The job resumes where it ended, was stopped or was killed. Without --once the job runs
    until SIGINT or SIGTERM. DIR must be in a file system that Spark's workers see under the same
    name.
    """
    given = needed("--root", root), needed("--archive", archive)
    ages = dict(keep)
    limits: dict[str, None] = {}  # in order, without duplicates

    def run(spark: SparkSession, job: Job) -> str:
        from txbroker.pipeline.archives.upkeep import KeepRules
        from txbroker.pipeline.jobs.archive import archive as copy

        zones = {zone: age for zone, age in ages.items() if zone is not None}

        def report(event: str, fields: Mapping[str, Any]) -> None:
            job.report(event, fields)
            told = (*fields.get("ledger_gaps", ()), *fields.get("ledger_away", ()))
            limits.update(dict.fromkeys(told))

        kept = (
            KeepRules(zones=zones) if None not in ages else KeepRules(age=ages[None], zones=zones)
        )
        copy(
            spark,
            root=str(given[0]),
            archive=given[1],
            filter=filter,
            once=once,
            keep=kept,
            keep_ledger=keep_ledger,
            report=report,
            is_stopping=job.is_stopping,
        )
        return f"{job.report.rows} messages archived in {given[1]}"

    run_job("archive", master, run, follows=True)
    for line in limits:
        click.echo(line, err=True)


@pipeline.command()
@root
@archive_folder
@out
@topics
@since
@until
@click.option(
    "--window", type=DurationOption(), default="1m", show_default=True, help="Length of a window."
)
@click.option("--field", metavar="A.B.C", help="Where the number stands in JSON payloads.")
@click.option(
    "--time-field",
    metavar="A.B.C",
    help="Where the time stands in them; without it, the time of receipt counts.",
)
@click.option(
    "--watermark",
    type=DurationOption(),
    default="10s",
    show_default=True,
    help="How long after its end a window is closed, and published.",
)
@click.option("--publish", is_flag=True, help="Publish closed windows, retained (needs --root).")
@once
@master
def rollup(
    root: Address | None,
    archive: str | None,
    out: str | None,
    filter: str | None,
    since: datetime | None,
    until: datetime | None,
    window: timedelta,
    field: str | None,
    time_field: str | None,
    watermark: timedelta,
    publish: bool,
    once: bool,
    master: str,
) -> None:
    """
    Windows of numbers per topic: count, min, mean, max and last.

    With --archive, the job reads the part of the archive that no earlier run has rolled up.
    Otherwise the job follows the journals of the nodes about --root until SIGINT or SIGTERM. With
    --once it ends at the journals' present end.
    """
    folder = needed("--out", out)
    if root is None and archive is None:
        raise BadArgument("--archive or --root is missing; say what to roll up")
    if publish and root is None:
        raise BadArgument("--publish: --root is missing; say where to publish")

    untimed = 0

    def run(spark: SparkSession, job: Job) -> str:
        from txbroker.pipeline.jobs.rollup import rollup as roll_up

        def report(event: str, fields: Mapping[str, Any]) -> None:
            nonlocal untimed
            job.report(event, fields)
            untimed += fields.get("untimed", 0)

        roll_up(
            spark,
            out=folder,
            root=None if archive is not None else str(root),
            archive=archive,
            filter=filter,
            since=since,
            until=until,
            window=window,
            field=field,
            time_field=time_field,
            watermark=watermark,
            publish=str(root) if publish else None,
            once=once,
            report=report,
            is_stopping=job.is_stopping,
        )
        return f"{job.report.rows} rows of windows added in {folder}"

    run_job("rollup", master, run, follows=archive is None)
    if untimed:
        click.echo(
            f"{untimed} messages say no time at {time_field}: they are in a window without a start",
            err=True,
        )


@pipeline.command()
@archive_folder
@root
@mqtt
@topics
@since
@until
@click.option("--prefix", type=Topic(wildcards=False), default=None, help="Publish below it.")
@click.option(
    "--speed", type=SpeedOption(), default="1", show_default=True, help="How many times as fast."
)
@click.option("--retain", is_flag=True, help="Messages that were retained are so again.")
@click.option("--resume", metavar="FILE", help="Keep there how far it is, and go on from there.")
@master
def replay(
    archive: str | None,
    root: Address | None,
    mqtt: Address | None,
    filter: str | None,
    since: datetime | None,
    until: datetime | None,
    prefix: str | None,
    speed: float | None,
    retain: bool,
    resume: str | None,
    master: str,
) -> None:
    """
    Publish messages of an archive again, in the order in which they came.

    The job publishes through the node at --root or --mqtt, with QoS 1. SIGINT or SIGTERM ends the
    job; with --resume the same command resumes where the job ended.
    """
    folder = needed("--archive", archive)
    if root is None and mqtt is None:
        raise BadArgument("--root is missing; say where to publish")

    def run(spark: SparkSession, job: Job) -> str:
        from txbroker.pipeline.jobs.replay import replay as publish

        count = publish(
            spark,
            archive=folder,
            root=None if root is None else str(root),
            mqtt=None if mqtt is None else str(mqtt),
            filter=filter,
            since=since,
            until=until,
            prefix=prefix or "",
            speed=speed,
            retain=retain,
            resume=resume,
            report=job.report,
            is_stopping=job.is_stopping,
        )
        return f"{count} messages published"

    run_job("replay", master, run, follows=True)


class Job:
    """The context of a running job: its progress reporter and its stop request."""

    def __init__(self, report: ProgressReporter, *, follows: bool) -> None:
        """`follows`: True if the job polls `is_stopping`; a second signal then aborts it."""
        self.report = report
        self._follows = follows
        self._stop = threading.Event()

    def is_stopping(self) -> bool:
        """True if a signal has arrived."""
        return self._stop.is_set()

    def listen_for_signals(self) -> None:
        """Install the signal handlers; call this after Spark has installed its own."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        if self._stop.is_set() or not self._follows:
            raise KeyboardInterrupt
        self._stop.set()


def needed(name: str, value: T | None) -> T:
    """Return the value of an option; raises `BadArgument` if it is missing."""
    if value is None:
        raise BadArgument(f"{name} is missing; see --help")
    return value


def run_job(
    name: str, master: str, run: Callable[[SparkSession, Job], str], *, follows: bool
) -> None:
    """Run a job and print its result, if any; a failure is one line and status 1."""
    try:
        with_extra()
        from txbroker.pipeline.spark.spark_session import one_line, session

        with one_line(), ProgressReporter(name) as report:
            job = Job(report, follows=follows)
            spark = session(master, f"txbroker {name}", SETTINGS)
            # Spark's own log would repeat each error with stack traces of two languages.
            spark.sparkContext.setLogLevel("OFF")
            logging.getLogger("py4j").setLevel(logging.CRITICAL)
            job.listen_for_signals()
            result = run(spark, job)
        if result:
            click.echo(result)
    except (TxbrokerError, OSError) as error:
        raise click.ClickException(str(error)) from None
