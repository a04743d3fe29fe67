"""What a keeper keeps: which of two entries counts, what is durable, who has to be told."""

from __future__ import annotations

import itertools
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.checking import checking
from tests.support.keeping import MemoryTable
from txbroker.directory import entry as words
from txbroker.directory.entry import DirectoryEntry, pack, unpack
from txbroker.directory.entry_record import EntryTableFull, KnownAbove
from txbroker.directory.entry_table import EntryTable
from txbroker.model.errors import StoreError
from txbroker.mqtt.wire.packets import Will

checked = checking(EntryTable)

WILL = Will(topic="w", payload=b"\x00gone", qos=1, retain=True)


def kept(node: str, incarnation: int, client_id: str = "x", **fields: Any) -> DirectoryEntry:
    """An entry of a session that is kept."""
    return DirectoryEntry(
        client_id=client_id, node=node, incarnation=incarnation, persistent=True, **fields
    )


def clean(node: str, incarnation: int, replaces: int = 0, **fields: Any) -> DirectoryEntry:
    """An entry of a clean session."""
    return DirectoryEntry(
        client_id="x",
        node=node,
        incarnation=incarnation,
        persistent=False,
        replaces=replaces,
        **fields,
    )


def entries(table: MemoryTable | None = None, **keys: Any) -> EntryTable:
    return EntryTable(table or MemoryTable(), **keys)


ORDER = [
    clean("b", 9),  # it has seen no kept session: any counts above it
    kept("a", 1),
    kept("b", 1),
    clean("a", 1, 1),
    clean("b", 1, 1),
    clean("a", 2, 1),
    kept("a", 2),
]


@pytest.mark.parametrize(("lower", "higher"), list(itertools.pairwise(ORDER)))
def test_which_of_two_counts(lower: DirectoryEntry, higher: DirectoryEntry) -> None:
    """Whichever comes first."""
    for first, second in ((lower, higher), (higher, lower)):
        book = entries()
        book.store(first)
        verdict = book.store(second)

        assert book.get("x") == higher
        assert verdict == (KnownAbove(higher, False) if second == lower else None)


entry_values = st.builds(
    DirectoryEntry,
    client_id=st.just("x"),
    node=st.sampled_from("abc"),
    incarnation=st.integers(0, 3),
    persistent=st.booleans(),
    replaces=st.integers(0, 3),
)


@given(entry_values, entry_values)
def test_raised_above_it_counts_above(one: DirectoryEntry, other: DirectoryEntry) -> None:
    """And it is the same session still."""
    raised = one.above(other)

    assert raised.order > other.order
    assert attrs.evolve(raised, incarnation=0, replaces=0) == attrs.evolve(
        one, incarnation=0, replaces=0
    )


def test_of_two_claims_with_one_incarnation_the_first_stands() -> None:
    """Else both could have a majority; the same node may repeat its own."""
    book = entries()
    assert book.claim(kept("a", 1)) is None
    assert book.claim(kept("b", 1)) == KnownAbove(kept("a", 1), False)
    assert book.claim(kept("a", 1)) is None
    assert book.claim(kept("b", 2)) is None


def test_a_claim_stands_above_a_clean_session_only_if_it_has_seen_it() -> None:
    """A new kept session begins above what the clean one has ended."""
    book = entries()
    book.store(clean("a", 1, 4))

    assert book.claim(kept("b", 4)) == KnownAbove(clean("a", 1, 4), False)
    assert book.claim(kept("b", 5)) is None


def test_who_is_pushed_aside_is_remembered_until_told() -> None:
    """Also when what pushed it aside has ended: its session must not come back."""
    book = entries()
    book.store(kept("a", 3))
    book.store(clean("b", 1, 3))
    book.end("x", "b", 3)
    assert book.get("x") is None
    assert book.generation("x") == 3
    assert book.store(kept("a", 3)) == KnownAbove(clean("b", 1, 3), False)
    assert ("a",) == book.losers()
    (due,) = book.due_to("a", 10)
    book.acknowledge("a", due)

    assert (book.losers(), len(book)) == ((), 0)


def test_who_never_lost_may_count_itself_above_what_has_ended() -> None:
    """A session that was begun where nobody knew of the one that ended."""
    book = entries()
    book.store(kept("a", 3))
    book.store(clean("b", 1, 3))
    book.end("x", "b", 3)

    assert book.store(kept("c", 1)) == KnownAbove(clean("b", 1, 3), True)
    assert book.store(kept("c", 4)) is None
    assert book.get("x") == kept("c", 4)


def test_what_was_told_of_an_older_entry_is_not_told() -> None:
    """The loser may have been told of something that does not count any more."""
    book = entries()
    book.store(kept("a", 1))
    book.store(kept("b", 2))
    (due,) = book.due_to("a", 10)
    book.store(kept("c", 3))
    book.acknowledge("a", due)
    assert {"a", "b"} == {node for node in book.losers() if book.due_to(node, 1)} | {"a"}
    book.acknowledge("b", kept("c", 4))
    assert ("b",) == book.losers()


