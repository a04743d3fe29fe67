"""
SHELL: the journal of a zone that a hand-back is returning, in a folder of its own.

The commit of the hand-back renames the parts' folders into this node's journals. So no reader sees
half a part. A failed hand-back's parts are deleted.
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
"""Bytes that may wait for the disk before the sender has to wait."""


class StagedJournal:
    """
    The parts of one zone's journal: `start_part` a part, append its batches, then begin the next.
    """

    def __init__(self, folder: Path, journals: Journals, committer: Committer) -> None:
        """Create the staged journal; only `StagedJournals` does."""
        self.folder = folder
        self._journals = journals
        self._committer = committer
        self._part: JournalPart | None = None
        self._staged = 0

    def start_part(self, key: JournalId, predecessor: LogPosition | None) -> None:
        """Begin a part; raises `StoreError`."""
        self._part = self._journals.create(key, predecessor)

    async def append(self, batch: Batch) -> None:
        """
        Append the part's next batch, and return when there is room for another.

        Raises `PeerError` if the batch is out of order.
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
        """Return when all appended batches are durable."""
        self._staged = 0
        await self._committer.drain()

    def close(self) -> None:
        """Close the parts' files, so that the folders can be moved or deleted."""
        for part in self._journals.parts.values():
            part.discard()
        self._journals.parts.clear()


class StagedJournals:
    """All staged journals of a node, below `folder`."""

    def __init__(
        self, folder: Path, committer: Committer, on_trimmed: OnTrimmed, *, segment_bytes: int
    ) -> None:
        self._folder = folder
        self._committer = committer
        self._on_trimmed = on_trimmed
        self._segment_bytes = segment_bytes

    def start(self, zone: str) -> StagedJournal:
        """Begin a zone's journal in place of an earlier failed one."""
        self.forget(zone)
        folder = self._folder / zone_folder(zone)
        journals = Journals(
            folder, self._committer, self._on_trimmed, segment_bytes=self._segment_bytes
        )
        return StagedJournal(folder, journals, self._committer)

    def adopt(self, zone: str, journals: Journals) -> None:
        """Move the zone's parts to this node's journals; raises `StoreError`."""
        folder = self._folder / zone_folder(zone)
        for part in list_folders(folder):
            journals.adopt(part)
        self.forget(zone)

    def forget(self, zone: str) -> None:
        """Delete the staged journal of the zone; raises `StoreError`."""
        self._remove(self._folder / zone_folder(zone))

    def clean(self, zone: str | None) -> None:
        """Delete all staged journals but that of `zone`, after a start; raises `StoreError`."""
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
