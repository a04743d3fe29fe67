"""A folder as a power failure may leave it: what was synced stays, the rest may or may not."""

from __future__ import annotations

import random
from pathlib import Path

SECTOR = 512

Files = dict[str, bytes]


def snapshot(folder: Path) -> Files:
    """The contents of all files in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def crash(folder: Path, synced: Files, chance: random.Random) -> None:
    """
    Leave what a power failure may leave of the files of `folder`, of which `synced` was synced.

    Each sector that was written since may be there or not, in any order; files are made in order.
    """
    written = snapshot(folder)
    new = sorted(set(written) - set(synced))
    for name in new[chance.randint(0, len(new)) :]:
        (folder / name).unlink()
        del written[name]
    for name, after in written.items():
        (folder / name).write_bytes(torn(synced.get(name, b""), after, chance))


def torn(before: bytes, after: bytes, chance: random.Random) -> bytes:
    """
    A file that was synced with `before`, and written to hold `after` since. The cut-off bytes are
    there as they were, or not at all.
    """
    size = chance.choice((len(before), len(after)))
    after += before[len(after) :]
    share = chance.choice((0.0, 0.5, 0.9, 1.0))
    result = bytearray()
    for start in range(0, size, SECTOR):
        source = after if chance.random() < share else before
        part = source[start : min(start + SECTOR, size)]
        result += part.ljust(min(SECTOR, size - start), b"\0")
    return bytes(result)
