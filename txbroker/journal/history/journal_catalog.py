"""
SHELL: the journal parts of this node, as readers with their own offsets see them.

Readers see synced records only, whatever `durability` says. No crash removes a synced record, so no
other record ever gets its offset. Sessions may read further (`journal/history/journal_reader.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import attrs

from txbroker.authority.authority import Authority
from txbroker.data.data_directory import DataDirectory
from txbroker.delegation.node_grant import NodeGrant
from txbroker.journal.store.journal_parts import JournalPart
from txbroker.model.log_position import JournalId

SYNC_EVERY = 0.1
"""Seconds between two syncs that readers request."""

SYNC_LIMIT = 2.0
"""Seconds that a reader waits for a sync; the disk may be full or hang."""


@attrs.frozen(kw_only=True)
class CatalogPart:
    """
    A part, whose offsets from `first` up to `end` (exclusive) are readable.

    `is_closed`: no record will be appended. `is_cut_off`: the zone was reclaimed from this node,
    and the part is an unsettled branch.
    """

    key: JournalId
    first: int
    end: int
    is_closed: bool
    is_cut_off: bool


class JournalCatalog:
    """The parts on this node; `authority` is None if the node owns no zone."""

    def __init__(
        self,
        *,
        data_directory: DataDirectory,
        authority: Authority | None,
        node_grant: NodeGrant,
        now: Callable[[], float],
    ) -> None:
        self._data_directory = data_directory
        self._authority = authority
        self._node_grant = node_grant
        self._now = now
        self._asking = asyncio.Lock()
        self._asked = 0.0

    def get(self, key: JournalId) -> JournalPart | None:
        """Return the part, if this node has it."""
        return self._data_directory.journals.get(key)

    def all(self) -> Iterator[CatalogPart]:
        """Yield all parts as of now."""
        for part in self._data_directory.journals.parts.values():
            yield self.describe(part)

    def describe(self, part: JournalPart) -> CatalogPart:
        """Return the part's description as of now."""
        zone, epoch = part.key
        node_grant = self._node_grant
        end = part.log.synced + 1
        return CatalogPart(
            key=part.key,
            first=min(part.log.first_kept, end),
            end=end,
            is_closed=self._is_over(part.key) and part.is_synced,
            is_cut_off=zone == node_grant.zone and epoch == node_grant.divergent > 0,
        )

    async def refresh(self) -> None:
        """
        Return when all records appended before this call are synced and so readable.

        The sync would soon follow by itself. Exceptions are `durability: memory`, and stored QoS 0
        with a long `sync_interval`. Concurrent calls share a sync.
        """
        called = self._now()
        async with self._asking:
            if self._asked > called:
                return  # an awaited sync began after this call
            logs = [
                part.log
                for part in self._data_directory.journals.parts.values()
                if not part.is_synced
            ]
            if not logs:
                return
            await asyncio.sleep(self._asked + SYNC_EVERY - self._now())
            self._asked = self._now()
            done = asyncio.Event()
            if self._data_directory.committer.sync_soon(logs, done.set):
                try:
                    await asyncio.wait_for(done.wait(), SYNC_LIMIT)
                except TimeoutError:
                    pass  # readers see the synced records

    def _is_over(self, key: JournalId) -> bool:
        """True if no record can be appended to the part any more."""
        authority, node_grant = self._authority, self._node_grant
        if authority is None or key.zone != authority.apex:
            return True  # the part came with a zone that was given back
        is_served = authority.serving and authority.epoch == key.epoch
        # A suspended zone may continue at its epoch as long as the node holds the grant.
        return key.epoch <= node_grant.ended and not is_served
