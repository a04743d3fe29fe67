"""Messages that go to the client of a session."""

from __future__ import annotations

import pytest

from tests.mqtt.session.session_bench import PART, Bench, attached, sent
from tests.support.checking import checking
from txbroker.model.log_position import LogPosition
from txbroker.mqtt.session import window as module
from txbroker.mqtt.session.cursor import Cursor
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import OutboundMessage
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Publish, Pubrel
from txbroker.mqtt.wire.return_codes import ProtocolViolation

checked = checking(Session)


# -- to the client


def test_qos0_leaves_at_once_or_never() -> None:
    """Without a connection it is nothing; without room in the output it is dropped, counted."""
    bench = Bench()
    bench.say("away")
    before = bench.attach()
    bench.say("1")
    bench.say("2", retain=True)
    bench.sink.room = False
    bench.say("no room")

    assert [] == before
    assert [Publish("t", b"1"), Publish("t", b"2", 0, True)] == bench.take()
    assert ([("dropped", 0, "first")], 1) == (bench.watcher.events, bench.session.sender.dropped)


def test_window_bounds_what_is_unacknowledged() -> None:
    """The next one leaves when one was acknowledged, in order [MQTT-4.6.0-1]."""
    bench = attached(inflight=2)
    bench.deliver("1", "2", "3", "4")
    first = bench.take()
    bench.session.sender.on_pubacks((2,))

    assert [sent("1", 1), sent("2", 2)] == first
    assert [sent("3", 3)] == bench.take()
    assert bench.session.sender.queued == 1


def test_many_acknowledgements_at_once() -> None:
    """The window is filled again; what is acknowledged twice, or was never sent, is nothing."""
    bench = attached(inflight=3)
    bench.deliver("1", "2", "3", "4", "5", "6")
    bench.take()
    bench.session.sender.on_pubacks((1, 9, 2, 1, 4))

    assert [sent("4", 4), sent("5", 5)] == bench.take()
    assert bench.session.sender.queued == 1


def test_window_is_bounded_in_bytes() -> None:
    """One message is always let through, however large."""
    size = Message("t", b"x" * 100).size
    bench = attached(memory=2 * size)
    bench.deliver("x" * 100, "y" * 100, "z" * 100)
    first = len(bench.take())
    bench.session.sender.on_pubacks((1,))
    second = len(bench.take())
    bench.session.sender.on_pubacks((2,))
    bench.session.sender.on_pubacks((3,))
    bench.deliver("x" * 10_000, "queued")

    assert (2, 1) == (first, second)
    assert [sent("x" * 10_000, 4)] == bench.take()


def test_messages_wait_for_room_in_the_output() -> None:
    """And go when the output has drained."""
    bench = attached()
    bench.sink.room = False
    bench.deliver("1", "2")
    before = bench.take()
    bench.sink.room = True
    bench.session.sender.pump()

    assert ([], [sent("1", 1), sent("2", 2)]) == (before, bench.take())


def test_nothing_overtakes_what_is_queued() -> None:
    """Room alone does not let a new message go first."""
    bench = attached()
    bench.sink.room = False
    bench.deliver("1")
    bench.sink.room = True
    bench.deliver("2")
    bench.session.sender.pump()

    assert [sent("1", 1), sent("2", 2)] == bench.take()


def test_qos2_goes_through_all_its_steps() -> None:
    """PUBREC is answered by PUBREL, also a second time; PUBCOMP ends it."""
    bench = attached(inflight=1)
    bench.deliver("1", "2", qos=2)
    bench.session.sender.on_pubrec(1)
    before = bench.take()
    bench.session.sender.on_pubrec(1)
    before += bench.take()
    bench.session.sender.on_pubcomp(1)

    assert [sent("1", 1, 2), Pubrel(1), Pubrel(1)] == before
    assert [sent("2", 2, 2)] == bench.take()


@pytest.mark.parametrize("clean", [False, True])
def test_acknowledgements_of_the_wrong_kind_end_the_connection(clean: bool) -> None:
    """Ignored, they would leave the message in the window for ever [MQTT-4.8.0-1]."""
    bench = attached(clean=clean, lazy=clean)
    bench.deliver("1", qos=1)
    bench.deliver("2", qos=2)
    sender = bench.session.sender
    for wrong in (
        lambda: sender.on_pubrec(1),
        lambda: sender.on_pubcomp(1),
        lambda: sender.on_pubacks((2,)),
        lambda: sender.on_pubcomp(2),  # too early: no PUBREC yet
    ):
        with pytest.raises(ProtocolViolation, match="not what its message wants"):
            wrong()
    sender.on_pubrec(2)
    with pytest.raises(ProtocolViolation):
        sender.on_pubacks((2,))  # an answer to PUBREL
    sender.on_pubacks((1,))
    sender.on_pubcomp(2)
    assert bench.session.sender.queued == 0


