"""
SHELL: the manifests of one archive on disk.

    ARCHIVE/_manifest/<20 digits>.json

A manifest is written beside its place, synced, and linked to its name, which fails if that is
taken: of two writers one comes second, reads what the first did, and tries again. Whoever reads
lists the folder and reads from the last whole on; nothing that a reader may need is deleted within
the grace time.

The archive lies on a file system that all workers see at the same path.
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
"""Seconds that removed files stay for readers that began before."""
ATTEMPT = 86_400.0
"""Seconds after which a file that no commit names is taken for one of a failed attempt."""

_NAME = re.compile(r"(\d{20})\.json")
_READS = 5


@attrs.define(slots=True)
class VacuumResult:
    """What a vacuum did: files deleted, and files of failed attempts that the next ones delete."""

    deleted: int = 0
    condemned: int = 0


class Commits:
    """
    The versions of the archive in a folder. Any number of processes may have one; none of them is
    told of the others' commits but by `load`.
    """

    def __init__(self, archive: str | os.PathLike[str], clock: Callable[[], float] = time.time):
        """`clock` gives seconds since 1970."""
        self.archive = Path(archive)
        self._folder = self.archive / FOLDER
        self._clock = clock
        self._state = ArchiveState()

    def now(self) -> int:
        """Microseconds since 1970."""
        return int(self._clock() * 1_000_000)

    # for readers

    def load(self) -> ArchiveState:
        """The newest version; version 0 where there is none. Raises `PipelineError`."""
        for _ in range(_READS):
            newest = max(self._versions(), default=0)
            try:
                return self._read_up_to(newest)
            except FileNotFoundError as error:
                missing = error.filename
        # A reader that takes longer than the grace time may find its manifests gone, once.
        raise PipelineError(
            f"{missing}: a manifest of the archive is missing; restore it from a copy"
        )

    def load_existing(self, kind: str) -> ArchiveState:
        """The same of an archive that must be there and hold rows of this kind."""
        state = self.load()
        if not state.version:
            raise PipelineError(f"{self.archive}: nothing was written there yet; check the path")
        self._check_kind(state, kind)
        return state

    # for writers

    def commit(self, change: ArchiveChange, kind: str) -> ChangeVerdict:
        """
        Make the next version by this change, whoever else commits meanwhile.

        The first commit makes an archive of `kind`. `ChangeVerdict.LOST` and `ChangeVerdict.DONE`
        mean that nothing was done. Raises `PipelineError`.
        """
        while True:
            state = self.load()
            self._check_kind(state, kind)
            # Its files count as removed from now on, however long ago it was thought of: readers
            # that begin meanwhile have them, too.
            change = attrs.evolve(change, time=self.now())
            verdict = state.judge(change)
            if verdict is not ChangeVerdict.FITS:
                return verdict
            # Files whose condemnation is forgotten by now are gone.
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
        """A change of now."""
        return ArchiveChange(time=self.now(), **fields)

    def vacuum(self, kind: str, grace: float = GRACE, attempt: float = ATTEMPT) -> VacuumResult:
        """
        Delete what nobody needs any more: files removed more than `grace` seconds ago, manifests
        behind a whole that old. Files that no commit names and nobody wrote to for `attempt`
        seconds are condemned, for a later vacuum.
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
            self._state = ArchiveState()  # another archive was put there
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
        """Give the manifest its name; False if that version is there."""
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
        """Paths of all Parquet files in the archive, and when they were last written to."""
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
                pass  # its writer is done


def _unlink(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True
