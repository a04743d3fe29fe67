"""
SHELL: what an edge knows of the tree of zones, kept for its next start.

With it a node that starts while its parent, or the root, is down reaches the zones that it knew
(invariants 7 and 8), and claims in each what its owner keeps for it (rule 13). It may be out of
date, which costs a step of a walk and never a wrong write, so it is written lazily, and one that
cannot be read is done without.
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
"""Version of the file; another one is done without."""


class ResolverCacheFile:
    """The file `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved: tuple[Known, ...] = ()
        self._is_saving = False

    def load(self) -> tuple[Known, ...]:
        """What was saved last; nothing where that is of no use."""
        try:
            messages = atomic_file.from_frames(self._path) or [b""]
            stored = store_pb2.KnownZones.FromString(messages[0])
        except (StoreError, DecodeError) as error:
            log.warning("zones.forgotten", reason=str(error))
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
        """Whether it is to be saved now."""
        return not self._is_saving and known != self._saved

    async def save(self, known: tuple[Known, ...]) -> None:
        """Make it durable; one at a time (`is_news`)."""
        self._is_saving = True
        try:
            await asyncio.to_thread(self._write, known)
            self._saved = known
        except StoreError as error:
            # Full disks are told of elsewhere; the next change tries again.
            log.debug("zones.unsaved", reason=str(error))
        finally:
            self._is_saving = False

    def _write(self, known: tuple[Known, ...]) -> None:
        stored = store_pb2.KnownZones(format=FORMAT)
        for zone, cuts in known:
            entry = stored.zones.add(zone=cut_to_wire(zone), has_cuts=cuts is not None)
            entry.cuts.extend(cut_to_wire(cut) for cut in cuts or ())
        atomic_file.replace(self._path, atomic_file.to_frames([stored.SerializeToString()]))
