"""`txbroker pipeline plan`: proposes zones for more machines, and writes their topology files."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from txbroker.cli.options import BadArgument, as_json
from txbroker.cli.output import show_json, show_table
from txbroker.cli.pipeline import needed, run_job
from txbroker.cli.pipeline_report import (
    UNKNOWN,
    HistorySource,
    NumberOption,
    history_options,
    rate,
    share,
)
from txbroker.config.value_hooks import CONVERTER, BadValue
from txbroker.config.values import Host as HostName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txbroker.pipeline.jobs.plan import Plan
    from txbroker.pipeline.planner.expected import ExpectedLoad
    from txbroker.pipeline.planner.planned import PlannedHost, PresentNode


class Hosts(click.ParamType[tuple[str | None, ...]]):
    """The number of machines, or their addresses; None stands for an unknown address."""

    name = "N|ADDRESS,..."
    most = 1000

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str | None, ...]:
        """Parse the number or the addresses; raises `BadArgument`."""
        if isinstance(value, tuple):
            return value
        if value.isdecimal():
            return (None,) * NumberOption(1, self.most).convert(value, param, ctx)
        try:
            hosts = tuple(str(CONVERTER.structure(text, HostName)) for text in value.split(","))
        except BadValue as error:
            raise BadArgument(f"HOSTS: {value!r}: {error}; {error.remedy}") from None
        if len(set(hosts)) < len(hosts):
            raise BadArgument(f"HOSTS: {value!r}: an address twice; name each machine once")
        return hosts


class PortNumbers(click.ParamType[tuple[int, int, int]]):
    """Three ports: MQTT, gRPC and link."""

    name = "MQTT,GRPC,LINK"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int, int]:
        """Parse the ports; raises `BadArgument`."""
        if isinstance(value, tuple):
            return value
        ports = [int(text) for text in value.split(",") if text.isdecimal() and len(text) < 6]
        if value.count(",") != 2 or len(ports) != 3 or not all(0 < port < 65536 for port in ports):
            raise BadArgument(f"PORTS: {value!r}: write three ports, such as 1883,7001,8001")
        return ports[0], ports[1], ports[2]


@click.command()
@history_options
@click.option(
    "--hosts", type=Hosts(), help="Machines to add: how many, or their addresses (needed)."
)
@click.option(
    "--zones",
    type=NumberOption(1, 10_000),
    default="16",
    show_default=True,
    help="Zones, and so nodes, on each of them at most.",
)
@click.option(
    "--depth", type=NumberOption(1, 200), default="4", show_default=True, help="Levels of an apex."
)
@click.option(
    "--ports",
    type=PortNumbers(),
    default="1883,7001,8001",
    show_default=True,
    help="First ports of the new nodes of a machine.",
)
@click.option("--out", metavar="DIR", help="Write topology files and clients.csv there.")
@as_json
def plan(
    hosts: tuple[str | None, ...] | None,
    zones: int,
    depth: int,
    ports: tuple[int, int, int],
    out: str | None,
    as_json: bool,
    master: str,
    **given: Any,
) -> None:
    """
    Propose zones for more machines, so that the load of the busiest machine is least.

    The present nodes are those of --topology, or else of the tree about --root. Load is the
    publishes and deliveries per second of the topics that a machine owns. A new machine without an
    address gets the root's address and ports of its own. Use such files for a trial, or fill in
    addresses.
    """
    source = HistorySource(**given)
    source.check()
    if source.root is None and not source.topology:
        raise BadArgument("--topology or --root is missing; say which nodes there are")
    addresses = needed("--hosts", hosts)
    made: list[Plan] = []
    files: list[Path] = []

    def run(spark: SparkSession, _: object) -> str:
        from txbroker.pipeline.jobs.plan import plan as propose
        from txbroker.pipeline.planner.planned import PlannedPorts, write_files

        members = source.members()
        messages, ledger = source.rows(spark)
        first = PlannedPorts(mqtt=ports[0], grpc=ports[1], link=ports[2])
        done = propose(
            messages,
            ledger,
            members=members,
            hosts=_hosts(addresses, members),
            zones=zones,
            depth=depth,
            ports=first,
        )
        if out is not None:
            today = [Path(name) for name in source.topology]
            files.extend(write_files(Path(out), done.nodes, done.hosts, today))
            files.append(_write_clients(Path(out), done.clients))
        made.append(done)
        return ""

    run_job("plan", master, run, follows=False)
    (show_plan_json if as_json else show_plan)(made[0], files)


def _hosts(addresses: Sequence[str | None], members: Sequence[PresentNode]) -> list[PlannedHost]:
    from txbroker.pipeline.planner.planned import PlannedHost

    root = next((member.grpc.host for member in members if member.zone == ""), "127.0.0.1")
    return [
        PlannedHost(name=f"host-{number}" if address is None else address, address=address or root)
        for number, address in enumerate(addresses, 1)
    ]


def _write_clients(folder: Path, clients: DataFrame) -> Path:
    file = folder / "clients.csv"
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(("client_id", "node", "host"))
        writer.writerows(clients.orderBy("client_id").toLocalIterator())
    return file


def show_plan(plan: Plan, files: Sequence[Path]) -> None:
    """Print tables of the hosts before and after, and the other results in words."""
    expected = plan.expected
    columns = ["HOST", "ZONES", "PUBLISHES/S", "DELIVERIES/S", "LOAD/S", "SHARE", "EDGE/S"]
    for title, loads in (("BEFORE", expected.before), ("AFTER", expected.after)):
        whole = sum(host.load for host in loads)
        rows = [
            [
                host.host,
                str(host.zones),
                rate(host.publishes),
                rate(host.deliveries) if plan.has_ledger else UNKNOWN,
                rate(host.load),
                share(host.load / whole),
                rate(host.edge),
            ]
            for host in loads
        ]
        click.echo(title)
        show_table(columns, rows)
        click.echo()
    click.echo(
        f"The busiest host has {share(expected.relief)} of the load that it had; "
        f"{len(plan.nodes)} zones to add."
    )
    if not plan.has_ledger:
        click.echo("No delivery ledger: deliveries are not known, load is publishes alone.")
    for words, crossings in (
        ("before", expected.crossings),
        ("after, clients where they are", expected.stay),
        ("after, each client at its best node", expected.move),
    ):
        click.echo(
            f"Between nodes {words}: {rate(crossings.nodes)}/s,"
            f" between hosts {rate(crossings.hosts)}/s"
        )
    for file in files:
        click.echo(f"wrote {file}")


def show_plan_json(plan: Plan, files: Sequence[Path]) -> None:
    """Print the plan as JSON."""
    expected = plan.expected
    show_json(
        {
            "before": _loads(expected, plan, is_after=False),
            "after": _loads(expected, plan, is_after=True),
            "relief": expected.relief,
            "zones": [
                {
                    "zone": node.zone,
                    "node": node.node,
                    "host": node.host,
                    "load": expected.loads[node.zone],
                }
                for node in plan.nodes
            ],
            "crossings": {
                "before": attrs.asdict(expected.crossings),
                "stay": attrs.asdict(expected.stay),
                "move": attrs.asdict(expected.move),
            },
            "seconds": expected.seconds,
            "files": [str(file) for file in files],
        }
    )


def _loads(expected: ExpectedLoad, plan: Plan, *, is_after: bool) -> list[dict[str, Any]]:
    rows = []
    for host in expected.after if is_after else expected.before:
        row = {**attrs.asdict(host), "load": host.load}
        if not plan.has_ledger:
            row["deliveries"] = None
        rows.append(row)
    return rows