def test_unknown_acknowledgements_are_harmless() -> None:
    """PUBREC is answered all the same: the client waits for it."""
    bench = attached()
    bench.session.sender.on_pubacks((9,))
    bench.session.sender.on_pubrec(9)
    bench.session.sender.on_pubcomp(9)

    assert [Pubrel(9)] == bench.take()


# -- what it has no room for


def test_what_is_queued_is_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is not taken: whoever delivers comes again."""
    monkeypatch.setattr(module, "QUEUE_MESSAGES", 2)
    bench = attached(inflight=1)

    assert [True, True, True, False, False] == bench.deliver("1", "2", "3", "4", "5")
    assert 2 == bench.session.sender.queued
    assert 0 == bench.session.sender.dropped


def test_what_is_queued_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second limit."""
    monkeypatch.setattr(module, "QUEUE_BYTES", 2 * Message("t", b"1").size)
    bench = attached(inflight=1)

    assert [True, True, True, False] == bench.deliver("1", "2", "3", "4")


def test_nothing_is_taken_for_a_client_that_is_away() -> None:
    """But what cannot be read again waits, and comes first."""
    bench = Bench()
    bench.deliver("retained", retain=True)

    assert [False] == bench.deliver("live")
    assert [Publish("t", b"retained", 1, True, False, 1)] == bench.attach()


