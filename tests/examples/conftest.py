"""
The examples are scripts, not an installed package: their folder goes on the path here. A demo is
started as a process of its own, on ports that are free.
"""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import ROOT, RUN, Start, is_free

sys.path.insert(0, str(RUN.parent))


@pytest.fixture
def base() -> Iterator[int]:
    """
    The first of 26 ports that are free, below those of other tests and the range that outgoing
    connections are given; afterwards all must be free again.
    """
    tries = (random.SystemRandom().randrange(10_000, 19_900) for _ in range(200))
    found = next(b for b in tries if all(is_free(b + n) for n in range(26)))
    yield found

    assert [n for n in range(26) if not is_free(found + n)] == []


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """
    Starts a demo with the given options; what it leaves behind is left in the test's folder.
    """

    def run(*options: object, program: Path = RUN) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(program), *map(str, options)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        )

    return run
