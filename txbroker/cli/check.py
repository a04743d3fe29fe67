"""`txbroker check`: validate topology files without starting anything."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click

from txbroker.config import inspect_files


@click.command(
    epilog="""
    Example:

    \b
      $ txbroker check house.yaml kitchen.yaml
      ok: 2 nodes, 2 zones
    """
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path())
def check(files: tuple[str, ...]) -> None:
    """
    Validate topology files, together.

    Prints one line a mistake and exits with status 1 when there is any, and one where other users
    of the machine can read the data that a node has. A parent that is in none of
    the files is taken to exist.
    """
    configs, errors = inspect_files(files)
    for error in errors:
        click.echo(error, err=True)
    if errors:
        sys.exit(1)
    for folder in dict.fromkeys(config.data for config in configs):
        readable = _open_to_others(folder)
        if readable:
            click.echo(
                f"warning: {folder}: other users of this machine have rights to"
                f" {_count(readable, 'file')}; take them away with:"
                f" chmod -R go= {shlex.quote(str(folder))}",
                err=True,
            )
    zones = sum(config.zone is not None for config in configs)
    click.echo(f"ok: {_count(len(configs), 'node')}, {_count(zones, 'zone')}")


def _open_to_others(folder: Path) -> int:
    """Files and folders in and below `folder` that others than their user may use."""
    found = 0
    for root, _, names in os.walk(folder):
        for name in (".", *names):
            try:
                mode = os.lstat(os.path.join(root, name)).st_mode
            except OSError:
                continue  # gone meanwhile
            found += bool(mode & 0o077)
    return found


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
