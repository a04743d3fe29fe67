"""The recent end of a journal: what it keeps, what it says is lost."""

from __future__ import annotations

from txbroker.authority.journal import RecentJournal, Record
from txbroker.message import Message


def record(offset: int, size: int = 0) -> Record:
    return Record(offset, Message("t", b"x" * size, 1))


def kept(journal: RecentJournal, after: int = 0) -> list[int]:
    return [found.offset for found in journal.after(after)]


def test_records_after_an_offset_come_oldest_first() -> None:
    """A reader goes on behind what it has."""
    journal = RecentJournal(10)
    for offset in (1, 2, 5, 9):
        journal.append(record(offset))

    assert [1, 2, 5, 9] == kept(journal)
    assert [5, 9] == kept(journal, after=2)
    assert [9] == kept(journal, after=5)
    assert [] == kept(journal, after=9)
    assert journal.missing_after(0) == 0


def test_oldest_records_go_beyond_the_number() -> None:
    """The first limit is a number of records."""
    journal = RecentJournal(3)
    for offset in range(1, 6):
        journal.append(record(offset))

    assert [3, 4, 5] == kept(journal)
    assert len(journal) == 3


def test_oldest_records_go_beyond_the_size() -> None:
    """The second limit is bytes; what went makes room for as many as it took."""
    size = record(1, 100).message.size
    journal = RecentJournal(100, 3 * size)
    for offset in range(1, 6):
        journal.append(record(offset, 100))

    assert [3, 4, 5] == kept(journal)


def test_record_larger_than_the_journal_leaves_it_empty() -> None:
    """Nothing breaks, and readers hear that something is missing."""
    journal = RecentJournal(100, 500)
    journal.append(record(1))
    journal.append(record(2, 1000))
    journal.append(record(3))

    assert [3] == kept(journal)
    assert journal.missing_after(0) == 2


def test_reader_hears_how_much_may_be_missing() -> None:
    """From the position of the reader to the last one that went."""
    journal = RecentJournal(2)
    for offset in (4, 8, 9, 10):
        journal.append(record(offset))

    missing = {position: journal.missing_after(position) for position in (0, 4, 8, 9, 50)}

    assert missing == {0: 8, 4: 4, 8: 0, 9: 0, 50: 0}


def test_journal_of_nothing_keeps_nothing() -> None:
    """A limit of 0 turns it off."""
    journal = RecentJournal(0)
    journal.append(record(1))

    assert ([], 1) == (kept(journal), journal.missing_after(0))