def test_room_is_told_when_half_of_the_queue_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of a session that is behind."""
    monkeypatch.setattr(module, "QUEUE_MESSAGES", 4)
    bench = attached(inflight=1)
    bench.deliver("1", "2", "3", "4", "5")
    bench.session.sender.on_pubacks((1,))
    bench.take()
    bench.session.places.fall_behind(LogPosition(PART, 6))
    heard = []
    for packet_id in (2, 3, 4):
        bench.session.sender.on_pubacks((packet_id,))
        bench.take()
        heard.append(bench.watcher.events.count(("room",)))

    assert [0, 1, 2] == heard


def test_client_that_leaves_has_its_queue_left_in_the_journal() -> None:
    """From the first one on that was not sent; what has no place stays."""
    bench = attached(inflight=1)
    bench.deliver("1", "2")
    bench.deliver("retained", retain=True)
    bench.deliver("4")
    bench.session.detach()

    assert [(PART, 1)] == [(c.part, c.offset) for c in bench.session.places.behind.values()]
    assert 1 == bench.session.sender.queued


def test_session_falls_behind_at_the_first_message_that_it_misses() -> None:
    """Later ones change nothing, whatever their order."""
    bench = Bench()
    for offset in (7, 9, 5):
        bench.session.places.fall_behind(LogPosition(PART, offset))

    assert [4] == [cursor.offset for cursor in bench.session.places.behind.values()]


def test_session_that_ends_sends_nothing_more() -> None:
    """Its connection may be open still, with live messages on their way."""
    bench = attached()
    bench.session.update_live()
    assert bench.sink.packet_writer.is_direct
    bench.session.close()
    bench.say("late")

    assert not bench.sink.packet_writer.is_direct
    assert ([], [True]) == (bench.take(), bench.deliver("later"))
    assert [] == bench.take()


def test_session_that_ends_drops_what_it_had() -> None:
    """Nothing is waited for any more."""
    bench = attached(inflight=1)
    bench.deliver("1", "2", "3")
    bench.session.close()

    assert (0, [], {}) == (
        bench.session.sender.queued,
        list(bench.session.sender.flows()),
        bench.session.places.behind,
    )


# -- what is durable first (rule 17)


def test_publish_leaves_when_its_flow_is_durable() -> None:
    """Each with the identifier that was saved for it."""
    bench = attached(lazy=True)
    bench.deliver("1", "2", qos=2)
    before = bench.take()
    bench.session.sender.on_saved([1])
    first = bench.take()
    bench.session.sender.on_saved([1, 2])

    assert ([], [sent("1", 1, 2)], [sent("2", 2, 2)]) == (before, first, bench.take())
    assert bench.watcher.events.count(("save", "urgent")) == 2


def test_pubrel_leaves_when_it_is_durable() -> None:
    """After that a repeated PUBREC is answered at once."""
    bench = attached()
    bench.deliver("1", qos=2)
    bench.take()
    bench.lazy = True
    bench.session.sender.on_pubrec(1)
    before = bench.take()
    bench.save()
    bench.lazy = False

    assert ([], [Pubrel(1)]) == (before, bench.take())
    bench.session.sender.on_pubrec(1)
    assert [Pubrel(1)] == bench.take()


def test_clean_session_waits_for_nothing() -> None:
    """It ends with its connection: nothing of it is kept."""
    bench = attached(clean=True, lazy=True)
    bench.deliver("1", qos=2)
    bench.session.sender.on_pubrec(1)
    bench.session.sender.on_pubcomp(1)
    bench.session.places.fall_behind(LogPosition(PART, 2))

    assert [sent("1", 1, 2), Pubrel(1)] == bench.take()
    assert [] == [event for event in bench.watcher.events if event[0] == "save"]


def test_what_was_not_durable_when_the_client_left_is_sent_as_new() -> None:
    """Nobody has seen it yet, so it has no DUP [MQTT-3.3.1-1]."""
    bench = attached(lazy=True)
    bench.deliver("1", "2")
    bench.session.sender.on_saved([1])
    bench.take()
    bench.session.detach()
    bench.session.sender.on_saved([2])

    assert [sent("1", 1, dup=True), sent("2", 2)] == bench.attach()


# -- reconnecting


def test_what_is_in_flight_is_sent_again_in_its_order() -> None:
    """PUBLISH with DUP and its identifier, PUBREL where PUBREC had come; then what is queued."""
    bench = attached(inflight=4)
    bench.deliver("1")
    bench.deliver("2", "3", qos=2)
    bench.deliver("4", "5")
    bench.session.sender.on_pubrec(2)
    bench.session.sender.on_pubacks((1,))
    bench.take()
    bench.session.detach()
    bench.deliver("6", retain=True)
    again = bench.attach()

    assert [
        Pubrel(2),
        sent("3", 3, 2, dup=True),
        sent("4", 4, dup=True),
        sent("5", 5, dup=True),
    ] == again
    bench.session.sender.on_pubcomp(2)
    assert [Publish("t", b"6", 1, True, False, 6)] == bench.take()


EXPIRED = b"\x02\0\0\0\0"


@pytest.mark.parametrize("qos", [1, 2])
def test_message_that_was_sent_does_not_expire(qos: int) -> None:
    """The client may have begun with it [MQTT-4.3.3-7]: it comes again with its identifier."""
    bench = attached()
    bench.deliver("1", "2", qos=qos)
    bench.take()
    bench.session.detach()
    bench.session.sender.unload()

    assert [] == bench.attach()
    for packet_id, _ in bench.session.sender.unread():
        payload = b"%d" % packet_id
        again = Message("t", payload, qos, properties=EXPIRED)
        bench.session.sender.restore_packet(packet_id, again)
    assert [sent("1", 1, qos, dup=True), sent("2", 2, qos, dup=True)] == bench.take()


def test_interval_runs_while_a_message_is_in_flight() -> None:
    """A message that is sent again says what is left, however often it is sent [MQTT-3.3.2-6]."""
    bench = attached()
    clock = [1000.0]
    bench.watcher.now = lambda: clock[0]  # type: ignore[method-assign]
    message = Message("t", b"1", 1, properties=b"\x02\0\0\0\x64")
    entry = OutboundMessage(message, 1, False, LogPosition(PART, 1))
    bench.session.sender.deliver(entry)
    bench.take()
    for passed, left in ((30.5, 70), (20.0, 50), (100.0, 0)):
        clock[0] += passed
        assert [sent("1", 1, dup=True)] == bench.attach()
        assert entry.message is not None and entry.message.expiry == left
    assert message.expiry == 100


def test_message_that_was_never_sent_expires() -> None:
    """Its identifier was taken, and is free again."""
    bench = attached(lazy=True)
    bench.deliver("1", qos=2)
    bench.session.detach()
    bench.session.sender.unload()

    assert [] == bench.attach()
    expired = Message("t", b"1", 2, properties=EXPIRED)
    bench.session.sender.restore_packet(1, expired)
    bench.save()
    assert [] == bench.take()
    assert not dict(bench.session.sender.flows())


def test_retain_flag_is_kept_when_sent_again() -> None:
    """The same packet, but for DUP."""
    bench = attached()
    bench.deliver("1", retain=True)

    assert [Publish("t", b"1", 1, True, True, 1)] == bench.attach()


def test_packet_identifiers_wrap_and_leave_out_those_in_use() -> None:
    """1 to 65,535, never one that is in flight [MQTT-2.3.1-4]."""
    bench = attached(inflight=3)
    bench.deliver("stuck", qos=2)
    bench.session.sender.last_id = module.LAST_PACKET_ID - 1
    bench.deliver("last", "first again")

    packets = bench.take()
    assert [1, 65_535, 2] == [p.packet_id for p in packets if isinstance(p, Publish)]


# -- live


def test_live_messages_never_pass_those_that_come_from_the_journal() -> None:
    """Each thing that a session still waits for shuts the way of live ones."""
    bench = attached()
    session = bench.session
    live = [session.is_live(PART)]
    session.start_subscribing()
    live.append(session.is_live(PART))
    session.end_subscribing()
    live.append(session.is_live(PART))
    session.places.add(Cursor(PART, 7))
    live.append(session.is_live(PART))
    session.places.end(PART)
    live.append(session.is_live(PART))
    bench.deliver("1")
    window = session.durable_sender.window
    assert window is not None
    window.late.add(PART)
    next(iter(window.flights.values())).message = None  # in flight, and cannot be read
    live.append(session.is_live(PART))
    window.late.clear()
    live.append(session.is_live(PART))
    session.detach()
    live.append(session.is_live(PART))

    assert [True, False, True, False, True, False, True, False] == live
