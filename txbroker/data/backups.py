"""
SHELL: a copy of a `data` folder that a node can be started with, made while its node runs.

All files are opened in one go on the loop, where all writes to them happen too; what a log holds at
that moment is its beginning up to a known length, and a log never changes what it has written. So
the copy, which a thread makes afterwards, is of one moment, and nobody waits for it. A file that is
open can be read to its end, even when its log drops it meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs

from txbroker.delegation.state.node_state import RESERVE, NodeState
from txbroker.model.errors import StoreError
from txbroker.storage import atomic_file
from txbroker.storage.disk_watermark import measure

MARKER = "backup.json"
"""In a copy, until a node has started with it."""

FORMAT = 1
"""Version of the marker; a newer one is refused."""

SPREAD = 1 << 20
LATEST = 1 << 32
"""
Incarnations among which one is drawn; and a bound for the time of day that they begin with, or a
clock that is far ahead would lead to numbers that others refuse.
"""

_CHUNK = 1024 * 1024
_NOT_COPIED = frozenset({"lock", RESERVE, MARKER})


@attrs.frozen(kw_only=True)
class Copied:
    """What was copied."""

    files: int
    size: int


@attrs.frozen
class _Open:
    name: Path
    fd: int
    size: int


class Backups:
    """
    Makes copies of `folder`, one at a time.

    `extents` gives the written length of each file that has space preallocated behind it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        now: Callable[[], float],
        extents: Callable[[], Mapping[Path, int]] = dict,
    ) -> None:
        self._folder = folder
        self._now = now
        self._extents = extents
        self._is_running = False

    async def copy(self, target: Path) -> Copied:
        """
        Copy into `target`, an absolute path where nothing is yet; raises `StoreError`.

        It is there as a whole, synced, or not at all.
        """
        if self._is_running:
            raise StoreError("a backup of this node is being made already")
        self._is_running = True
        try:
            with _open_all(self._folder, self._extents()) as files:
                part = self._begin(target, sum(file.size for file in files))
                marker = {"format": FORMAT, "time": self._now()}
                return await _in_thread(lambda ended: _copy(files, part, target, marker, ended))
        except OSError as error:
            raise StoreError(f"{target}: cannot be written: {error.strerror}") from error
        finally:
            self._is_running = False

    def _begin(self, target: Path, size: int) -> Path:
        """The folder to copy into first."""
        folder = self._folder.resolve()
        if not target.is_absolute():
            raise StoreError(f"{target}: not an absolute path")
        if target.resolve().is_relative_to(folder):
            raise StoreError(f"{target}: inside the data that is to be copied")
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise StoreError(f"{target}: there is something already; name a new folder")
        part = target.with_name(target.name + ".part")
        if not target.parent.is_dir():
            raise StoreError(f"{target.parent}: no such folder on the node's machine")
        free, _ = measure(target.parent)
        if free < size:
            raise StoreError(f"{target}: {size} bytes do not fit, {free} are free")
        try:
            part.mkdir()
        except FileExistsError:
            raise StoreError(f"{part}: left by a backup that broke off; remove it") from None
        return part


def made_at(folder: Path) -> float | None:
    """When the backup of which this is a copy was made (UTC seconds); None: it is no copy."""
    marker = folder / MARKER
    try:
        raw = json.loads(marker.read_bytes())
        version, time = int(raw["format"]), float(raw["time"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{marker}: not readable; copy the backup again") from error
    if version > FORMAT:
        raise StoreError(f"{marker}: format {version} is newer than this version's {FORMAT}")
    return time


def mark(folder: Path, made: float) -> None:
    """The folder is a copy that was made at that time, though by no backup; raises `StoreError`."""
    raw = json.dumps({"format": FORMAT, "time": made}).encode()
    atomic_file.replace(folder / MARKER, [raw])


def restored(state: NodeState, now: float) -> NodeState:
    """
    The state to start with in a copy that a backup made. Its zone may have an owner by now, or
    another epoch: who has a parent serves when that has granted. `now` in UTC seconds.
    """
    return attrs.evolve(
        state,
        incarnation=unused_incarnation(state.incarnation, now),
        restored=True,
        copy=secrets.token_hex(8),
    )


def unused_incarnation(known: int, now: float) -> int:
    """
    A number that no life of the node has had: its folder is a copy, or new, and knows no more than
    those up to `known`.

    The time of day may be an earlier one than that of a life since, so chance has its part. A
    number that comes again would make publishes pass for repeats.
    """
    return max(known, min(int(now), LATEST)) + secrets.randbelow(SPREAD)


def forget(folder: Path) -> None:
    """All that a start with the copy changes is durable: it is like any other folder from here."""
    with contextlib.suppress(FileNotFoundError):
        (folder / MARKER).unlink()
        _sync_folder(folder)


# -- on the loop


@contextlib.contextmanager
def _open_all(folder: Path, extents: Mapping[Path, int]) -> Iterator[list[_Open]]:
    files: list[_Open] = []
    try:
        for root, _, names in os.walk(folder, followlinks=True):
            for path in (Path(root, name) for name in sorted(names) if name not in _NOT_COPIED):
                # A file that is replaced as a whole is written as `.new` first, in part.
                if path.suffix == ".new" or not path.is_file():
                    continue
                fd = os.open(path, os.O_RDONLY)
                size = os.fstat(fd).st_size
                files.append(
                    _Open(path.relative_to(folder), fd, min(extents.get(path, size), size))
                )
        yield files
    finally:
        for file in files:
            os.close(file.fd)


async def _in_thread(work: Callable[[threading.Event], Copied]) -> Copied:
    """Run `work`; when the caller is cancelled it is told by the event, and waited for."""
    ended = threading.Event()
    task = asyncio.ensure_future(asyncio.to_thread(work, ended))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        ended.set()
        await asyncio.wait([task])
        raise


# -- in the thread


def _copy(
    files: list[_Open],
    part: Path,
    target: Path,
    marker: Mapping[str, object],
    ended: threading.Event,
) -> Copied:
    made = part
    try:
        folders = {part}
        for file in files:
            copy = part / file.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            folders.update(folder for folder in copy.parents if folder.is_relative_to(part))
            _copy_file(file, copy, ended)
        with (part / MARKER).open("w") as note:
            json.dump(marker, note)
            note.flush()
            os.fsync(note.fileno())
        for folder in folders:
            _sync_folder(folder)
        made = part.rename(target)
        _sync_folder(target.parent)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return Copied(files=len(files), size=sum(file.size for file in files))


def _copy_file(file: _Open, copy: Path, ended: threading.Event) -> None:
    position = 0
    with copy.open("xb") as out:
        while position < file.size:
            if ended.is_set():
                raise StoreError(f"{copy}: the node stops")
            data = os.pread(file.fd, min(_CHUNK, file.size - position), position)
            if not data:
                raise StoreError(f"{file.name}: shorter than it was; make the backup again")
            out.write(data)
            position += len(data)
        out.flush()
        os.fsync(out.fileno())


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
