"""
What the pages about traffic, plan and report show of commands is what happens: each `text` fence
that begins with `$`, in order, in a folder with the archives that the pages speak of. Their Python
is run with that of the other pages.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.pipeline.workload import Row, home_rows, write, zipf_rows
from tests.support.nodes import ROOT
from txbroker.cli import main, progress
from txbroker.pipeline.archives.archives import write_batch

PAGES = [ROOT / "docs" / "pipeline" / f"{name}.md" for name in ("traffic", "plan", "report")]
_COMMANDS = re.compile(r"^```text\n\$ (.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"^```yaml\n# (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def archives(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the archives of the pages' examples."""
    folder = tmp_path_factory.mktemp("pages")
    examples: dict[str, list[Row]] = {"archive": home_rows(), "skewed": zipf_rows(30_000)}
    for name, rows in examples.items():
        parquet = write(folder / f"{name}.parquet", rows)
        write_batch(spark.read.parquet(parquet), folder / name, "example", 0)
    return folder


@pytest.fixture
def place(archives: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where commands run; what they set up for a process of their own is taken back."""
    monkeypatch.chdir(archives)
    monkeypatch.setattr(progress, "configure", lambda _: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield archives
    for number, handler in before.items():
        signal.signal(number, handler)


def printed(line: str) -> str:
    """What a command of ours prints in this process, another one in its own."""
    program, *arguments = shlex.split(line)
    if program == "txbroker":
        return CliRunner().invoke(main, arguments).output
    return subprocess.run([program, *arguments], capture_output=True, text=True).stdout


def squeezed(text: str) -> list[list[str]]:
    """Words by line."""
    return [line.split() for line in text.splitlines() if line]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_print_what_the_page_says(page: Path, place: Path) -> None:
    """In order, with the page's files."""
    text = page.read_text()
    for name, document in _FILE.findall(text):
        (place / name).write_text(document)
    shown = [command for fence in _COMMANDS.findall(text) for command in fence.split("\n$ ")]

    assert shown
    for command in shown:
        line, _, said = command.partition("\n")
        assert squeezed(said) == squeezed(printed(line)), line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_are_named_exist(page: Path) -> None:
    """Modules and tests."""
    for name in re.findall(r"`((?:tests|txbroker)/[\w/]+\.py)`", page.read_text()):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize(
    ("line", "said", "status"),
    [
        ("traffic", "--archive or --root is missing", 2),
        ("traffic --archive nowhere", "nowhere: nothing was written there yet", 1),
        ("traffic --archive archive --depth x", "'x': write a number from 0 to 200", 2),
        ("traffic --archive archive --filter a/#/b", "The wildcard # fills the last level", 2),
        ("traffic --archive archive --out archive", "archive: is there already", 1),
        ("traffic --archive archive --topology no.yaml", "no.yaml: cannot be read", 1),
        ("plan --archive archive --hosts 2", "--topology or --root is missing", 2),
        ("plan --archive archive --hosts 0", "write a number from 1 to 1000", 2),
        ("plan --archive archive --hosts a,a", "an address twice", 2),
        ("plan --archive archive --hosts a:1", "name the host alone", 2),
        ("plan --archive archive --topology x", "--hosts is missing", 2),
        ("plan --archive archive --hosts 1 --ports 1,2", "write three ports", 2),
        ("report --archive archive --from 2030-01-01T00:00:00Z", "no messages to report on", 1),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else None,
)
def test_mistakes_are_one_line(place: Path, line: str, said: str, status: int) -> None:
    """What was wrong, and what to write instead; status as of the contract."""
    done = CliRunner().invoke(main, ["pipeline", *line.split()])

    assert (status, 1) == (done.exit_code, done.stderr.count("\n")), done.output
    assert said in done.stderr
