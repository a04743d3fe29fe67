"""
docs/conformance.md, made from the lists of statements and from the marks of the tests.

    python -m tests.conformance.table     writes the file
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from .level5_statements import LEVEL5_STATEMENTS
from .statements import STATEMENTS, Statement

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WIRE = ROOT / "tests" / "mqtt" / "wire"
DOCUMENT = ROOT / "docs" / "conformance.md"

NOT_COVERED = "not covered yet"

HEAD = """\
# Conformance to MQTT 3.1.1

This page has every normative statement of the OASIS Standard of 29 October 2014 (its appendix B).
The statements are in short and in our words, with the tests that show them. `make test` runs all
tests against one node alone. The tests that take `brokers` also run against a node with
`journal: qos12`, and against a tree of three nodes. In the tree, publisher and subscriber are at
two nodes. The first, the second and the third node owns the topics in turn.
`TXBROKER_CONFORMANCE=HOST:PORT` points the suite at any running MQTT 3.1.1 broker instead.

A test that is named for a statement fails when the line that obeys the statement is taken out. The
column *who* says whom the statement binds. *both* includes statements that bind the client so that
the server has to refuse a breach. `python -m tests.conformance.table` writes the tables. A test
compares them with the tests of the suite.

[MQTT-3.8.3-4] is printed as [MQTT-3-8.3-4] in the standard.
"""

PUBLIC_SUITES = (HERE / "public_suites.md").read_text()

LEVEL5_TITLE = "# Conformance to MQTT 5.0"

LEVEL5_HEAD = f"""
{LEVEL5_TITLE}

Below is every normative statement of the OASIS Standard of 7 March 2019 (its appendix B), as above.
Tests of `tests/conformance/level5` run on the same nodes and trees as the tests of 3.1.1.
*{NOT_COVERED}* stands where no test shows a statement that binds the server. [mqtt5.md](mqtt5.md)
says what is missing.
"""

TABLES = {
    "What binds the server": ("server", "both"),
    "What binds the client only": ("client",),
    "MQTT over WebSocket": ("websocket",),
}


def marks(path: Path, mark: str) -> Iterator[tuple[str, list[str]]]:
    """
    The test functions of a file, each with the identifiers that its marks of a name list.
    """
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            names = [
                ast.literal_eval(argument)
                for call in node.decorator_list
                if isinstance(call, ast.Call) and ast.unparse(call.func) == mark
                for argument in call.args
            ]
            yield node.name, names


def tests() -> dict[str, list[str]]:
    """
    `path::name` of every test of this folder and the statements of 3.1.1 that it is marked with.
    """
    return _marked(HERE, "statement")


def level5_tests() -> dict[str, list[str]]:
    """
    The same for the statements of 5.0, and also for the tests of the packets' reader and writer.
    """
    return {
        name: numbers
        for folder in (WIRE, HERE, HERE / "level5")
        for name, numbers in _marked(folder, "level5_statement").items()
    }


def _marked(folder: Path, mark: str) -> dict[str, list[str]]:
    return {
        f"{path.relative_to(ROOT).as_posix()}::{name}": names
        for path in sorted(folder.glob("test_*.py"))
        for name, names in marks(path, mark)
    }


def _row(entry: Statement, shown: dict[str, list[str]], otherwise: str) -> str:
    names = [f"`{test}`" for test, ids in shown.items() if entry.id in ids]
    where = "<br>".join(names) or entry.remark or otherwise
    return f"| {entry.id} | {entry.text} | {entry.who} | {where} |"


def _tables(
    statements: dict[str, Statement], shown: dict[str, list[str]], unseen: str, mark: str = ""
) -> Iterator[str]:
    for title, sides in TABLES.items():
        otherwise = unseen if "both" in sides else "seen at a client only"
        rows = [
            _row(entry, shown, otherwise) for entry in statements.values() if entry.who in sides
        ]
        yield f"\n## {title}{mark}\n\n| id | statement | who | test |\n|---|---|---|---|\n"
        yield "\n".join(rows) + "\n"


def render() -> str:
    """
    The whole document.
    """
    return "".join(
        (
            HEAD,
            *_tables(STATEMENTS, tests(), "seen at a client only"),
            LEVEL5_HEAD,
            *_tables(LEVEL5_STATEMENTS, level5_tests(), NOT_COVERED, " (5.0)"),
            PUBLIC_SUITES,
        )
    )


if __name__ == "__main__":
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(render())
