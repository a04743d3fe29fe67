"""
The Python that docs/pipeline/ shows is run: each `python` fence of a page, in order, with the
session of the tests as `spark`. A `text` fence right behind one is what it prints; runs of blanks
and of dashes count as one.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.support.nodes import ROOT, NodeProcess, topology
from txbroker.cli import main

PAGES = [
    page
    for page in sorted((ROOT / "docs" / "pipeline").glob("*.md"))
    if "```python" in page.read_text()
]
MESSAGES = [("temperature", "20.5"), ("light", "on"), ("temperature", "21.5")]

_FENCE = re.compile(r"^```python\n(.*?)^```$(?:\s*^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


def squeezed(text: str) -> str:
    return re.sub(r"-+", "-", re.sub(r"[ \n]+", " ", text)).replace("| ", "|").strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_prints_what_the_page_says(
    spark: SparkSession,
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against a node that has three messages."""
    (tmp_path / "node").mkdir()
    monkeypatch.chdir(tmp_path)
    with NodeProcess(tmp_path / "node", topology("house", zone="")) as node:
        ports = {"7001": str(node.grpc[1])}
        for topic, payload in MESSAGES:
            address = f"{node.mqtt[0]}:{node.mqtt[1]}"
            arguments = ["pub", address, "-t", f"home/hall/{topic}", "-m", payload, "-q", "1"]
            assert 0 == CliRunner().invoke(main, arguments).exit_code
        names = {"spark": spark}
        for program, said in _FENCE.findall(page.read_text()):
            for given, free in ports.items():
                program = program.replace(given, free)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(program, page.name, "exec"), names)

            assert squeezed(said) == squeezed(printed.getvalue())
