"""What is on its way to one client: where the queue begins in each part."""

from __future__ import annotations

from txbroker.message import Message
from txbroker.mqtt.window import Outgoing, Window
from txbroker.place import PartKey, Place

HERE, THERE = PartKey("", 1), PartKey("a", 1)


def queue(window: Window, part: PartKey, offset: int) -> None:
    window.wait(Outgoing(Message("t", b"p", 1), 1, False, Place(part, offset)))


def test_queue_begins_somewhere_in_each_part() -> None:
    """That is what a session has not taken, as far as it is not in flight."""
    window = Window()
    for part, offset in ((HERE, 5), (THERE, 2), (HERE, 6), (THERE, 9)):
        queue(window, part, offset)
    window.wait(Outgoing(Message("t", b"cannot be read again", 1), 1, True))
    begins = [window.first_queued()]
    while window.next_waiting() is not None:
        begins.append(window.first_queued())

    assert begins == [
        {HERE: 5, THERE: 2},
        {HERE: 5, THERE: 2},  # what cannot be read again went first
        {HERE: 6, THERE: 2},
        {HERE: 6, THERE: 9},
        {THERE: 9},
        {},
    ]


def test_queue_that_is_left_begins_nowhere() -> None:
    """Nor is anything of it counted later."""
    window = Window()
    queue(window, HERE, 5)
    left = window.leave_queue()
    queue(window, THERE, 2)

    assert [Place(HERE, 5)] == left
    assert {THERE: 2} == window.first_queued()
