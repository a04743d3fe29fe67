"""Prints the commands' results: coloured on a terminal, plain in a pipe."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence

import click

from txbroker.model.display_text import spelled

STYLES = {
    "alive": "green",
    "authoritative": "green",
    "not serving": "yellow",
    "not authoritative": "yellow",
    "unreachable": "bold red",
}
"""Terminal styles of cells with these texts."""

_NUMBER = re.compile("[0-9.]*")


def one_line(text: str) -> str:
    """Return the text with line ends and other hidden characters escaped, but tabs kept."""
    return spelled(text, keep="\t")


def payload_text(payload: bytes | bytearray) -> str:
    """Return a payload as one line of text; in hexadecimal digits if the payload is not UTF-8."""
    try:
        return one_line(payload.decode())
    except UnicodeDecodeError:
        return payload.hex()


def zone_name(apex: str) -> str:
    """Return an apex for display: "(root)" for the empty one."""
    return one_line(apex) if apex else "(root)"


def show_json(value: object) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2))


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print aligned lines below the column names; columns of numbers align to the right."""
    lines = [[one_line(cell) for cell in row] for row in rows]
    right = [all(_NUMBER.fullmatch(line[n]) for line in lines) for n in range(len(columns))]
    if sys.stdout.isatty():
        _show_rich(columns, lines, right)
        return
    lines.insert(0, list(columns))
    widths = [max(len(line[n]) for line in lines) for n in range(len(columns))]
    for line in lines:
        cells = (
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, right, strict=True)
        )
        click.echo("  ".join(cells).rstrip())


def _show_rich(columns: Sequence[str], lines: list[list[str]], right: list[bool]) -> None:
    # A pipe does not need rich, whose import at the top would slow the start.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, is_right in zip(columns, right, strict=True):
        table.add_column(name, justify="right" if is_right else "left", overflow="fold")
    for line in lines:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in line))
    Console().print(table)
