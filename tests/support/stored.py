"""Records as a journal gives them to readers."""

from __future__ import annotations

from collections.abc import Iterable

from txbroker.core import StoredRecords
from txbroker.journal.store.record_format import encode_records
from txbroker.journal.zone_journal import Record, Records


class GivenRecords(Records):
    """Records whose messages are those that were given, and no others that are equal."""

    def __init__(self, given: Iterable[Record]) -> None:
        super().__init__(StoredRecords())
        for place, record in enumerate(given):
            self.stored.add(record.offset, encode_records([record.message], {}), 1)
            self._made[place] = record
