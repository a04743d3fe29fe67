"""`txbroker repair`: cuts damaged logs of a stopped node off behind their last good entry."""

from __future__ import annotations

from pathlib import Path

import click

from txbroker.cli.output import one_line
from txbroker.model.errors import StoreError


@click.command(
    epilog="""
    Example:

    \b
      $ txbroker repair var/kitchen
    """
)
@click.argument("data", metavar="DATA", type=click.Path(path_type=Path))
def repair(data: Path) -> None:
    """
    Cut damaged logs in a node's data off behind their last good entry.

    DATA is the folder that the topology file names; its node must not run. The command prints each
    cut, and keeps the cut bytes in files beside the log. The node loses all entries behind the
    damage, so a backup may be the better remedy.
    The status is 1 if a damaged file has no copy.
    """
    # The other commands do not need the store, and start faster without it.
    from txbroker.data.data_directory import is_of_node
    from txbroker.data.data_repair import IncompleteRepair
    from txbroker.data.data_repair import repair as repair_logs
    from txbroker.delegation.state.node_state import DataFolder

    if not data.is_dir():
        raise click.ClickException(f"{data}: no such folder")
    # "Nothing is damaged" of a mistyped folder would hide the damage of the real one.
    if not is_of_node(data):
        raise click.ClickException(f"{data}: no node's data; name the folder of the key `data`")
    try:
        folder = DataFolder(data)  # Its lock refuses the repair while the node runs.
        try:
            lines = repair_logs(data)
        finally:
            folder.close()
    except IncompleteRepair as error:
        _print(error.done)
        raise click.ClickException(one_line(str(error))) from error
    except StoreError as error:
        raise click.ClickException(" ".join(str(error).split())) from error
    _print(lines or [f"{data}: nothing is damaged"])


def _print(lines: list[str]) -> None:
    for line in lines:
        click.echo(one_line(line))
