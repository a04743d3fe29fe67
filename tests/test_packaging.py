"""
The tree polices itself: layers, imports, what is tracked, what is installed.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "txbroker"

CORES = (
    "counters",
    "errors",
    "ledger",
    "message",
    "packed",
    "patience",
    "place",
    "pressure",
    "rotation",
    "runs",
    "shares",
    "slices",
    "texts",
    "timers",
    "topics",
    "turn",
    "wire_checks",
    "authority",
    "core",
    "delegation",
    "directory",
    "edge",
    "matching",
    "mqtt",
    "link.answers",
    "link.batches",
    "link.consumer",
    "link.convert",
    "link.deliveries",
    "link.edge_end",
    "link.frames",
    "link.intake",
    "link.live_stream",
    "link.owner_end",
    "link.owner_word",
    "pipeline.positions",
    "pipeline.ranges",
    "pipeline.cuts",
    "pipeline.expected",
    "pipeline.grouping",
    "pipeline.manifest",
    "pipeline.markup",
    "pipeline.page",
    "pipeline.treemap",
)
SHELLS_IN_CORES = (
    "mqtt.deaf",
    "mqtt.hold",
    "mqtt.lifetime",
    "mqtt.protocol",
    "mqtt.requests",
    "mqtt.service",
)
"""Modules of a core's package that are shells."""
MAY_USE_PROTOBUF = (
    "link",
    "control",
    "edge.keeper",
    "edge.stored",
    "ledger",
    "store",
    "wire_checks",
)
CLOCKS = {"asyncio", "datetime", "random", "secrets", "select", "socket", "threading", "time"}


def modules() -> list[str]:
    """All our modules by name, generated ones left out."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[1:2] != ("v1",) and parts[-1] != "__main__":
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def is_in(module: str, names: tuple[str, ...]) -> bool:
    """Whether the module is one of these (named below txbroker) or inside of one."""
    return any(
        module == f"txbroker.{name}" or module.startswith(f"txbroker.{name}.") for name in names
    )


def is_core(module: str) -> bool:
    return is_in(module, CORES) and not is_in(module, SHELLS_IN_CORES)


@cache
def tree(module: str) -> ast.Module:
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(), str(file))


def type_checking_only(module: str) -> set[ast.AST]:
    """What stands below `if TYPE_CHECKING:`; it never runs."""
    return {
        inner
        for node in ast.walk(tree(module))
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }


def imports(module: str) -> Iterator[str]:
    """Every module that this one imports, wherever in its text."""
    unused = type_checking_only(module)
    known = set(modules())
    for node in ast.walk(tree(module)):
        if node in unused:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else str(node.module)


@pytest.mark.parametrize("module", [name for name in modules() if is_core(name)])
def test_a_core_is_pure(module: str) -> None:
    """It imports the standard library, attrs and other cores; no clock, socket or randomness."""
    for name in imports(module):
        top = name.partition(".")[0]
        if top == "txbroker":
            protobuf = name.startswith("txbroker.v1")
            fine = is_in(module, MAY_USE_PROTOBUF) if protobuf else is_core(name)
            assert fine or name == "txbroker", f"{module} imports {name}, which is no core"
        elif top == "google":
            assert is_in(module, MAY_USE_PROTOBUF), f"{module} imports {name}"
        else:
            pure = top in {"attr", "attrs"} or top in sys.stdlib_module_names - CLOCKS
            assert pure, f"{module} imports {name}"


@pytest.mark.parametrize("module", [m for m in modules() if not is_in(m, ("cli", "tap", "node"))])
def test_arrows_point_downwards(module: str) -> None:
    """Nothing below the composition imports it."""
    for name in imports(module):
        assert not is_in(name, ("cli", "tap", "node")), f"{module} imports {name}"


@pytest.mark.timeout(300)
def test_every_module_imports_alone() -> None:
    """Whatever is imported first, no circle of imports shows, and no reactor is installed."""
    # What others wrote is loaded once, before the modules' own processes branch off.
    program = """
import importlib, os, sys
import attrs, cattrs, click, grpc.aio, google.protobuf.message, rich.console, structlog
import twisted.internet, yaml
try:
    import pandas, pyarrow, pyspark.sql
