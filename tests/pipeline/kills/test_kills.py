"""Kills around a streaming archive, one of each kind; `python -m tests.pipeline.kills` has more."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .play import KINDS, Play


@pytest.mark.timeout(900)
def test_the_archive_is_what_the_journals_are(tmp_path: Path, spark: SparkSession) -> None:
    """Row by row, in all columns, with all that was acknowledged."""
    play = Play(tmp_path, 1, master="local[2]", say=lambda line: None)

    play.run(len(KINDS))

    assert "all there, once" in play.reckon(spark)
