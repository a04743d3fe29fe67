"""
Writes the data folders of this checkout's version: `python -m tests.data NAME [FOLDER]`.

The archives are `FOLDER/NAME.tar.xz` and `FOLDER/NAME.level5.tar.xz`; FOLDER is tests/data by
default. A release adds its own once, and no archive is ever written again.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from . import LEVEL_5, pack, story, story5


def main() -> int:
    """Exit status 0 when the archives are there, 2 for wrong usage."""
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[2]) if len(sys.argv) == 3 else Path(__file__).parent
    for write, ending in ((story.write, ".tar.xz"), (story5.write, LEVEL_5)):
        archive = folder / f"{sys.argv[1]}{ending}"
        with tempfile.TemporaryDirectory() as place:
            write(Path(place))
            pack(archive, Path(place))
        print(f"{archive}: {archive.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