except ImportError:
    pass
failed = []
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(name)
            reactor = "twisted.internet.reactor" in sys.modules
        except BaseException as error:
            print(f"{name}: {error!r}", flush=True)
            os._exit(1)
        if reactor:
            print(f"{name} installs a reactor", flush=True)
        os._exit(int(reactor))
    if os.waitpid(child, 0)[1]:
        failed.append(name)
sys.exit(bool(failed))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *modules()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,  # fifty seconds of work, with others beside it
    )

    assert 0 == done.returncode, done.stdout + done.stderr


def test_every_folder_of_modules_is_a_package() -> None:
    """Else an installed copy may miss it, or find another's."""
    for folder in {path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE / "v1"}:
        assert (folder / "__init__.py").exists(), folder


def test_twisted_keeps_its_own_plugins() -> None:
    """An `__init__.py` of ours would hide Twisted."""
    assert not (ROOT / "twisted" / "__init__.py").exists()
    assert not (ROOT / "twisted" / "plugins" / "__init__.py").exists()


def test_twistd_knows_the_plugin(tmp_path: Path) -> None:
    """Wherever it is started."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("twistd")), "--help"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert re.search(r"^ +txbroker +A node", done.stdout, re.MULTILINE)


def environment() -> dict[str, str]:
    """For a child that is to see the tree under test also where it is not installed."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_generated_modules_are_newer_than_their_sources() -> None:
    """`make proto` after a change in proto/."""
    sources = sorted((ROOT / "proto" / "txbroker" / "v1").glob("*.proto"))
    assert sources
    for source in sources:
        generated = PACKAGE / "v1" / f"{source.stem}_pb2.py"
        assert generated.stat().st_mtime >= source.stat().st_mtime, f"{source.name}: make proto"


def tracked() -> list[Path]:
    """Files that are in the repository or would be added to it."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone, so nothing is tracked")
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).is_file()]


def test_nothing_of_one_machine_is_tracked() -> None:
    """No absolute paths of a home or a workplace, nothing generated, nothing large."""
    machine = re.compile(rb"/(?:home|root|Users|work)/[a-z_.]+/|" + re.escape(bytes(ROOT) + b"/"))
    for path in tracked():
        assert path.stat().st_size < 1_000_000, path
        assert "v1" not in path.relative_to(ROOT).parts[:2] or path.suffix == ".proto", path
        found = machine.search(path.read_bytes())
        assert found is None, f"{path.relative_to(ROOT)}: {found and found[0]!r}"


def test_the_compiled_core_is_pure() -> None:
    """It imports what its reference might, and has no tables in the tree that nobody wrote."""
    text = (PACKAGE / "core" / "compiled.pyx").read_text()
    found = re.findall(r"^(?:from|import) (\S+)(?: import .*)?$", text, re.MULTILINE)

    assert {"os", "txbroker.mqtt.wire.message"} <= set(found)
    for name in found:
        assert name == "os" or is_core(name), f"the compiled core imports {name}"


def test_sources_of_the_compiled_core_are_distributed() -> None:
    """With an sdist goes all that setup.py builds from."""
    manifest = (ROOT / "MANIFEST.in").read_text()
    suffixes = {path.suffix for path in tracked() if (PACKAGE / "core") in path.parents} - {".py"}

    assert {".pyx", ".pxi", ".hpp"} == suffixes
    for suffix in suffixes:
        assert f"*{suffix}" in manifest
    assert "graft proto" in manifest


def test_make_targets_are_there() -> None:
    """Those that people and CI are told of."""
    text = (ROOT / "Makefile").read_text()
    for target in (
        "install",
        "home",
        "test",
        "test-pure",
        "lint",
        "types",
        "proto",
        "wheels",
        "clean",
    ):
        assert re.search(rf"^{target}:", text, re.MULTILINE), target


def test_ci_calls_make() -> None:
    """The same commands as people, and it can be run."""
    script = ROOT / ".ci" / "run"

    assert os.access(script, os.X_OK)
    for target in ("test", "lint", "types"):
        assert f"make {target}" in script.read_text()
