"""What it takes to import the pipeline, and what is said where the extra is not installed."""

from __future__ import annotations

import subprocess
import sys

from tests.support.nodes import ROOT

PROGRAM = """
import sys
import txbroker.pipeline
heavy = {"pyspark", "pyarrow", "pandas", "grpc", "twisted"} & set(sys.modules)
print(sorted(heavy))
sys.modules["pyspark"] = None
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "pyspark" else find(name)
try:
    txbroker.pipeline.register(None)
except txbroker.model.errors.PipelineError as error:
    print(error)
"""


def test_it_is_cheap_and_says_what_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=ROOT, timeout=60
    )

    assert not done.returncode, done.stderr
    loaded, line = done.stdout.splitlines()
    assert "[]" == loaded
    assert "the pipeline needs pyspark; run: pip install 'txbroker[pipeline]'" == line
