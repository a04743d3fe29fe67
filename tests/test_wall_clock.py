"""
Who may ask for the time of day, which steps: whoever stamps what people read, and no timer.

Ages that outlive a process go by `storage/lived_time.py`, all else by the monotonic clock.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.nodes import ROOT

READERS = {
    "cli/sessions.py": "shows when a client left",
    "node/control_plane.py": "the time of a backup",
    "node/node_base.py": "how old a backup is",
    "pipeline/archives/commits.py": "a job's archive, in no node",
    "storage/lived_time.py": "the time of records, and the note beside what was lived",
    "runtime/structured_log.py": "the time of a log line",
}
"""Modules of txbroker, and what for."""

STEPPING = {
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "localtime"),
    ("time", "gmtime"),
    ("time", "ctime"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
    ("runtime", "seconds"),
    ("uuid", "uuid1"),
}


def found_in(source: str) -> Iterator[str]:
    """The reads of a module, also where a function is only named."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if (name, node.attr) in STEPPING:
                yield f"{name}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (node.module.rpartition(".")[2], alias.name) in STEPPING - {("datetime", "now")}:
                    yield f"{node.module}.{alias.name}"


def test_few_modules_read_the_time_of_day() -> None:
    """One that is not in the list goes by a clock that somebody steps."""
    package = ROOT / "txbroker"
    readers = {
        str(file.relative_to(package)): list(found_in(file.read_text()))
        for file in package.rglob("*.py")
    }

    assert set(READERS) == {name for name, reads in readers.items() if reads}


def test_core_reads_the_monotonic_clock_only() -> None:
    """What is compiled waits, too."""
    native = ROOT / "txbroker" / "core"
    sources = [f for kind in ("pyx", "pxi", "hpp", "cpp", "pxd") for f in native.rglob(f"*.{kind}")]
    stepping = re.compile(r"CLOCK_REALTIME|gettimeofday|system_clock|\btime\(\s*(NULL|nullptr|0)")

    assert sources
    assert [] == [str(file) for file in sources if stepping.search(file.read_text())]


def test_each_way_to_read_is_seen() -> None:
    """Or the list says nothing."""
    for read in (
        "import time\nx = time.time()",
        "import time\ndef f(now=time.time_ns): ...",
        "from time import time",
        "from datetime import datetime\nx = datetime.now()",
        "import datetime\nx = datetime.datetime.now()",
        "from twisted.python import runtime\nx = runtime.seconds()",
    ):
        assert list(found_in(read)), read
    assert [] == list(found_in("import time\nx = time.monotonic() + event.time"))
