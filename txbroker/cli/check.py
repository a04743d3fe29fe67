"""`txbroker check`: validates topology files without starting a node."""

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
    Validate topology files together.

    Prints one line for each mistake, and exits with status 1 if there is any. Prints a warning for
    each data folder that other users of the machine can read. A parent that no file contains is
    assumed to exist.
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
    """Count the files and folders in and below `folder` that other users have rights to."""
    found = 0
    for root, _, names in os.walk(folder):
        for name in (".", *names):
            try:
                mode = os.lstat(os.path.join(root, name)).st_mode
            except OSError:
                continue  # The file was deleted during the walk.
            found += bool(mode & 0o077)
    return found


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
