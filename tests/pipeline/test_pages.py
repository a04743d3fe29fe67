"""The pipeline's pages are true: what they show is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import ROOT, check_commands, fences

PAGES = [ROOT / "docs" / "pipeline.md", *sorted((ROOT / "docs" / "pipeline").glob("*.md"))]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.exists() and fences(p, "console")], ids=lambda p: p.name
)
def test_commands_print_what_the_page_says(page: Path, tmp_path: Path) -> None:
    """Every command of every console fence, against real nodes and real Spark."""
    check_commands(page, tmp_path)
