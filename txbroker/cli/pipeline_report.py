"""`txbroker pipeline traffic` and `report`, with the options of all commands that read history."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from txbroker.cli.options import BadArgument, as_json
from txbroker.cli.output import show_json, show_table
from txbroker.cli.pipeline import (
    archive_folder,
    master,
    root,
    run_job,
    since,
    topics,
    until,
)
from txbroker.cli.pipeline_options import DurationOption
from txbroker.config import Address, load_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txbroker.pipeline.planner.planned import PresentNode

UNKNOWN = "-"
"""Text of a table cell without a known value."""

Command = TypeVar("Command", bound=Callable[..., Any])


# -- options


class NumberOption(click.ParamType[int]):
    """A whole number within limits."""

    name = "N"

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Parse the number; raises `BadArgument`."""
        text = str(value)
        if text.isdecimal() and text.isascii() and self._least <= int(text) <= self._most:
            return int(text)
        raise BadArgument(f"N: {value!r}: write a number from {self._least} to {self._most}")


topology = click.option(
    "--topology", multiple=True, metavar="FILE", help="Topology file that names nodes; repeatable."
)


def history_options(command: Command) -> Command:
    """Add the options that choose the source of messages and the messages."""
    for option in reversed(
        (
            archive_folder,
            root,
            topology,
            topics,
            since,
            until,
            master,
        )
    ):
        command = option(command)
    return command


@attrs.frozen(kw_only=True)
class HistorySource:
    """The values of `history_options`."""

    archive: str | None
    root: Address | None
    topology: tuple[str, ...]
    filter: str | None
    since: datetime | None
    until: datetime | None

    def check(self) -> None:
        """Raise `BadArgument` if the options name no source of messages."""
        if self.archive is None and self.root is None:
            raise BadArgument("--archive or --root is missing; say where the messages are")

    def rows(self, spark: SparkSession) -> tuple[DataFrame, DataFrame | None]:
        """
        Return messages and ledger of the archive.

        Without an archive, the messages are those of the nodes about the root, and the ledger is
        None.
        """
        from txbroker.pipeline.archives.inputs import history, journals

        if self.archive is not None:
            return history(self.archive, filter=self.filter, since=self.since, until=self.until)
        from pyspark.sql import functions as F

        messages = journals(spark, str(self.root), self.filter)
        if self.since is not None:
            messages = messages.where(F.col("created") >= F.lit(self.since))
        if self.until is not None:
            messages = messages.where(F.col("created") < F.lit(self.until))
        return messages, None

    def members(self) -> list[PresentNode]:
        """Return the nodes of the topology files, or else of the root's tree; maybe none."""
        from txbroker.pipeline.planner.planned import PresentNode, members_of

        if self.topology:
            return members_of(load_files(self.topology))
        if self.root is None:
            return []
        from txbroker.cli.node_calls import ask
        from txbroker.cli.tree_rows import rows_below
        from txbroker.config import parse_address

        rows = ask(lambda channels: rows_below(channels, str(self.root)))
        return [
            PresentNode(node=row.node, zone=row.zone, grpc=parse_address(row.grpc)) for row in rows
        ]

    def owners(self) -> dict[str, str]:
        """Return the node of each known zone."""
        return {member.zone: member.node for member in self.members() if member.zone is not None}


# -- traffic


@click.command()
@history_options
@click.option("--depth", type=NumberOption(0, 200), default="2", show_default=True, help="Levels.")
@click.option("--window", type=DurationOption(), help="Length of a window; default: all in one.")
@click.option("--out", metavar="DIR", help="Write all of it there, as Parquet.")
@click.option(
    "--limit", type=NumberOption(1, 10**6), default="50", show_default=True, help="Lines to print."
)
@as_json
def traffic(
    depth: int,
    window: timedelta | None,
    out: str | None,
    limit: int,
    as_json: bool,
    master: str,
    **given: Any,
) -> None:
    """
    Messages, bytes, publishers, fan-out and cross-node share, per subtree of topics.

    The source is an archive, or with --root alone the journals of the nodes. The share between
    nodes needs --root or --topology, which name the owner of each zone. Deliveries need an archived
    delivery ledger.
    """
    source = HistorySource(**given)
    source.check()
    rows: list[dict[str, Any]] = []
    count = 0

    def run(spark: SparkSession, _: object) -> str:
        from txbroker.pipeline.jobs.traffic import traffic as count_up
        from txbroker.pipeline.source.error_reasons import converted_errors

        nonlocal count
        seconds = None if window is None else window.total_seconds()
        messages, ledger = source.rows(spark)
        table = count_up(messages, ledger, depth=depth, window=seconds, owners=source.owners())
        if out is not None:
            _check_new(out)
            with converted_errors(out):
                table.write.parquet(out)
            table = spark.read.parquet(out)
        table = table.localCheckpoint()
        count = table.count()
        by = ["start", "messages", "subtree"]
        shown = table.orderBy(*by, ascending=[True, False, True])
        rows.extend((shown if as_json else shown.limit(limit)).toArrow().to_pylist())
        return ""

    run_job("traffic", master, run, follows=False)
    if as_json:
        show_json([_plain(row) for row in rows])
        return
    columns = ["SUBTREE", "MESSAGES", "/S", "BYTES", "PUBLISHERS", "DELIVERIES", "FAN-OUT"]
    show_table(
        [*(["START"] if window else []), *columns, "BETWEEN NODES"],
        [_traffic_cells(row, with_start=window is not None) for row in rows],
    )
    if count > len(rows):
        click.echo(f"and {count - len(rows)} more (--limit, --json or --out)")


def _check_new(folder: str) -> None:
    if Path(folder).exists():
        raise click.ClickException(f"{folder}: is there already; name a new folder for --out")


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in row.items()
    }


def _traffic_cells(row: dict[str, Any], *, with_start: bool) -> list[str]:
    seconds = (row["end"] - row["start"]).total_seconds()
    cells = [
        row["subtree"] or "(no level)",
        str(row["messages"]),
        rate(row["messages"] / seconds if seconds else None),
        str(row["bytes"]),
        str(row["publishers"]),
        UNKNOWN if row["deliveries"] is None else str(row["deliveries"]),
        rate(row["fan_out"]),
        share(row["cross_share"]),
    ]
    return [f"{row['start']:%Y-%m-%dT%H:%M:%SZ}", *cells] if with_start else cells


def rate(value: float | None) -> str:
    """Format a rate or a ratio for a table."""
    return UNKNOWN if value is None else f"{value:.1f}"


def share(value: float | None) -> str:
    """Format a share for a table, as a percentage."""
    return UNKNOWN if value is None else f"{value * 100:.1f} %"


# -- report


@click.command()
@history_options
@click.option("--out", metavar="FILE", default="report.html", show_default=True, help="The page.")
@click.option("--title", default="Message traffic", show_default=True, help="Its heading.")
@click.option("--depth", type=NumberOption(0, 200), default="2", show_default=True, help="Levels.")
def report(out: str, title: str, depth: int, master: str, **given: Any) -> None:
    """
    Write one HTML page with plots: traffic, rates, latencies, gaps. The page loads nothing else.

    The source is an archive, or with --root alone the journals of the nodes.
    """
    source = HistorySource(**given)
    source.check()

    def run(spark: SparkSession, _: object) -> str:
        from txbroker.pipeline.jobs.report import report as write

        messages, ledger = source.rows(spark)
        file = write(messages, ledger, out=out, title=title, depth=depth, owners=source.owners())
        return str(file)

    run_job("report", master, run, follows=False)
