"""`txbroker tree`: shows the tree of zones below a node."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import attrs
import click

from txbroker.cli.options import as_json, node_address
from txbroker.cli.output import show_json, show_table, zone_name
from txbroker.config import Address

if TYPE_CHECKING:
    from txbroker.cli.tree_rows import Branch, HeldJournal, ZoneRow

COLUMNS = ("ZONE", "NODE", "GRPC", "EPOCH", "STATE", "PENDING", "CLIENTS", "IN/S", "OUT/S", "HELD")


FULL = 0.5
"""Part of its bound from which on a table is shown."""


@click.command(
    epilog="""
    Example:

    \b
      $ txbroker tree 127.0.0.1:7001
    """
)
@node_address
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Show counters, losses, who holds the disk, full tables, reclaimed zones and pure edges.",
)
@as_json
def tree(address: Address, verbose: bool, as_json: bool) -> None:
    """
    Show the tree of zones below a node: who serves what, and who is alive.

    HOST:PORT is the node's gRPC address. PENDING counts filters that wait for a zone. IN/S and
    OUT/S are messages per second from and to the clients of the zone's node. HELD is the size in
    bytes of the node's journals that are kept for sessions that are behind. --verbose lists these
    sessions and their nodes: FOR is the age of the first held record, SILENT the time since the
    session's node was heard. The exit status is 1 while a zone is unreachable.
    """
    # `node_calls` says why the import is not at the top.
    from txbroker.cli.node_calls import ask
    from txbroker.cli.tree_rows import rows_below

    rows = ask(lambda channels: rows_below(channels, str(address)))
    shown = rows if verbose else [row for row in rows if row.zone is not None]
    if as_json:
        show_json([_as_dict(row, verbose) for row in shown])
    elif shown:
        _show(shown, verbose)
    else:
        click.echo(f"node {rows[0].node} serves clients only: no zones below it", err=True)
    sys.exit(1 if any(row.zone is not None and not row.alive for row in rows) else 0)


def _as_dict(row: ZoneRow, verbose: bool) -> dict[str, Any]:
    values: dict[str, Any] = {
        "zone": row.zone,
        "node": row.node,
        "grpc": row.grpc,
        "epoch": row.epoch,
        "alive": row.alive,
        "pending": row.pending,
        "clients": row.clients,
        "rate_in": row.rate_in,
        "rate_out": row.rate_out,
        "parent": row.parent,
        "held": row.held_size,
    }
    if verbose:
        values["counters"] = row.counters
        values["losses"] = row.losses
        values["held_by"] = [attrs.asdict(one) for one in row.held]
        values["tables"] = {
            table.name: {"entries": table.entries, "most": table.most or None}
            for table in row.tables
        }
        values["reclaimed"] = [attrs.asdict(branch) for branch in row.reclaimed]
    return values


def _show(rows: list[ZoneRow], verbose: bool) -> None:
    show_table(COLUMNS, [_cells(row) for row in rows])
    counted = [(r.node, name, str(n)) for r in rows for name, n in r.counters.items()]
    lost = [(r.node, client_id, str(n)) for r in rows for client_id, n in r.losses.items()]
    if verbose and counted:
        click.echo()
        show_table(("NODE", "COUNTER", "COUNT"), counted)
    if verbose and lost:
        click.echo()
        show_table(("NODE", "CLIENT", "DROPPED"), lost)
    held = [_held_cells(row.node, one) for row in rows for one in row.held]
    if verbose and held:
        click.echo()
        show_table(("NODE", "ZONE", "HELD BY", "CLIENT", "BYTES", "FOR", "SILENT"), held)
    tables = [
        (row.node, table.name, str(table.entries), str(table.most))
        for row in rows
        for table in row.tables
        if table.most and table.entries >= table.most * FULL
    ]
    if verbose and tables:
        click.echo()
        show_table(("NODE", "TABLE", "ENTRIES", "MOST"), tables)
    taken = [_branch_cells(branch) for row in rows for branch in row.reclaimed]
    if verbose and taken:
        click.echo()
        show_table(("RECLAIMED", "EPOCH", "FROM", "GRPC", "BRANCH"), taken)


def _branch_cells(branch: Branch) -> list[str]:
    state = {None: "node does not answer", True: "kept by the node", False: "none"}
    zone, epoch = zone_name(branch.zone), str(branch.epoch)
    return [zone, epoch, branch.node, branch.grpc, state[branch.is_kept]]


def _held_cells(node: str, held: HeldJournal) -> list[str]:
    age = str(timedelta(seconds=round(held.age)))
    silent = str(timedelta(seconds=round(held.silent)))
    return [node, zone_name(held.zone), held.edge, held.client_id, str(held.bytes), age, silent]


def _cells(row: ZoneRow) -> list[str]:
    name = "(clients only)" if row.zone is None else zone_name(row.zone)
    state = "alive" if row.alive else "not serving" if row.answers else "unreachable"
    epoch = "" if row.epoch is None else str(row.epoch)
    cells = [name, row.node, row.grpc, epoch, state]
    if not row.answers:
        return [*cells, str(row.pending), "", "", "", ""]
    rates = (f"{row.rate_in:.1f}", f"{row.rate_out:.1f}")
    return [*cells, str(row.pending), str(row.clients), *rates, str(row.held_size)]
