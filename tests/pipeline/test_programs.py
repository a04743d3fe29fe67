"""
The programs of docs/pipeline/ (`python` fences): those of a page are run in this process, in order,
with the session of the tests as `spark`, against a node that has three messages. A `text` fence
right behind one is what it prints; blanks and dashes count as one.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.support.nodes import NodeProcess, topology
from tests.support.pages import ROOT
from txbroker.cli import main

PAGES = [
    page
    for page in (ROOT / "docs" / "pipeline.md", *sorted((ROOT / "docs" / "pipeline").glob("*.md")))
    if "```python" in page.read_text()
]
MESSAGES = [("temperature", "20.5"), ("light", "on"), ("temperature", "21.5")]

_FENCE = re.compile(r"^```python\n(.*?)^```$(?:\s*^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


def squeezed(text: str) -> str:
    return re.sub(r"-+", "-", re.sub(r" *\| *", "|", text)).strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_programs_print_what_the_page_says(
    spark: SparkSession,
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its ports are the node's."""
    shown = _FENCE.findall(page.read_text())
    assert shown
    (tmp_path / "node").mkdir()
    monkeypatch.chdir(tmp_path)
    with NodeProcess(tmp_path / "node", topology("house", zone="")) as node:
        address = f"{node.mqtt[0]}:{node.mqtt[1]}"
        for topic, payload in MESSAGES:
            arguments = ["pub", address, "-t", f"home/hall/{topic}", "-m", payload, "-q", "1"]
            assert 0 == CliRunner().invoke(main, arguments).exit_code
        names = {"spark": spark}
        for program, said in shown:
            printed = io.StringIO()
            here = program.replace("127.0.0.1:7001", node.grpc)
            # Java was started in another folder than the one that this process is in now.
            here = here.replace('"checkpointLocation", "', f'"checkpointLocation", "{tmp_path}/')
            with contextlib.redirect_stdout(printed):
                exec(compile(here, page.name, "exec"), names)

            assert squeezed(said) == squeezed(printed.getvalue())