def test_what_comes_back_is_no_loser() -> None:
    """It has the session, and knows."""
    book = entries()
    for entry in (kept("a", 1), kept("b", 2), kept("a", 3)):
        book.store(entry)

    assert ("b",) == book.losers()


def test_only_the_holder_ends_its_entry() -> None:
    """A late word of an earlier one changes nothing."""
    book = entries()
    book.store(kept("b", 2))
    book.end("x", "a", 3)

    assert book.get("x") == kept("b", 2)


def test_a_late_end_does_not_end_what_was_claimed_since() -> None:
    """It is about a generation."""
    book = entries()
    book.store(kept("a", 1))
    book.claim(kept("a", 2))
    book.end("x", "a", 1)
    assert book.get("x") == kept("a", 2)
    book.end("x", "a", 2)

    assert book.get("x") is None


def test_what_a_list_does_not_have_has_ended() -> None:
    """But not what came, or was renewed, since the list began; nor what is another node's."""
    book = entries()
    book.store(kept("a", 1, "kept"))
    book.begin_list("a", 1)
    book.store(kept("a", 1, "old"))
    book.begin_list("a", 2)
    book.store(kept("a", 1, "listed"))
    book.store(kept("a", 1, "told"), is_hearsay=True)
    book.store(kept("b", 1, "other"))
    book.renew("kept", "a")
    book.renew("old", "b")
    book.end_unlisted("a")

    assert book.get("old") is None
    assert all(book.get(name) for name in ("listed", "told", "kept", "other"))


def test_what_lasts_is_there_after_a_restart() -> None:
    """Kept sessions, wills, and those who lost a kept session; not mere connections."""
    table = MemoryTable()
    book = entries(table)
    directory_will = words.DirectoryWill(life=2, number=5, will=WILL)
    book.store(kept("a", 1))
    book.store(kept("a", 1, "moved"))
    book.store(kept("b", 2, "moved"))
    book.store(attrs.evolve(clean("a", 1), client_id="connection"))
    book.store(attrs.evolve(clean("a", 1, testament=directory_will), client_id="will"))
    book.store(clean("b", 1, 1))
    book.end("x", "b", 3)
    again = entries(table)

    assert again.get("moved") == kept("b", 2, "moved")
    assert again.get("connection") is None
    assert ("a",) == again.losers()
    assert {"x", "moved"} == {due.client_id for due in again.due_to("a", 10)}
    assert [directory_will] == [entry.testament for entry in again.with_wills("a")]
    assert again.generation("x") == 1


def asked(book: EntryTable, node: str = "a") -> tuple[DirectoryEntry, ...]:
    """What the node is to be asked about."""
    return book.hearsay(node, 10)


def test_hearsay_is_asked_about_until_it_is_denied_or_said() -> None:
    """Its node's whole list may have come without it: nothing else would end it."""
    book = entries()
    book.begin_list("a", 1)
    for client_id in ("denied", "said"):
        book.store(kept("a", 2, client_id), is_hearsay=True)
    book.end_unlisted("a")
    assert {"denied", "said"} == {entry.client_id for entry in asked(book)}
    book.deny(kept("a", 2, "denied"))
    book.store(kept("a", 2, "said"))

    assert (book.get("denied"), asked(book), book.nodes_of_hearsay()) == (None, (), ())


def test_hearsay_that_was_known_before_is_asked_about() -> None:
    """By an earlier life, too: its word is hearsay, and what comes with the list outlives it."""
    table = MemoryTable()
    entries(table).store(kept("a", 2))
    book = entries(table)
    assert (kept("a", 2),) == asked(book)
    book.begin_list("a", 5)
    book.store(kept("a", 2), is_hearsay=True)
    book.end_unlisted("a")

    assert (kept("a", 2),) == asked(book)


def test_what_is_on_its_way_is_asked_about() -> None:
    """A list that keeps it says nothing of it, and the copy may be void."""
    table = MemoryTable()
    entries(table).store(kept("a", 2))
    book = entries(table)
    book.begin_list("a", 5)
    book.renew("x", "a")
    book.end_unlisted("a")

    assert (kept("a", 2),) == asked(book)


def test_what_was_confirmed_is_asked_about_again() -> None:
    """Its node may tell the end only to others."""
    book = entries()
    book.store(kept("a", 2), is_hearsay=True)
    book.confirm(kept("a", 2))
    book.store(kept("a", 2), is_hearsay=True)
    assert () == asked(book)
    book.mark_unconfirmed()

    assert (kept("a", 2),) == asked(book)


def test_an_answer_is_about_what_was_asked() -> None:
    """Not about what has been heard since, nor what the node has said since."""
    book = entries()
    book.store(kept("a", 2), is_hearsay=True)
    book.store(kept("a", 3), is_hearsay=True)
    book.deny(kept("a", 2))
    book.confirm(kept("a", 2))
    assert (kept("a", 3),) == asked(book)
    book.store(kept("a", 3))
    book.deny(kept("a", 3))

    assert (book.get("x"), asked(book)) == (kept("a", 3), ())


