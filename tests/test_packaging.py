"""
The tree polices itself: what is imported, tracked, installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections import defaultdict
from pathlib import Path

import pytest

from tests.architecture import modules, path_of

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "txbroker"


def test_every_folder_imports_alone() -> None:
    """
    Whatever is imported first, nothing fails, and no reactor is installed.

    No file imports itself by way of others (`test_architecture`), so a folder at a time will do.
    """
    # What others wrote is loaded once, before the folders' own processes branch off.
    program = """
import importlib, os, sys
import attrs, cattrs, click, grpc.aio, google.protobuf.message, rich.console, structlog
import twisted.internet, yaml
try:
    import pandas, pyarrow, pyspark.sql
except ImportError:
    pass
failed = []
for folder in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        for name in folder.split():
            try:
                importlib.import_module(name)
            except BaseException as error:
                print(f"{name}: {error!r}", flush=True)
                os._exit(1)
            if "twisted.internet.reactor" in sys.modules:
                print(f"{name} installs a reactor", flush=True)
                os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(folder)
sys.exit(bool(failed))
"""
    folders = defaultdict(list)
    for module in modules():
        folders[path_of(module).parent].append(module)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *map(" ".join, folders.values())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
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


def test_an_sdist_has_what_the_repository_has(tmp_path: Path) -> None:
    """Whoever unpacks it can build, run the example and the tests."""
    files = {str(path.relative_to(ROOT)) for path in tracked()}
    for name in files:
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / "tree" / name)
    # Made where the package runs, and not to be handed on.
    (tmp_path / "tree" / "txbroker" / "core" / "compiled.cpython-311.so").touch()
    (tmp_path / "tree" / "tests" / "__pycache__").mkdir()
    (tmp_path / "tree" / "tests" / "__pycache__" / "conftest.pyc").touch()
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "sdist", "-d", str(tmp_path)],
        cwd=tmp_path / "tree",
        check=True,
        capture_output=True,
        timeout=110,
    )

    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        names = {member.name.partition("/")[2] for member in packed if member.isfile()}
    made = {name for name in names if name == "PKG-INFO" or ".egg-info/" in name}
    assert files == names - made


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
        "sdist",
        "release",
        "lock",
        "clean",
    ):
        assert re.search(rf"^{target}:", text, re.MULTILINE), target


def test_ci_calls_make() -> None:
    """The same commands as people, and it can be run."""
    script = ROOT / ".ci" / "run"

    assert os.access(script, os.X_OK)
    for target in ("test", "lint", "types"):
        assert f"make {target}" in script.read_text()
