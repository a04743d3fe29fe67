"""`txbroker check`: validate topology files without starting anything."""

from __future__ import annotations

import sys

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

    Prints one line a mistake and exits with status 1 when there is any. A parent that is in none of
    the files is taken to exist.
    """
    configs, errors = inspect_files(files)
    for error in errors:
        click.echo(error, err=True)
    if errors:
        sys.exit(1)
    zones = sum(config.zone is not None for config in configs)
    click.echo(f"ok: {_count(len(configs), 'node')}, {_count(zones, 'zone')}")


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
