"""
The folders of txbroker, which of them may import which, and the page that shows it.

    python -m tests.architecture

writes `docs/architecture.md`. The table is the truth: `test_architecture` reads every import.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "txbroker"
PAGE = ROOT / "docs" / "architecture.md"

ARROWS = {
    "model": "",
    "mqtt/wire": "model",
    "core": "model mqtt/wire",
    "runtime": "model",
    "delegation": "model mqtt/wire core runtime",
    "journal": "model mqtt/wire core delegation",
    "config": "model",
    "storage": "model runtime config",
    "journal/store": "model mqtt/wire core delegation journal runtime storage",
    "mqtt/session": "model mqtt/wire core",
    "authority": "model mqtt/wire core delegation journal runtime",
    "edge/routing": "model mqtt/wire core delegation runtime mqtt/session",
    "directory": "model mqtt/wire delegation runtime mqtt/session",
    "edge/sessions": (
        "model mqtt/wire core delegation journal runtime mqtt/session edge/routing directory"
    ),
    "edge/groups": "model mqtt/wire core runtime mqtt/session edge/routing edge/sessions",
    "edge/local": (
        "model mqtt/wire core delegation journal runtime authority mqtt/session edge/routing"
        " edge/sessions edge/groups"
    ),
    "rpc": "model mqtt/wire delegation runtime edge/routing",
    "delegation/state": "model delegation runtime storage journal/store rpc",
    "edge/store": (
        "model mqtt/wire delegation runtime storage journal/store mqtt/session edge/routing rpc"
    ),
    "data": "model delegation journal runtime storage journal/store delegation/state edge/store",
    "authority/store": (
        "model mqtt/wire delegation journal runtime authority storage journal/store data"
    ),
    "directory/rpc": "model mqtt/wire runtime config rpc directory edge/sessions",
    "runtime/sockets": "model core runtime config",
    "mqtt/transport": (
        "model mqtt/wire core runtime storage mqtt/session edge/sessions runtime/sockets"
    ),
    "delegation/rpc": (
        "model mqtt/wire core delegation runtime authority config storage journal/store rpc"
        " delegation/state data directory edge/routing edge/store edge/sessions directory/rpc"
        " edge/local mqtt/transport"
    ),
    "journal/history": (
        "model mqtt/wire core delegation journal runtime authority storage journal/store"
        " mqtt/session edge/routing rpc delegation/state data edge/sessions"
    ),
    "link": (
        "model mqtt/wire core delegation journal runtime authority config storage mqtt/session"
        " edge/routing rpc delegation/state edge/sessions edge/groups"
    ),
    "node": (
        "model core delegation runtime authority config storage journal/store mqtt/session"
        " edge/routing rpc delegation/state edge/store data authority/store directory edge/sessions"
        " edge/groups directory/rpc edge/local runtime/sockets mqtt/transport delegation/rpc"
        " journal/history link"
    ),
    "tap": "model runtime config node",
    "pipeline/source": "model core delegation storage rpc",
    "pipeline/archives": "model storage pipeline/source",
    "pipeline/spark": "model storage pipeline/source pipeline/archives",
    "pipeline/ledgers": (
        "model delegation journal rpc pipeline/source pipeline/archives pipeline/spark"
    ),
    "pipeline/planner": "model config pipeline/source",
    "pipeline/report_page": "model pipeline/source pipeline/archives",
    "pipeline/jobs": (
        "model core config pipeline/source pipeline/archives pipeline/spark pipeline/ledgers"
        " pipeline/planner pipeline/report_page"
    ),
    "pipeline": "model pipeline/source pipeline/archives pipeline/report_page pipeline/jobs",
    "cli": (
        "model delegation runtime config rpc delegation/state data pipeline/source"
        " pipeline/archives pipeline/spark pipeline/ledgers pipeline/planner pipeline/jobs pipeline"
    ),
    "edge": "",
    "mqtt": "",
}
"""Each folder, from the bottom to the top, and all the folders that its files may import."""


def arrows(folder: str) -> tuple[str, ...]:
    """The folders that files of this one may import."""
    return tuple(ARROWS[folder].split())


@cache
def modules() -> tuple[str, ...]:
    """All our modules by name, generated ones left out."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[1:2] != ("v1",) and parts[-1] != "__main__":
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return tuple(found)


def path_of(module: str) -> Path:
    """The file of a module."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def folder_of(module: str) -> str:
    """The folder of a module, as `ARROWS` names it; `core/reference` is a part of `core`."""
    path = path_of(module).relative_to(PACKAGE)
    if path.parts[0] == "core":
        return "core"
    return "/".join(path.parts[:-1]) or path.stem


@cache
def tree(module: str) -> ast.Module:
    """The module's text, parsed."""
    file = path_of(module)
    return ast.parse(file.read_text(), str(file))


def imports(module: str) -> Iterator[str]:
    """Every module that this one imports, wherever in its text."""
    return imported(tree(module), modules())


def imported(text: ast.Module, known: Container[str]) -> Iterator[str]:
    """
    Every module that a text imports, below `if TYPE_CHECKING` and inside functions, too.

    A name imported from a package is a module if it is `known`, else a part of the package.
    """
    for node in ast.walk(text):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"imports are absolute: {ast.unparse(node)}"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else str(node.module)


# -- the page


def page() -> str:
    """The whole of `docs/architecture.md`."""
    return f"""# Architecture

Written by `python -m tests.architecture` from the table in
[tests/architecture.py](../tests/architecture.py); `tests/test_architecture.py` reads every import.
[design.md](design.md) tells how nodes work together.

## The picture

An arrow is an import. What follows from other arrows is left out.

```mermaid
{picture()}
```

## The folders

From the bottom to the top.

| folder | what | imports |
|---|---|---|
{rows()}
"""


def picture() -> str:
    """The folders as a graph, without arrows that longer ways imply."""
    lines = ["flowchart BT"]
    for folder in ARROWS:
        below = arrows(folder)
        implied = {far for near in below for far in reachable(near)}
        lines += [f"    {name(folder)} --> {name(near)}" for near in below if near not in implied]
        lines += [f'    {name(folder)}["{folder}/"]'] if below or folder == "model" else []
    return "\n".join(lines)


@cache
def reachable(folder: str) -> frozenset[str]:
    """All folders below this one."""
    found = set(arrows(folder))
    for near in arrows(folder):
        found |= reachable(near)
    return frozenset(found)


def name(folder: str) -> str:
    """An identifier in the picture."""
    return folder.replace("/", "_")


def rows() -> str:
    """The table: what each folder is for, in the words of its `__init__.py`."""
    lines = []
    for folder in ARROWS:
        file = PACKAGE / folder / "__init__.py"
        text = ast.get_docstring(
            ast.parse((file if file.exists() else file_of(folder)).read_text())
        )
        assert text is not None, f"{folder} has no docstring"
        first = " ".join(text.split("\n\n")[0].split())
        below = ", ".join(f"`{near}`" for near in arrows(folder))
        lines.append(f"| `{folder}` | {first} | {below} |")
    return "\n".join(lines)


def file_of(folder: str) -> Path:
    """The file of a module that stands at the top."""
    return (PACKAGE / folder).with_suffix(".py")


if __name__ == "__main__":
    PAGE.write_text(page())
