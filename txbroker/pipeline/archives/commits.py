"""
SHELL: reads and writes the manifests of one archive.

    ARCHIVE/_manifest/<20 digits>.json

A writer writes a manifest beside its place, syncs it, and links it to its name. The link fails if
the name exists: of two writers the second reads the first one's manifest, and tries again. A reader
lists the folder, and reads from the last manifest with the whole state on. No file that a reader
may need is deleted within the grace time.

All workers must see the archive's file system at the same path.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from txbroker.model.errors import PipelineError
from txbroker.pipeline.archives.manifest import (
    ArchiveChange,
    ArchiveState,
    BadManifest,
    ChangeVerdict,
    base_of,
    decode,
    encode,
    is_whole,
)
from txbroker.storage.files import make_folder, sync_folder

FOLDER = "_manifest"
GRACE = 3600.0
"""Seconds that removed files stay, for readers that began earlier."""
ATTEMPT = 86_400.0
"""Seconds after which an unnamed file counts as the rest of a failed attempt."""

_NAME = re.compile(r"(\d{20})\.json")
_READS = 5


@attrs.define(slots=True)
class VacuumResult:
    """Result of a vacuum: files deleted, and files condemned for a later vacuum."""

    deleted: int = 0
    condemned: int = 0


class Commits:
    """
    The versions of the archive in a folder.

    Any number of processes may have an object for the same folder. Only `load` makes one process
    see the commits of another.
    """

    def __init__(self, archive: str | os.PathLike[str], clock: Callable[[], float] = time.time):
        """`clock` returns seconds since 1970."""
        self.archive = Path(archive)
        self._folder = self.archive / FOLDER
        self._clock = clock
        self._state = ArchiveState()

    def now(self) -> int:
        """Return microseconds since 1970."""
        return int(self._clock() * 1_000_000)

    # for readers

    def load(self) -> ArchiveState:
        """Return the newest version, or version 0 if none exists. Raises `PipelineError`."""
        for _ in range(_READS):
            newest = max(self._versions(), default=0)
            try:
                return self._read_up_to(newest)
            except FileNotFoundError as error:
                missing = error.filename
        # A reader slower than the grace time may miss a deleted manifest; a retry starts later.
        raise PipelineError(
            f"{missing}: a manifest of the archive is missing; restore it from a copy"
        )

    def load_existing(self, kind: str) -> ArchiveState:
        """Load an archive that must exist and hold rows of this kind; raises `PipelineError`."""
        state = self.load()
        if not state.version:
            raise PipelineError(f"{self.archive}: nothing was written there yet; check the path")
        self._check_kind(state, kind)
        return state

    # for writers

    def commit(self, change: ArchiveChange, kind: str) -> ChangeVerdict:
        """
        Commit a change as the next version, despite concurrent commits.

        The first commit makes an archive of `kind`. `ChangeVerdict.LOST` and `ChangeVerdict.DONE`
        mean that nothing changed. Raises `PipelineError`.
        """
        while True:
            state = self.load()
            self._check_kind(state, kind)
            # An older removal time would end the grace time early. Readers that begin until this
            # commit still use the removed files.
            change = attrs.evolve(change, time=self.now())
            verdict = state.judge(change)
            if verdict is not ChangeVerdict.FITS:
                return verdict
            # A forgotten condemnation means deleted files: a commit must not name these.
            if not all((self.archive / file.path).exists() for file in change.added):
                return ChangeVerdict.LOST
            if "kind" not in state.settings or change.settings is not None:
                chosen = {**state.settings, **(change.settings or {}), "kind": kind}
                change = attrs.evolve(change, settings=chosen)
            following = state.apply(change)
            if self._link(following.version, encode(following, change)):
                self._state = following
                return ChangeVerdict.FITS

    def change(self, **fields: Any) -> ArchiveChange:
        """Make a change with the present time."""
        return ArchiveChange(time=self.now(), **fields)

    def vacuum(self, kind: str, grace: float = GRACE, attempt: float = ATTEMPT) -> VacuumResult:
        """
        Delete files that no reader needs.

        Files removed more than `grace` seconds ago are deleted, and manifests before a whole one of
        that age. Unnamed files that no process has written to for `attempt` seconds are condemned,
        for a later vacuum.
        """
        swept = VacuumResult()
        state = self.load()
        if not state.version:
            return swept
        limit = self.now() - int(grace * 1_000_000)
        for path, since in state.removed.items():
            if since <= limit and _unlink(self.archive / path):
                swept.deleted += 1
        on_disk = dict(self._data_files())
        gone = tuple(path for path in state.removed if path not in on_disk)
        old = self._clock() - attempt
        orphans = tuple(
            path
            for path, changed in on_disk.items()
            if changed < old and path not in state.files and path not in state.removed
        )
        if gone or orphans:
            change = self.change(forgotten=gone, orphans=orphans)
            if self.commit(change, kind) is ChangeVerdict.FITS:
                swept.condemned = len(orphans)
        self._sweep_manifests(limit, old)
        return swept

    # internal

    def _check_kind(self, state: ArchiveState, kind: str) -> None:
        found = state.settings.get("kind", kind)
        if found != kind:
            raise PipelineError(f"{self.archive}: holds {found}, not {kind}; give another folder")

    def _versions(self) -> Iterator[int]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise PipelineError(f"{self._folder}: {error.strerror}; check the path") from None
        for name in names:
            found = _NAME.fullmatch(name)
            if found:
                yield int(found[1])

    def _read_up_to(self, newest: int) -> ArchiveState:
        if self._state.version > newest:
            self._state = ArchiveState()  # Another archive has replaced the folder's content.
        if self._state.version < base_of(newest):
            self._state = self._read(base_of(newest))[1] or ArchiveState()
        for version in range(self._state.version + 1, newest + 1):
            self._state = self._state.apply(self._read(version)[0])
        return self._state

    def _path(self, version: int) -> Path:
        return self._folder / f"{version:020}.json"

    def _read(self, version: int) -> tuple[ArchiveChange, ArchiveState | None]:
        path = self._path(version)
        try:
            return decode(path.read_bytes(), version)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise PipelineError(f"{path}: {error.strerror}; check rights and disk") from None
        except BadManifest as error:
            remedy = "" if "upgrade" in str(error) else "; restore it from a copy of the archive"
            raise PipelineError(f"{path}: {error}{remedy}") from None

    def _link(self, version: int, data: bytes) -> bool:
        """Link the manifest to its name; return False if the version exists."""
        path = self._path(version)
        beside = path.with_name(f"{uuid.uuid4().hex}.tmp")
        try:
            make_folder(self._folder)
            with open(beside, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(beside, path)
            except FileExistsError:
                return False
            sync_folder(self._folder)
            return True
        except OSError as error:
            raise PipelineError(
                f"{path}: cannot be written: {error.strerror}; check space, rights and that the"
                " file system has hard links"
            ) from None
        finally:
            _unlink(beside)

    def _data_files(self) -> Iterator[tuple[str, float]]:
        """Return the paths and the last write times of all Parquet files in the archive."""
        for folder, folders, names in os.walk(self.archive):
            folders[:] = [name for name in folders if not name.startswith("_")]
            for name in names:
                if name.endswith(".parquet"):
                    path = os.path.join(folder, name)
                    try:
                        changed = os.stat(path).st_mtime
                    except FileNotFoundError:
                        continue
                    yield os.path.relpath(path, self.archive), changed

    def _sweep_manifests(self, limit: int, old: float) -> None:
        versions = sorted(self._versions())
        for whole in reversed([version for version in versions if is_whole(version)]):
            if self._read(whole)[0].time <= limit:
                for version in versions[: versions.index(whole)]:
                    _unlink(self._path(version))
                break
        for left in self._folder.glob("*.tmp"):
            try:
                if left.stat().st_mtime < old:
                    _unlink(left)
            except FileNotFoundError:
                pass  # Its writer has finished.


def _unlink(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True
