"""Where no descriptor is left the store gets one, and nothing takes that for an end."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import os, resource, sys
from txbroker.runtime import descriptors
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
descriptors.reserve_files()
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
got = 0
try:
    while got < 100:
        descriptors.open_kept("/dev/null", os.O_RDONLY)
        got += 1
except OSError:
    pass
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
print(max(taken) + 1, got, soft, hard, descriptors.ceiling(), descriptors.next_descriptor(1))
"""


def test_the_last_ones_are_the_stores() -> None:
    """An eighth of few, which others are refused; of a full table the next number is the limit."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert "56 8 56 64 48 64" == done.stdout.strip()
