"""
SHELL: the parts of journals that this node keeps, as readers who keep their own place see them.

Only what is synced is shown, whatever `durability` says: a crash takes none of it back, so no other
record will ever have its offset. Sessions may know more (`journal/history/journal_reader.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import attrs

from txbroker.authority.authority import Authority
from txbroker.data.data_directory import DataDirectory
from txbroker.delegation.state.node_grant import NodeGrant
from txbroker.journal.store.journal_parts import JournalPart
from txbroker.model.log_position import JournalId

SYNC_EVERY = 0.1
"""Seconds between two syncs that readers ask for."""

SYNC_LIMIT = 2.0
"""Seconds that a reader waits for one; a disk may be full, or hang."""


@attrs.frozen(kw_only=True)
class CatalogPart:
    """
    A part: the offsets from `first` up to `end` (exclusive) are given to readers.

    `is_closed`: nothing will be added. `is_cut_off`: the zone was reclaimed from this node, and
    what to do with the part is not decided.
    """

    key: JournalId
    first: int
    end: int
    is_closed: bool
    is_cut_off: bool


class JournalCatalog:
    """What is kept; `authority` None: the node owns no zone."""

    def __init__(
        self,
        *,
        disk: DataDirectory,
        authority: Authority | None,
        standing: NodeGrant,
        now: Callable[[], float],
    ) -> None:
        self._disk = disk
        self._authority = authority
        self._standing = standing
        self._now = now
        self._asking = asyncio.Lock()
        self._asked = 0.0

    def get(self, key: JournalId) -> JournalPart | None:
        """The part, where it is here."""
        return self._disk.journals.get(key)

    def all(self) -> Iterator[CatalogPart]:
        """As of now."""
        for part in self._disk.journals.parts.values():
            yield self.describe(part)

    def describe(self, part: JournalPart) -> CatalogPart:
        """As of now."""
        zone, epoch = part.key
        standing = self._standing
        end = part.log.synced + 1
        return CatalogPart(
            key=part.key,
            first=min(part.log.kept_from, end),
            end=end,
            is_closed=self._is_over(part.key) and part.is_synced,
            is_cut_off=zone == standing.zone and epoch == standing.divergent > 0,
        )

    async def refresh(self) -> None:
        """
        Return when what was appended before is synced, so that it is shown.

        It would be before long by itself but with `durability: memory`, and where QoS 0 is kept
        and `sync_interval` is long. Several who ask share a sync.
        """
        called = self._now()
        async with self._asking:
            if self._asked > called:
                return  # one that began later than this call was waited for
            logs = [part.log for part in self._disk.journals.parts.values() if not part.is_synced]
            if not logs:
                return
            await asyncio.sleep(self._asked + SYNC_EVERY - self._now())
            self._asked = self._now()
            done = asyncio.Event()
            if self._disk.committer.sync_soon(logs, done.set):
                try:
                    await asyncio.wait_for(done.wait(), SYNC_LIMIT)
                except TimeoutError:
                    pass  # what is synced is shown

    def _is_over(self, key: JournalId) -> bool:
        """Whether nothing can be appended any more."""
        authority, standing = self._authority, self._standing
        if authority is None or key.zone != authority.apex:
            return True  # it came with a zone that was given back
        is_served = authority.serving and authority.epoch == key.epoch
        # A zone that is not served may go on at its epoch, as long as the node holds it.
        return key.epoch <= standing.ended and not is_served
