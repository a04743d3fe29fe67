"""`txbroker pipeline audit`: reports the fate of acknowledged messages per durable session."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from txbroker.cli.options import BadArgument, as_json
from txbroker.cli.output import show_json, show_table, zone_name
from txbroker.cli.pipeline import Job, master, root, run_job, topics
from txbroker.config import Address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txbroker.pipeline.ledgers.evidence import Evidence

SHOWN = 100
"""Maximum number of lost messages that are listed."""

COLUMNS = ("CLIENT", "ZONE", "EPOCH", "OFFSET", "TOPIC", "FILTER", "RECEIVED")


@click.command(
    epilog="""
    Examples:

    \b
      $ txbroker pipeline audit --root 127.0.0.1:7001
      $ txbroker pipeline audit --root 127.0.0.1:7001 --filter 'home/#' --json
      $ txbroker pipeline audit --root 127.0.0.1:7001 --archive history
    """
)
@root
@click.option("--archive", metavar="DIR", help="An archive, for what nodes do not keep any more.")
@topics
@master
@as_json
def audit(
    root: Address | None,
    archive: str | None,
    filter: str | None,
    master: str,
    as_json: bool,
) -> None:
    """
    Report the fate of acknowledged messages: delivered, pending, dropped, or lost.

    The job takes each message of QoS 1 or 2 of the journals, or of the archive. The job compares
    the message with each durable session whose subscription covered it. The nodes' delivery ledgers
    (`ledger: true`) are the evidence. The report lists lost messages; the exit status is then 1.
    With --archive alone, the job asks no node where its sessions are, and calls no message lost.
    """
    if root is None and archive is None:
        raise BadArgument("--root or --archive is missing; say where the messages are")
    counts: dict[str, int] = {}
    lost: list[dict[str, Any]] = []
    notes: list[str] = []

    def run(spark: SparkSession, job: Job) -> str:
        from txbroker.pipeline.jobs.audit import compare, count

        evidence, limits = _evidence(spark, root, archive, filter)
        found, named = count(compare(evidence), SHOWN)
        counts.update(found)
        lost.extend(named)
        notes.extend(limits)
        return ""

    run_job("audit", master, run, follows=False)
    for note in notes:
        click.echo(note, err=True)
    if as_json:
        show_json({"counts": counts, "lost": lost, "notes": notes})
    else:
        _show(counts, lost)
    if counts["lost"]:
        sys.exit(1)


def _evidence(
    spark: SparkSession, root: Address | None, archive: str | None, topic_filter: str | None
) -> tuple[Evidence, tuple[str, ...]]:
    from txbroker.pipeline.archives.archives import read_archive
    from txbroker.pipeline.archives.inputs import journals
    from txbroker.pipeline.ledgers.evidence import gather, without_nodes

    messages, ledger = None, None
    if archive is not None:
        messages = read_archive(spark, archive, filter=topic_filter)
        ledger = read_archive(spark, archive, ledger=True)
        if root is None:
            return without_nodes(spark, messages, ledger)
    kept = journals(spark, str(root), topic_filter)
    messages = kept if messages is None else kept.unionByName(messages)
    return gather(spark, str(root), messages, ledger)


def _show(counts: dict[str, int], lost: list[dict[str, Any]]) -> None:
    show_table(("STATUS", "MESSAGES"), [(name, str(number)) for name, number in counts.items()])
    if not lost:
        return
    click.echo()
    cells = [
        (
            row["client_id"],
            zone_name(row["zone"]),
            str(row["epoch"]),
            str(row["offset"]),
            row["topic"],
            row["filter"],
            row["created"],
        )
        for row in lost
    ]
    show_table(COLUMNS, cells)
    if counts["lost"] > len(lost):
        click.echo(f"and {counts['lost'] - len(lost)} more")
