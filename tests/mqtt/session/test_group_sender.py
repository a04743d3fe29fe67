"""A group's messages in flight: by the run, or one by one."""

from __future__ import annotations

from typing import Any

import attrs

from tests.support.recorders import WatcherRecorder
from tests.support.runs import read_run
from txbroker.core import Router
from txbroker.edge.sessions.session_format import decode_window, encode_window
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.group_sender import GroupSender
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import LaunchedRun, OutboundMessage, SessionLimits
from txbroker.mqtt.wire.message import Message

PART, OTHER = JournalId("", 1), JournalId("a", 1)


@attrs.define(eq=False)
class Coordinator:
    """It has room for `receive_maximum`; `lent` are the offsets that came, in order."""

    receive_maximum: int = 100
    lent: list[int] = attrs.field(factory=list)
    again: list[int] = attrs.field(factory=list)
    packet_writer: Any = attrs.field(factory=lambda: Router(lambda: None).make_packet_writer())

    def lend(self, flights: list[tuple[int, OutboundMessage]]) -> None:
        for _, entry in flights:
            assert entry.place is not None
            self.lent.append(entry.place.offset)
            if entry.is_again:
                self.again.append(entry.place.offset)

    given: list[OutboundMessage] = attrs.field(factory=list)

    def deliver_qos0(self, entry: OutboundMessage) -> None:
        self.given.append(entry)

    def lend_run(self, run: LaunchedRun) -> None:
        self.lent += [run.run.offset(index) for index in range(run.run.count)]


class Bench:
    """A group's session and its coordinator; what is launched is durable when the test says so."""

    def __init__(self, **limits: int) -> None:
        self.watcher = WatcherRecorder()
        self.session = Session(
            "$share/g/t", clean=False, limits=SessionLimits(**limits), watcher=self.watcher
        )
        self.sink = Coordinator()
        self.sender.attach(self.sink)  # type: ignore[arg-type]

    @property
    def sender(self) -> GroupSender:
        assert isinstance(self.session.sender, GroupSender)
        return self.session.sender

    def launch(self, first: int, count: int, part: JournalId = PART, size: int = 1) -> None:
        messages = [Message("t", bytes(size), 1) for _ in range(count)]
        self.sender.launch_run(part, read_run(messages, first))

    def deliver(self, offset: int, qos: int = 2) -> None:
        place = LogPosition(PART, offset)
        assert self.sender.deliver(OutboundMessage(Message("t", b"", qos), qos, False, place))

    def save(self) -> None:
        self.sender.on_saved(self.sender.dequeue_unsaved())
        self.session.check()

    def stored(self) -> list[tuple[int, int]]:
        """Packet ids and offsets, as a store has them."""
        kept = Session("$share/g/t", clean=False, limits=SessionLimits(), watcher=WatcherRecorder())
        window = decode_window(encode_window(self.session), kept, lambda _: None)
        kept.restore(window.flows, (), (), window.last_id)
        kept.check()
        flows = kept.durable_sender.flows()
        return [(number, one.place.offset) for number, one in flows if one.place is not None]


def test_runs_and_single_messages_are_lent_in_order_when_they_are_durable() -> None:
    bench = Bench()
    bench.launch(1, 3)
    bench.deliver(4)
    bench.launch(5, 2)
    before = list(bench.sink.lent)
    bench.save()
    bench.save()

    assert ([], [1, 2, 3, 4, 5, 6]) == (before, bench.sink.lent)


def test_room_is_shared_by_runs_and_single_messages() -> None:
    """What members have no room for stays in the journal."""
    bench = Bench()
    bench.sink.receive_maximum = 5
    bench.launch(1, 3)
    bench.deliver(4)
    left = bench.sender.run_room
    bench.deliver(5)

    assert (1, 0, False) == (left, bench.sender.run_room, bench.sender.has_room())
    bench.save()
    bench.sink.receive_maximum = 2
    assert 0 == bench.sender.run_room
    bench.sink.receive_maximum = 5
    bench.sender.complete_run(PART, [2, 3, 99])
    assert (2, True) == (bench.sender.run_room, bench.sender.has_room())


