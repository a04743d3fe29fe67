"""
Data folders that releases wrote: each later version serves them.

`NAME.tar.xz` holds the data folders of one tree of five nodes at the version NAME, killed with
SIGKILL; `NAME.level5.tar.xz` those of three nodes with clients of MQTT 5.0. `story.py` and
`story5.py` say what their clients had done; `python -m tests.data NAME` writes both.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

LEVEL_5 = ".level5.tar.xz"
"""How the names of archives with clients of MQTT 5.0 end."""


def unpack(archive: Path, folder: Path) -> None:
    """The data folders of `archive` in `folder`."""
    with tarfile.open(archive) as tar:
        # Python before 3.11.4 has no filters.
        safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(folder, **safely)


def pack(archive: Path, folder: Path) -> None:
    """All data folders of `folder` in a new archive."""
    with tarfile.open(archive, "w:xz") as tar:
        for data in sorted(folder.glob("data-*")):
            tar.add(data, data.name)
