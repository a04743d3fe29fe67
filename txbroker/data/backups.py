"""
SHELL: copies a `data` folder while its node runs, so that a node can start with the copy.

The loop opens all files in one step, and all writes happen on the loop too. At that moment each log
holds its beginning up to a known length, and a log never changes written bytes. So the copy, which
a thread makes afterwards, is of one moment, and no write waits for it. An open file can be read to
its end, even if its log drops the file meanwhile.
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

from txbroker.data.data_directory import JOURNAL, TABLES
from txbroker.delegation.grant_state import NodeState
from txbroker.delegation.state.node_state import LOCK, RESERVE
from txbroker.model.errors import StoreError
from txbroker.storage import atomic_file
from txbroker.storage.disk_watermark import measure

MARKER = "backup.json"
"""The marker file in a copy, until a node has started with the copy."""

FORMAT = 1
"""Version of the marker; a start refuses a newer one."""

SPREAD = 1 << 20
LATEST = 1 << 32
"""
`SPREAD`: the number of incarnations among which a copy draws one. `LATEST`: the bound of the clock
value that incarnations begin with. Without the bound, a clock far ahead would lead to incarnations
that other nodes refuse.
"""

_CHUNK = 1024 * 1024
_NOT_COPIED = frozenset({LOCK, RESERVE, MARKER})


@attrs.frozen(kw_only=True)
class Copied:
    """The size of a finished copy, in files and bytes."""

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

    `extents` returns the written length of each file with preallocated space behind it.
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
        Copy into `target`, an absolute path of a missing or empty folder; raises `StoreError`.

        The copy appears complete and synced, or not at all.
        """
        if self._is_running:
            raise StoreError("a backup of this node is being made already")
        self._is_running = True
        try:
            with _open_all(self._folder, self._extents()) as files:
                part = self._create_folder(target, sum(file.size for file in files))
                marker = {"format": FORMAT, "time": self._now()}
                return await _in_thread(lambda ended: _copy(files, part, target, marker, ended))
        except OSError as error:
            raise StoreError(f"{target}: cannot be written: {error.strerror}") from error
        finally:
            self._is_running = False

    def _create_folder(self, target: Path, size: int) -> Path:
        """Create and return the folder to copy into first."""
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
    """Return the time of the backup that this folder is a copy of (UTC seconds); None: no copy."""
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
    """Mark the folder as a copy made at that time, though not by a backup; raises `StoreError`."""
    raw = json.dumps({"format": FORMAT, "time": made}).encode()
    atomic_file.replace(folder / MARKER, [raw])


def restored(state: NodeState, now: float) -> NodeState:
    """
    Return the state for a start with a copy; `now` in UTC seconds.

    The zone may have an owner or another epoch by now. So a node with a parent serves only after
    the parent's grant.
    """
    return attrs.evolve(
        state,
        incarnation=unused_incarnation(state.incarnation, now),
        restored=True,
        copy=secrets.token_hex(8),
    )


def unused_incarnation(known: int, now: float) -> int:
    """
    Return an incarnation that no life of the node has had.

    The folder is a copy or new, and knows only the lives up to `known`. The clock may show an
    earlier time than a later life's, so the number has a random part. A reused incarnation would
    make the owner discard new publishes as repeats.
    """
    return max(known, min(int(now), LATEST)) + secrets.randbelow(SPREAD)


def forget(folder: Path) -> None:
    """Remove the marker: all changes of a start with the copy are durable."""
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
                # A file that is replaced as a whole is written as `.new` first. Such a file may be
                # half written.
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
    """Run `work` in a thread; a cancelled call sets the event and awaits the thread's end."""
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
        for name in (TABLES, JOURNAL):  # an empty one, too: a start refuses a folder without them
            (part / name).mkdir(parents=True, exist_ok=True)
            folders.add(part / name)
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
