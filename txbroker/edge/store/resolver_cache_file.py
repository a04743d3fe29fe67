"""
SHELL: the file of an edge's resolver cache, for the next start.

A node may start while its parent, or the root, is down. With the file it reaches the zones that it
knew (invariants 7 and 8). In each it claims the deliveries that the owner holds for it (rule 13).
A stale entry costs a step of a walk, and never a wrong write. So the file is written lazily, and an
unreadable file counts as empty.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from google.protobuf.message import DecodeError

from txbroker.edge.routing.resolver_cache import Known
from txbroker.model.errors import StoreError
from txbroker.rpc.link_convert import cut_from_wire, cut_to_wire
from txbroker.runtime.structured_log import get_logger
from txbroker.storage import atomic_file
from txbroker.v1 import store_pb2

log = get_logger()

FORMAT = 1
"""Version of the file; a file of another version counts as empty."""


class ResolverCacheFile:
    """The file `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved: tuple[Known, ...] = ()
        self._is_saving = False

    def load(self) -> tuple[Known, ...]:
        """
        Load the last saved zones; return none if the file is unreadable or of another version.
        """
        try:
            messages = atomic_file.from_frames(self._path) or [b""]
            stored = store_pb2.KnownZones.FromString(messages[0])
        except (StoreError, DecodeError) as error:
            log.warning("zones.unreadable", reason=str(error))
            return ()
        if stored.format != FORMAT:
            return ()
        self._saved = tuple(
            (
                cut_from_wire(entry.zone),
                tuple(cut_from_wire(cut) for cut in entry.cuts) if entry.has_cuts else None,
            )
            for entry in stored.zones
        )
        return self._saved

    def is_news(self, known: tuple[Known, ...]) -> bool:
        """True if `known` differs from the saved value, and no save is under way."""
        return not self._is_saving and known != self._saved

    async def save(self, known: tuple[Known, ...]) -> None:
        """Make it durable; callers run one save at a time (`is_news`)."""
        self._is_saving = True
        try:
            await asyncio.to_thread(self._write, known)
            self._saved = known
        except StoreError as error:
            # A full disk is reported elsewhere. The next change tries again.
            log.debug("zones.write_failed", reason=str(error))
        finally:
            self._is_saving = False

    def _write(self, known: tuple[Known, ...]) -> None:
        stored = store_pb2.KnownZones(format=FORMAT)
        for zone, cuts in known:
            entry = stored.zones.add(zone=cut_to_wire(zone), has_cuts=cuts is not None)
            entry.cuts.extend(cut_to_wire(cut) for cut in cuts or ())
        atomic_file.replace(self._path, atomic_file.to_frames([stored.SerializeToString()]))
