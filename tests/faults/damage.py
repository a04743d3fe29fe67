"""
Damage to the files of a node that is down: a flipped bit, a last segment that is gone.

Each can be undone. A node must not believe a damaged file; `txbroker repair` must name it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import attrs

NEWEST = "newest"
"""The file beside the segments of a log that names the last one that was durable."""

BEHIND = 32_768
"""Bytes of entries that stand behind a flipped bit of a last segment: no torn tail, then."""


@attrs.frozen(kw_only=True)
class Damage:
    """Of one file; `kind` says which."""

    path: Path
    kind: str
    place: int = 0
    bit: int = 0

    @property
    def is_seen_at_start(self) -> bool:
        """True if the node reads all of it when it starts."""
        return self.kind != "log"

    def do(self, aside: Path) -> None:
        """Damage the file; one that goes is kept `aside`, on the same file system."""
        if self.kind == "missing":
            self.path.rename(aside)
        else:
            self._flip()

    def undo(self, aside: Path) -> None:
        """All is as it was."""
        if self.kind == "missing":
            aside.rename(self.path)
        else:
            self._flip()

    def __str__(self) -> str:
        where = "" if self.kind == "missing" else f", bit {self.bit} of byte {self.place}"
        return f"{self.kind}: {self.path.parent.name}/{self.path.name}{where}"

    def _flip(self) -> None:
        with self.path.open("r+b") as file:
            file.seek(self.place)
            (value,) = file.read(1)
            file.seek(self.place)
            file.write(bytes([value ^ 1 << self.bit]))


def draw(data: Path, rng: Random) -> Damage | None:
    """Some damage to what is there now; None where no file would surely show it."""
    kind = rng.choice(("missing", "log", "log", "small"))
    found = sorted(_files(data, kind))
    if not found:
        return None
    path, end = rng.choice(found)
    return Damage(path=path, kind=kind, place=rng.randrange(max(end, 1)), bit=rng.randrange(8))


def _files(data: Path, kind: str) -> Iterator[tuple[Path, int]]:
    """Files that may have this damage, each with how many of its bytes may."""
    # A start deletes or moves a journal that was on its way here: that could not be undone.
    arriving = data / "arriving"
    if kind == "small":
        for name in ("state.json", "part.json"):
            found = (path for path in data.rglob(name) if arriving not in path.parents)
            yield from ((path, path.stat().st_size) for path in found)
        return
    logs = (path for path in data.rglob("*.log") if arriving not in path.parents)
    folders = {path.parent for path in logs if path.stem.isdecimal()}
    for folder in folders:
        *earlier, last = sorted(folder.glob("*.log"))
        if kind == "missing":
            if _is_noted(last):
                yield last, 0
            continue
        yield from ((path, _written(path)) for path in earlier)
        if (end := _written(last) - BEHIND) > 0:
            yield last, end


def _is_noted(segment: Path) -> bool:
    newest = segment.with_name(NEWEST)
    return newest.exists() and newest.read_bytes().startswith(segment.stem.encode())


def _written(segment: Path) -> int:
    """What stands before the space that is preallocated."""
    return len(segment.read_bytes().rstrip(b"\0"))
