"""What is on its way to one client: where the queue begins in each part."""

from __future__ import annotations

from tests.support.checking import checking
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.window import OutboundMessage, Window
from txbroker.mqtt.wire.message import Message

checked = checking(Window)

HERE, THERE = JournalId("", 1), JournalId("a", 1)


def queue(window: Window, part: JournalId, offset: int) -> None:
    window.wait(OutboundMessage(Message("t", b"p", 1), 1, False, LogPosition(part, offset)))


def test_queue_begins_somewhere_in_each_part() -> None:
    """That is what a session has not taken, as far as it is not in flight."""
    window = Window()
    for part, offset in ((HERE, 5), (THERE, 2), (HERE, 6), (THERE, 9)):
        queue(window, part, offset)
    window.wait(OutboundMessage(Message("t", b"cannot be read again", 1), 1, True))
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
    left = window.discard_queue()
    queue(window, THERE, 2)

    assert [LogPosition(HERE, 5)] == left
    assert {THERE: 2} == window.first_queued()


def test_what_is_unloaded_is_not_counted() -> None:
    """A journal has it; what is nowhere else stays."""
    window = Window()
    window.launch(OutboundMessage(Message("t", b"p", 1), 1, False, LogPosition(HERE, 1)), 0)
    window.launch(OutboundMessage(Message("t", b"kept", 1), 1, True), 1)
    window.unload()

    assert window.flights[2].size == window.flight_size
