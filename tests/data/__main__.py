"""
Writes the data folders of this checkout's version: `python -m tests.data NAME [FOLDER]`.

The archive is `FOLDER/NAME.tar.xz`; FOLDER is tests/data by default. A release adds its own once,
and no archive is ever written again.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

from .story import NAMES, write


def main() -> int:
    """Exit status 0 when the archive is there, 2 for wrong usage."""
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[2]) if len(sys.argv) == 3 else Path(__file__).parent
    archive = folder / f"{sys.argv[1]}.tar.xz"
    with tempfile.TemporaryDirectory() as place:
        write(Path(place))
        with tarfile.open(archive, "w:xz") as tar:
            for name in NAMES:
                tar.add(Path(place) / f"data-{name}", f"data-{name}")
    print(f"{archive}: {archive.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
