"""
SHELL: the journal of a zone on its way back to this node, in a folder of its own.

Its parts become this node's when the hand-back is committed, by renaming their folders, so that
nobody ever reads half of one. What a hand-back that came to nothing has left is thrown away.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from txbroker.journal.store.journal_parts import JournalPart, Journals, zone_folder
from txbroker.journal.store.part_folders import list_folders
from txbroker.model.errors import PeerError, StoreError
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.storage.committer import Committer
from txbroker.storage.files import sync_folder
from txbroker.storage.recovery import OnTrimmed
from txbroker.storage.segment import Batch

STAGED = 2 * 1024 * 1024
"""Bytes that wait for the disk before the sender is made to."""


class StagedJournal:
    """The parts of one zone's journal; `begin` one, append its batches, then the next."""

    def __init__(self, folder: Path, journals: Journals, committer: Committer) -> None:
        """Made by `StagedJournals`."""
        self.folder = folder
        self._journals = journals
        self._committer = committer
        self._part: JournalPart | None = None
        self._staged = 0

    def begin(self, key: JournalId, predecessor: LogPosition | None) -> None:
        """A part begins; raises `StoreError`."""
        self._part = self._journals.begin(key, predecessor)

    async def append(self, batch: Batch) -> None:
        """
        The next batch of the part; returns when there is room for another one. Raises `PeerError`
        for one that does not come next.
        """
        assert self._part is not None, "begin a part first"
        log = self._part.log
        if batch.first < log.next:
            raise PeerError("the batches of a journal came in disorder")
        log.append(batch.body, batch.count, time=batch.time, first=batch.first)
        self._committer.touch(log)
        self._staged += len(batch.body)
        if self._staged >= STAGED:
            await self.durable()

    async def durable(self) -> None:
        """Return when all that was appended is safe."""
        self._staged = 0
        await self._committer.drain()

    def close(self) -> None:
        """Nothing more comes: give up the files, so that they can be moved or deleted."""
        for part in self._journals.parts.values():
            part.discard()
        self._journals.parts.clear()


class StagedJournals:
    """All that is on its way to a node, below `folder`."""

    def __init__(
        self, folder: Path, committer: Committer, on_trimmed: OnTrimmed, *, segment_bytes: int
    ) -> None:
        self._folder = folder
        self._committer = committer
        self._on_trimmed = on_trimmed
        self._segment_bytes = segment_bytes

    def begin(self, zone: str) -> StagedJournal:
        """A zone's journal begins to arrive, in place of what arrived of it in vain."""
        self.forget(zone)
        folder = self._folder / zone_folder(zone)
        journals = Journals(
            folder, self._committer, self._on_trimmed, segment_bytes=self._segment_bytes
        )
        return StagedJournal(folder, journals, self._committer)

    def adopt(self, zone: str, journals: Journals) -> None:
        """The zone is this node's: its parts are, too; raises `StoreError`."""
        folder = self._folder / zone_folder(zone)
        for part in list_folders(folder):
            journals.adopt(part)
        self.forget(zone)

    def forget(self, zone: str) -> None:
        """What has arrived of the zone is of no use; raises `StoreError`."""
        self._remove(self._folder / zone_folder(zone))

    def clean(self, zone: str | None) -> None:
        """After a start: forget all but what has arrived of `zone`; raises `StoreError`."""
        kept = None if zone is None else zone_folder(zone)
        if self._folder.is_dir():
            for folder in self._folder.iterdir():
                if folder.name != kept:
                    self._remove(folder)

    def _remove(self, folder: Path) -> None:
        try:
            if folder.is_dir():
                shutil.rmtree(folder)
                sync_folder(self._folder)
        except OSError as error:
            raise StoreError(f"{folder}: cannot be deleted: {error.strerror}") from error
