"""Where a message lies: the part of a zone's journal, and its offset in it."""

from typing import NamedTuple


class JournalId(NamedTuple):
    """One part of a journal: what the owner of a zone took at one epoch."""

    zone: str
    epoch: int


HOLDERS = 3
"""Sessions that an owner is told by name, for each part: those that hold back most of it."""


class JournalHolder(NamedTuple):
    """A client whose session needs what lies above the offset of a part."""

    client_id: str
    offset: int


class LogPosition(NamedTuple):
    """One record of a part; offsets start at 1."""

    part: JournalId
    offset: int
