"""
No part of the package needs what needs it: what a file is made of can be read before the file.

An import counts wherever it stands: below `if TYPE_CHECKING`, and inside a function, too.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import PurePosixPath

import pytest

from tests.architecture import ROOT, imported, imports, modules, path_of

Arrows = Mapping[str, set[str]]
"""What each file, or folder, imports."""

ONE_FOLDER = {"txbroker/core/reference": "txbroker/core"}
"""The core in Python is made of what the core has for both of its kinds."""


def arrows() -> dict[str, set[str]]:
    """From each of our files to those that it imports."""
    known = {module: path_of(module).relative_to(ROOT).as_posix() for module in modules()}
    return {
        file: {known[name] for name in imports(module) if name in known}
        for module, file in known.items()
    }


def folder(file: str) -> str:
    """Where a file is; one beside all folders stands for itself, as it is no part of any."""
    path = PurePosixPath(file)
    parent = path.parent.as_posix()
    return file if parent == "txbroker" else ONE_FOLDER.get(parent, parent)


def between_folders(files: Arrows) -> dict[str, set[str]]:
    """The arrows that leave a folder."""
    found: dict[str, set[str]] = {folder(file): set() for file in files}
    for file, others in files.items():
        found[folder(file)] |= {folder(other) for other in others} - {folder(file)}
    return found


def knots(graph: Arrows) -> list[set[str]]:
    """What can be reached from each other, where that is more than one (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(one: str) -> None:
        index[one] = low[one] = len(index)
        stack.append(one)
        for other in sorted(graph[one]):
            if other not in index:
                visit(other)
                low[one] = min(low[one], low[other])
            elif other in stack:
                low[one] = min(low[one], index[other])
        if low[one] == index[one]:
            at = stack.index(one)
            knot = set(stack[at:])
            del stack[at:]
            if len(knot) > 1 or one in graph[one]:
                found.append(knot)

    for one in sorted(graph):
        if one not in index:
            visit(one)
    return found


def shortest(graph: Arrows, knot: set[str]) -> list[str]:
    """One of the shortest ways in a circle within a knot."""
    ways = [[one] for one in sorted(knot)]
    while True:
        ways = [[*way, other] for way in ways for other in sorted(graph[way[-1]] & knot)]
        for way in ways:
            if way[0] == way[-1]:
                return way
        # A longer way that meets itself is another circle's.
        ways = [way for way in ways if way[-1] not in way[:-1]]


def circles(graph: Arrows) -> list[str]:
    """A circle of each knot, as a path."""
    return [" -> ".join(shortest(graph, knot)) for knot in knots(graph)]


def test_no_two_files_import_each_other() -> None:
    """Neither at once nor by way of others; nor do two folders."""
    files = arrows()

    assert [] == circles(files)
    assert [] == circles(between_folders(files))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import txbroker.b", ["b.py"]),
        ("from txbroker.b import thing", ["b.py"]),
        ("from txbroker import b, c", ["b.py", "c.py"]),
        ("if TYPE_CHECKING:\n    from txbroker.b import Thing", ["b.py"]),
        ("def late():\n    from txbroker.b import thing", ["b.py"]),
        ("import sys\nfrom txbroker.v1 import link_pb2", []),
    ],
)
def test_an_import_counts_wherever_it_stands(source: str, expected: list[str]) -> None:
    """Also where it never runs, or runs late."""
    known = {"txbroker.b": "b.py", "txbroker.c": "c.py"}
    found = imported(ast.parse(source), known)

    assert expected == [known[name] for name in found if name in known]


def test_a_circle_of_any_length_is_a_path() -> None:
    """The shortest one of each knot."""
    graph = {
        "a": {"b"},
        "b": {"c", "d"},
        "c": {"a"},
        "d": {"e"},
        "e": {"f"},
        "f": {"e", "g"},
        "g": set[str](),
    }

    assert ["e -> f -> e", "a -> b -> c -> a"] == circles(graph)


def test_folders_may_import_each_other_no_more_than_files() -> None:
    """The core in Python is the core's; a file in no folder stands for itself."""
    files = {
        "txbroker/a/x.py": {"txbroker/b/x.py"},
        "txbroker/b/x.py": set[str](),
        "txbroker/b/y.py": {"txbroker/a/x.py"},
        "txbroker/core/x.py": {"txbroker/core/reference/x.py", "txbroker/__init__.py"},
        "txbroker/core/reference/x.py": set[str](),
        "txbroker/core/reference/y.py": {"txbroker/core/x.py"},
        "txbroker/tap.py": {"txbroker/core/x.py"},
        "txbroker/__init__.py": set[str](),
    }

    assert [] == circles(files)
    assert ["txbroker/a -> txbroker/b -> txbroker/a"] == circles(between_folders(files))