def test_all_hearsay_comes_to_be_asked_about() -> None:
    """Some may have no answer for long."""
    book = entries()
    for client_id in ("x", "y", "z"):
        book.store(kept("a", 1, client_id), is_hearsay=True)
    batches = [[entry.client_id for entry in book.hearsay("a", 2)] for _ in range(3)]

    assert [["x", "y"], ["z", "x"], ["y", "z"]] == batches


def test_what_a_node_says_itself_counts_more_than_hearsay() -> None:
    """Others tell of a will that it had."""
    old = kept("a", 1, testament=words.DirectoryWill(life=1, number=1, will=WILL))
    new = kept("a", 1, testament=words.DirectoryWill(life=1, number=2, will=WILL))
    book = entries()
    book.store(new)
    book.store(old, is_hearsay=True)

    assert (new,) == book.with_wills("a")


def test_who_does_not_speak_here_any_more_is_asked() -> None:
    """It went to another site, and tells the keepers there."""
    book = entries()
    book.store(kept("a", 1))
    book.store(kept("b", 1, "y"))
    book.doubt({"a"})

    assert ((kept("a", 1),), ("a",)) == (asked(book), book.nodes_of_hearsay())


def test_a_will_is_kept_until_it_is_sent() -> None:
    """Or replaced, or its connection is gone."""
    book = entries()
    first = kept("a", 1, testament=words.DirectoryWill(life=1, number=1, will=WILL))
    second = kept("a", 1, testament=words.DirectoryWill(life=1, number=2, will=WILL))
    book.store(first)
    book.store(second)
    book.will_is_sent("x", "a", 1, 1)
    assert (second,) == book.with_wills("a")
    book.will_is_sent("x", "b", 1, 2)
    assert ("a",) == book.nodes_with_wills()
    book.will_is_sent("x", "a", 1, 2)
    assert (book.nodes_with_wills(), book.get("x")) == ((), kept("a", 1))
    book.store(second)
    book.store(kept("b", 2))

    assert () == book.nodes_with_wills()


def test_a_removed_node_is_forgotten() -> None:
    """With its sessions, and with what it would have to be told."""
    table = MemoryTable()
    book = entries(table)
    book.store(kept("a", 1))
    book.store(kept("a", 1, "moved"))
    book.store(kept("b", 2, "moved"))
    book.forget_node("a")

    assert (book.get("x"), book.losers()) == (None, ())
    assert book.get("moved") == kept("b", 2, "moved")
    assert len(table.values) == 1


def test_there_is_a_limit() -> None:
    """What is known may still change."""
    book = entries(limit=1)
    book.store(kept("a", 1))

    assert book.store(kept("a", 1, "y")) is EntryTableFull.FULL
    assert book.store(kept("b", 2)) is None


@given(st.lists(st.none() | st.integers() | st.text()), st.binary())
def test_records_are_read_back(fields: list[Any], tail: bytes) -> None:
    """Fields and bytes."""
    assert (fields, tail) == unpack(pack(fields, tail))


@pytest.mark.parametrize("record", [b"", b"\0\0\0\2[]", b'\0\0\0\7[2,"x"]', b"\0\0\0\3{}!"])
def test_a_record_of_another_version_is_refused(record: bytes) -> None:
    """In one line."""
    with pytest.raises(StoreError):
        unpack(record)


def test_what_says_what_is_known_is_not_written_again() -> None:
    """Each session says so more than once as it begins."""
    table = MemoryTable()
    entries = EntryTable(table)
    verdicts = [entries.store(kept("a", incarnation)) for incarnation in (5, 5, 6)]

    assert ([None] * 3, 2) == (verdicts, table.puts)


@pytest.mark.parametrize("is_denied", [False, True])
def test_no_will_is_left_of_a_session_that_has_ended(is_denied: bool) -> None:
    """Whoever said so: its node, or that node when it was asked about hearsay."""
    book = entries()
    entry = kept("a", 1, testament=words.DirectoryWill(life=1, number=1, will=WILL))
    book.store(entry, is_hearsay=is_denied)
    if is_denied:
        book.deny(entry)
    else:
        book.end("x", "a", 1)

    assert () == book.with_wills("a")
    assert () == book.nodes_with_wills()


class Unwalked(dict[str, Any]):
    """The records of a table; a walk through all of them is an error."""

    def walk(self, *_: object) -> Any:
        raise AssertionError("all records are walked")

    __iter__ = keys = values = items = walk


def test_what_concerns_one_node_walks_no_other_entries() -> None:
    """A member that sends its list again and again would stop a keeper of a million entries."""
    table = entries()
    for number in range(9):
        table.store(kept("ab"[number % 2], 1, f"c{number}"), is_hearsay=number > 6)
    table.store(kept("a", 2, "c1"))
    table._records = Unwalked(table._records)
    table.begin_list("a", 7)
    table.store(kept("a", 1, "c0"))
    table.end_unlisted("a")
    table.doubt(["b"])
    assert {"c3", "c5", "c7"} == {entry.client_id for entry in table.hearsay("b", 9)}
    table.forget_node("b")
    table.forget_node("a")
    table._records = dict.copy(table._records)  # checks walk them

    assert [None] * 9 == [table.get(f"c{number}") for number in range(9)]
    assert not (table._records or table._losers or table._said or table._hearsay)
