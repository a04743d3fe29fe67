"""
The pipeline's demo as its users run it: six nodes, a replay, Spark that follows, a report.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launching import PIPELINE, TIMEOUT, Start, finish

pytest.importorskip("pyspark", reason="pip install 'txbroker[pipeline]'")


@pytest.mark.timeout(TIMEOUT + 30)
def test_all_that_was_published_is_in_the_results(start: Start, base: int, tmp_path: Path) -> None:
    """In the archive and in the rollup; the report is a page that needs nothing else."""
    out = tmp_path / "out"
    options = ("--seconds", 3, "--rate", 300, "--ports-base", base, "--out", out)

    status, output, errors = finish(start(*options, "--master", "local[2]", program=PIPELINE))

    assert 0 == status, output + errors
    found = re.search(r"published (\d+), archived (\d+), rolled up (\d+)", output)
    assert found is not None, output
    assert int(found[1]) > 300 and found[1] == found[2] == found[3]
    assert f"report: {out / 'report.html'}" in output
    page = (out / "report.html").read_text()
    assert "</html>" in page and "home/kitchen" in page
    assert re.search(r"(?:src|href)=.?https?:", page) is None
