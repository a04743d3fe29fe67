"""What waits for members of a group, in order."""

from __future__ import annotations

from tests.support.runs import read_run
from txbroker.edge.groups.group_queue import GroupQueue
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.window import LaunchedRun, OutboundMessage
from txbroker.mqtt.wire.message import Message

PART, OTHER = JournalId("", 1), JournalId("a", 1)


def flight(offset: int, part: JournalId = PART) -> tuple[int, OutboundMessage]:
    return offset, OutboundMessage(Message("t", b"", 1), 1, False, LogPosition(part, offset))


def run(first: int, count: int, part: JournalId = PART) -> LaunchedRun:
    return LaunchedRun(part, read_run([Message("t", b"", 1)] * count, first))


def taken(queue: GroupQueue) -> list[int]:
    """The offsets of all, in order."""
    found: list[int] = []
    while queue:
        if queue.run is None:
            found.append(queue.dequeue()[0])
        else:
            _, some = queue.dequeue_run(2)
            found += [some.offset(index) for index in range(some.count)]
    assert not queue.count
    return found


def test_runs_and_flights_keep_their_order() -> None:
    """A run may be taken in pieces."""
    queue = GroupQueue()
    queue.add(flight(1))
    queue.add_run(run(2, 3))
    queue.add(flight(5))
    assert (5, [1, 5]) == (queue.count, [number for number, _ in queue.flights()])
    assert [1, 2, 3, 4, 5] == taken(queue)


def test_what_comes_again_goes_before_later_messages_of_its_part() -> None:
    queue = GroupQueue()
    queue.add_run(run(10, 2, OTHER))
    queue.add_run(run(20, 2))
    for offset in (3, 4):
        queue.add(flight(offset))
    queue.add_first(flight(1))
    assert [1, 3, 4, 10, 11, 20, 21] == taken(queue)
    queue.add(flight(5))
    queue.add_run(run(6, 1))
    assert [5, 6] == taken(queue)


def test_flights_that_ended_are_left_out() -> None:
    queue = GroupQueue()
    queue.add(flight(1))
    queue.add_run(run(2, 2))
    queue.add(last := flight(4))
    queue.keep([last])
    assert (3, [2, 3, 4]) == (queue.count, taken(queue))
