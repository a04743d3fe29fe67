"""Positions in the log: the part of a zone's journal, and the offset in the part."""

from typing import NamedTuple


class JournalId(NamedTuple):
    """A part of a journal: the records that the owner of a zone accepted at one epoch."""

    zone: str
    epoch: int


HOLDERS = 3
"""
Sessions that an owner knows by name, for each part: those that hold back most of its retention.
"""


class JournalHolder(NamedTuple):
    """A client whose session needs the records above the offset of a part."""

    client_id: str
    offset: int


class LogPosition(NamedTuple):
    """The position of one record in a part; offsets start at 1."""

    part: JournalId
    offset: int