def test_what_is_not_durable_yet_is_bounded() -> None:
    """The rest needs no memory: of what is lent only the places are kept."""
    bench = Bench(memory=1_000)
    bench.launch(1, 2, size=1_000)
    before = bench.sender.run_room
    bench.save()

    assert (0, 98) == (before, bench.sender.run_room)


def test_messages_that_come_back_are_read_again_before_others_go_on() -> None:
    """One by one, in order; DUP goes by whether a member had them."""
    bench = Bench()
    bench.launch(1, 4)
    bench.save()
    bench.sink.lent.clear()
    bench.sender.take_apart(PART, {4: False, 3: True, 2: True, 99: True})
    assert (0, True) == (bench.sender.run_room, bench.sender.is_resending)
    for packet_id, place in bench.sender.unread():
        bench.sender.restore_packet(packet_id, Message("t", b"%d" % place.offset, 1))

    assert ([2, 3, 4], [2, 3]) == (bench.sink.lent, bench.sink.again)
    assert not bench.sender.is_resending
    assert {PART: [1]} == dict(bench.sender.open_runs())


def test_the_next_coordinator_gets_what_was_in_runs() -> None:
    """Also what was not durable; a run that is reported so late goes nowhere."""
    bench = Bench()
    bench.launch(1, 2)
    bench.deliver(3)
    bench.save()
    bench.launch(4, 2)
    unsaved = bench.sender.dequeue_unsaved()
    bench.session.detach()
    bench.sink = Coordinator()
    bench.sender.attach(bench.sink)  # type: ignore[arg-type]
    bench.sender.on_saved(unsaved)
    for packet_id, place in bench.sender.unread():
        bench.sender.restore_packet(packet_id, Message("t", b"%d" % place.offset, 1))

    assert [1, 2, 3, 4, 5] == bench.sink.lent
    assert not list(bench.sender.open_runs())


def test_runs_are_stored_under_free_packet_ids() -> None:
    """In the order of the journal, with what is answered left out."""
    bench = Bench()
    bench.launch(1, 2)
    bench.deliver(3)
    bench.launch(4, 3)
    bench.launch(9, 2)
    bench.save()
    bench.sender.complete_run(PART, [5])
    found = bench.stored()

    assert [1, 2, 3, 4, 6, 9, 10] == [offset for _, offset in found]
    assert len(found) == len({packet_id for packet_id, _ in found})
    assert LogPosition(PART, 0) in list(bench.sender.needs())


def test_long_runs_are_stored_as_they_are() -> None:
    """What is consecutive, and what is not, around a packet id that is taken."""
    bench = Bench()
    bench.deliver(1)
    bench.launch(2, 40)
    bench.launch(50, 30)
    bench.launch(100, 3, OTHER)
    bench.save()
    bench.sender.complete_run(PART, [20, *range(50, 80, 2)])
    found = bench.stored()
    expected = [*range(1, 20), *range(21, 42), *range(51, 80, 2), 100, 101, 102]

    assert expected == [offset for _, offset in found]
    assert len(found) == len({packet_id for packet_id, _ in found})


def test_qos0_waits_for_no_catch_up() -> None:
    """The members promise no order; each of 9,000 new groups kept a thousand messages."""
    bench = Bench()
    bench.session.places.fall_behind(LogPosition(PART, 5))
    entry = OutboundMessage(Message("t", b"", 0), 0, False)
    bench.session.sender.deliver_qos0_after(entry, PART)
    assert bench.sink.given == [entry]


def test_qos0_that_is_dropped_is_counted_with_the_groups() -> None:
    """A line of the log for each of 9,000 groups would take half a second."""
    bench = Bench()
    bench.session.sender.drop(0, 3)
    assert bench.sink.packet_writer.dropped == 3
    assert not [event for event in bench.watcher.events if event[0] == "dropped"]
    bench.session.sender.drop(1)
    assert [event for event in bench.watcher.events if event[0] == "dropped"]
