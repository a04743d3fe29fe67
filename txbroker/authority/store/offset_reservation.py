"""
SHELL: offsets that may have been handed out, so that none is ever used twice (protocol rule 3).

QoS 0 is delivered before it is durable, and with `interval` or `memory` so is the rest. A crash of
the machine (with `memory`: of the process) then takes records from the journal whose offsets others
have seen. So a bound above all offsets that were handed out is durable, well ahead. After such a
crash the part goes on above the bound, and the hole below stays empty for ever.
"""

from __future__ import annotations

from txbroker.journal.store.journal_parts import JournalPart
from txbroker.model.counters import Counters
from txbroker.model.invariant import holds, ordered
from txbroker.runtime.boot import boot_id
from txbroker.runtime.structured_log import get_logger
from txbroker.storage.tables import LogTable
from txbroker.v1 import state_pb2

log = get_logger()

BLOCK = 1 << 22
"""
Offsets by which the bound rises. A raise happens while half a block remains, for offsets that are
delivered before the raise is durable.
"""

_KEY = b"ceiling"


class OffsetReservation:
    """
    The bound for the part that is appended to, in `table`.

    Offsets up to `ample` need no raise.

    Invariant: offset that was given last <= `_offset`, at the epoch of the part.
    """

    def __init__(self, table: LogTable, counters: Counters, *, survives_kill: bool) -> None:
        """
        Create the reservation.

        `survives_kill`: True if the operating system has each record before any other node hears of
        it.
        """
        self._table = table
        self._counters = counters
        self._survives_kill = survives_kill
        self._epoch = 0
        self._offset = 0
        self.ample = 0

    def is_of(self, epoch: int) -> bool:
        """True if the stored bound is of the part of this epoch, which was durable before."""
        return self._known().epoch == epoch

    def open(self, part: JournalPart) -> None:
        """Continue a part above every offset that may have been assigned before."""
        known = self._known()
        is_same = known.epoch == part.key.epoch
        # A system without boot ids counts as restarted: otherwise a crash of the machine could pass
        # unnoticed.
        is_other = not known.boot or known.boot != boot_id()
        is_lost = known.is_exact or is_other or not self._survives_kill
        if is_same and is_lost and known.offset >= part.next:
            hole = known.offset + 1 - part.next
            part.skip_to(known.offset + 1)
            self._counters.add("journal.hole", hole)
            log.warning("journal.hole", zone=part.key.zone, epoch=part.key.epoch, offsets=hole)
        self._epoch = part.key.epoch
        self._raise(part.next - 1)

    def raise_bound(self, offset: int) -> None:
        """Raise the bound if the assigned offset comes near it."""
        if offset > self.ample:
            self._raise(offset)

    def check(self, part: JournalPart) -> None:
        """State that all offsets that were given lie below the bound."""
        holds(self, 30, "the bound is of the part", self._epoch == part.key.epoch, part.key)
        ordered(self, 30, "last given <= reserved", part.next - 1, self._offset)

    def close(self, part: JournalPart) -> None:
        """Store the exact end: each assigned offset is in the journal or in a known hole."""
        self._put(part.next - 1, is_exact=True)

    def _known(self) -> state_pb2.StoredCeiling:
        """Return the stored bound; epoch 0 if none exists."""
        return state_pb2.StoredCeiling.FromString(self._table.get(_KEY) or b"")

    def _raise(self, offset: int) -> None:
        self._put(offset + BLOCK, is_exact=False)

    def _put(self, offset: int, *, is_exact: bool) -> None:
        self._offset = offset
        self.ample = offset - BLOCK // 2
        stored = state_pb2.StoredCeiling(
            epoch=self._epoch, offset=offset, boot=boot_id(), is_exact=is_exact
        )
        self._table.put(_KEY, stored.SerializeToString())
