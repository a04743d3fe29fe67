"""
What can happen to a node's disk: slow syncs, a full disk, and a power cut that loses what was not
synced.

kill -9 loses nothing that was written, as the kernel has it. So nodes run with `disk.c` preloaded,
which notes how to undo each write until it is synced; `DataDirectory.lose_power` plays those notes
back after a kill. Where the node's folder has a small file system of its own (a tmpfs, as root in a
mount namespace of the harness), it can be filled.
"""

from __future__ import annotations

import functools
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

import attrs

SOURCE = Path(__file__).with_name("disk.c")
SIZE = 64  # MiB of a node's own file system; a segment is a sixteenth, so that journals are trimmed
RECORD = struct.Struct("=BB6xQQQQ")


@functools.cache
def compiler() -> str | None:
    """A C compiler, if there is one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(folder: Path) -> Path:
    """Compile what is preloaded."""
    library = folder / "disk.so"
    command = [str(compiler()), "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library)]
    subprocess.run([*command, str(SOURCE), "-ldl", "-lpthread"], check=True)
    return library


@attrs.frozen(kw_only=True)
class Record:
    """One note of `disk.c`, which see; `place` is where it stands in the log."""

    place: int
    kind: str
    inode: int
    offset: int
    length: int
    old: bytes


class Disk:
    """
    The disk of one node: `data` is its folder, `control` one for us, elsewhere. `library` None: no
    compiler, so neither slow nor without power; `is_mounted`: a small file system of its own. Each
    sync takes `delay` seconds longer, also where no fault makes it slower.
    """

    def __init__(
        self,
        folder: Path,
        control: Path,
        library: Path | None,
        *,
        mount: bool,
        delay: float = 0.0,
    ) -> None:
        self.folder = folder.resolve()
        self.control = control.resolve()
        self._library = library
        self.folder.mkdir(parents=True)
        self.control.mkdir(parents=True)
        self._is_mounted = mount
        if mount:
            options = f"size={SIZE}m,mode=755"
            command = ["mount", "-t", "tmpfs", "-o", options, "faults", str(self.folder)]
            subprocess.run(command, check=True)
        self.data = self.folder / "data"
        self._delay = delay
        self.slow(0)

    def close(self) -> None:
        """No process uses it any more."""
        if self._is_mounted:
            subprocess.run(["umount", str(self.folder)], check=True)

    def environment(self) -> dict[str, str]:
        """What the node's process gets."""
        if self._library is None:
            return {}
        return {
            "LD_PRELOAD": str(self._library),
            "FAULTS_DATA": str(self.data),
            "FAULTS_CONTROL": str(self.control),
        }

    def slow(self, seconds: float) -> None:
        """Every sync takes so much longer from now on; 0 for what is usual here."""
        temporary = self.control / "delay.new"
        temporary.write_text(str(int((seconds or self._delay) * 1_000_000)))
        temporary.rename(self.control / "delay")

    def fill(self) -> None:
        """Take all room that is left."""
        with (self.folder / "filler").open("ab", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                self._fill(file.fileno(), size)

    def free(self) -> None:
        """Give it back."""
        (self.folder / "filler").unlink(missing_ok=True)

    def replace(self, copy: Path) -> None:
        """The node's process is dead, and its data are this copy from now on, on a new disk."""
        shutil.rmtree(self.data)
        shutil.copytree(copy, self.data)
        (self.control / "undo").unlink(missing_ok=True)

    def destroy(self) -> None:
        """The node's process is dead, and nothing of its data is left."""
        shutil.rmtree(self.data, ignore_errors=True)
        (self.control / "undo").unlink(missing_ok=True)

    def lose_power(self, rng: Random) -> int:
        """
        The node's process is dead. Undo what was not synced: all of it, or all from some write on,
        part of that one included. Returns how many writes are gone.
        """
        log = self.control / "undo"
        if not log.exists():
            return 0
        gone = unsynced(list(records(log.read_bytes())))
        if gone and rng.random() < 0.5:
            torn, *later = gone[rng.randrange(len(gone)) :]
            gone = [_tear(torn, rng), *later]
        paths = {each.stat().st_ino: each for each in self.data.rglob("*") if each.is_file()}
        for record in reversed(gone):
            if record.inode in paths:
                _undo(record, paths[record.inode])
        log.unlink()
        return len(gone)

    def _fill(self, fd: int, size: int) -> None:
        block = bytes(size)
        try:
            while os.write(fd, block) == size:
                pass
        except OSError:
            pass  # full, which is what was wanted


def records(log: bytes) -> Iterator[Record]:
    """The notes, in order; one that the kill has cut short was for a write that never was."""
    place = 0
    while place + RECORD.size <= len(log):
        kind, is_zero, inode, offset, length, size = RECORD.unpack_from(log, place)
        start = place + RECORD.size
        stored = 0 if is_zero else size
        if start + stored > len(log):
            return
        old = bytes(size) if is_zero else log[start : start + size]
        yield Record(
            place=place, kind=chr(kind), inode=inode, offset=offset, length=length, old=old
        )
        place = start + stored


def unsynced(log: list[Record]) -> list[Record]:
    """The writes and new files that no later sync made durable, oldest first."""
    synced: dict[tuple[str, int], int] = {}
    born: dict[int, int] = {}
    for record in log:
        if record.kind in "SD":
            key = (record.kind, record.inode)
            synced[key] = max(record.offset, synced.get(key, 0))
        elif record.kind == "C":
            born[record.inode] = record.place
    found = []
    for record in log:
        if record.kind not in "WC" or record.place < born.get(record.inode, 0):
            continue  # of an earlier file with the same number
        durable = synced.get(("S", record.inode), 0)
        if record.kind == "C":
            durable = max(durable, synced.get(("D", record.length), 0))
        if record.place >= durable:
            found.append(record)
    return found


def _tear(record: Record, rng: Random) -> Record:
    """The note for the end of a write alone, whose beginning reached the disk."""
    kept = rng.randint(0, len(record.old))
    length = max(record.length, record.offset + kept)
    return attrs.evolve(record, offset=record.offset + kept, old=record.old[kept:], length=length)


def _undo(record: Record, path: Path) -> None:
    if record.kind == "C":
        path.unlink(missing_ok=True)
        return
    if not path.exists():
        return
    with path.open("r+b") as file:
        file.seek(record.offset)
        file.write(record.old)
        file.truncate(record.length)
