"""The drains of one outbox: what is in doubt where one is split, and what may be freed."""

from __future__ import annotations

import pytest

from tests.support.keeping import CommitRecorder
from tests.support.outboxes import MemoryLog
from txbroker.edge.routing.outbox import Outbox, OutboxDrain
from txbroker.edge.routing.stored_outbox import DrainState, OutboxEntry
from txbroker.mqtt.wire.message import Message


def outbox(*topics: str, is_restored: bool = False) -> tuple[MemoryLog, Outbox, OutboxDrain]:
    """An outbox for the root's zone, its durable entries, and its drain."""
    entries = [OutboxEntry(n, Message(topic, b"", 1), None) for n, topic in enumerate(topics, 1)]
    log = MemoryLog(CommitRecorder(), entries)
    made = Outbox(("edge", 1, "", 7), log, is_restored=is_restored)
    state = DrainState(apex="", taken=0, doubts=())
    made.drains = [OutboxDrain(made, state, is_restored=is_restored)]
    return log, made, made.drains[0]


def numbers(batch: list[OutboxEntry]) -> list[int]:
    return [entry.number for entry in batch]


def test_what_was_sent_before_a_split_is_in_doubt_for_both() -> None:
    """The first drain sends nothing more before its owner has answered all of it."""
    log, _, first = outbox("x", "a/y", "a/y", "x")
    log.durable = 3
    assert [1, 2, 3] == numbers(first.next_batch())
    deeper = first.split("a")
    log.durable = 4

    assert (first.key,) == deeper.doubts
    assert {deeper.key, first.key} == set(deeper.start(None))  # type: ignore[arg-type]
    assert first.is_paused and [] == first.next_batch()
    assert not first.on_accepted(2)
    assert first.is_paused
    assert first.on_accepted(3)
    assert (False, (), 3) == (first.is_paused, deeper.doubts, deeper.taken)
    assert [4] == numbers(first.next_batch())


@pytest.mark.parametrize(("is_restored", "is_in_doubt"), [(False, False), (True, True)])
def test_what_an_earlier_process_left_may_have_been_sent(
    is_restored: bool, is_in_doubt: bool
) -> None:
    """Of an outbox of this process it is known that nothing was."""
    _, _, first = outbox("x", "a/y", is_restored=is_restored)
    deeper = first.split("a")

    assert is_in_doubt == first.is_paused == (deeper.doubts == (first.key,))


def test_owner_of_the_deeper_zone_may_know_first() -> None:
    """The marks went along with the zone."""
    _, _, first = outbox("a/y", "a/y", "x")
    first.next_batch()
    deeper = first.split("a")

    assert deeper.on_marks({first.key: 1})
    assert (1, (), False) == (deeper.taken, deeper.doubts, first.is_paused)
    assert [2] == numbers(deeper.next_batch())


def test_entries_are_freed_when_all_drains_have_passed_them() -> None:
    """Whichever zone is slower."""
    log, made, first = outbox("x", "a/y", "x")
    deeper = first.split("a")
    assert [1, 3] == numbers(first.next_batch())
    first.on_accepted(3)
    made.trim()
    before = log.trimmed
    assert [2] == numbers(deeper.next_batch())
    deeper.on_accepted(2)
    made.trim()

    assert (0, 3) == (before, log.trimmed)
    assert made.is_empty
