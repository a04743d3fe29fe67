"""
docs/conformance.md, made from the list of statements and from the marks of the tests.

    python -m tests.conformance.table     writes the file
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from .statements import STATEMENTS, Statement

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DOCUMENT = ROOT / "docs" / "conformance.md"

HEAD = """\
# Conformance to MQTT 3.1.1

Every normative statement of the OASIS Standard of 29 October 2014 (its appendix B), in short and
in our words, with the tests that show it. `make test` runs them: against one node alone, and those
that take `brokers` also against one with `journal: qos12`, and against a tree of three nodes, the
publisher at one, the subscriber at another, the topics owned by the first, by the second and by the
third. `TXBROKER_CONFORMANCE=HOST:PORT` points the suite at any running MQTT 3.1.1 broker instead.

A test that is named for a statement fails when the line that obeys it is taken out. The column
*who* says whom the statement binds; *both* includes what binds the client so that the server has to
refuse a breach. The tables are written by `python -m tests.conformance.table`, and a test compares
them with the tests that there are.

[MQTT-3.8.3-4] is printed as [MQTT-3-8.3-4] in the standard.
"""

TABLES = {
    "What binds the server": ("server", "both"),
    "What binds the client only": ("client",),
    "MQTT over WebSocket": ("websocket",),
}


def marks(path: Path) -> Iterator[tuple[str, list[str]]]:
    """
    The test functions of a file, each with the identifiers that its `@statement` marks name.
    """
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            names = [
                ast.literal_eval(argument)
                for mark in node.decorator_list
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "statement"
                for argument in mark.args
            ]
            yield node.name, names


def tests() -> dict[str, list[str]]:
    """
    `path::name` of every test of this folder and the statements that it is marked with.
    """
    return {
        f"{path.relative_to(ROOT).as_posix()}::{name}": names
        for path in sorted(HERE.glob("test_*.py"))
        for name, names in marks(path)
    }


def _row(entry: Statement, shown: dict[str, list[str]]) -> str:
    names = [f"`{test}`" for test, ids in shown.items() if entry.id in ids]
    where = "<br>".join(names) or entry.remark or "seen at a client only"
    return f"| {entry.id} | {entry.text} | {entry.who} | {where} |"


def render() -> str:
    """
    The whole document.
    """
    shown = tests()
    parts = [HEAD]
    for title, sides in TABLES.items():
        rows = [_row(entry, shown) for entry in STATEMENTS.values() if entry.who in sides]
        parts.append(f"\n## {title}\n\n| id | statement | who | test |\n|---|---|---|---|\n")
        parts.append("\n".join(rows) + "\n")
    return "".join(parts)


if __name__ == "__main__":
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(render())
