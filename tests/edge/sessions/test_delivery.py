"""What becomes of packet writers that a run has filled, and of what is read later."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest

from tests.mqtt.session.test_group_sender import Coordinator
from tests.support import wire
from tests.support.clock import Clock
from tests.support.recorders import SinkRecorder, WatcherRecorder
from tests.support.runs import read_run
from txbroker.core import HIGH_MARK, Router
from txbroker.edge.sessions import delivery
from txbroker.edge.sessions.delivery import Delivery
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.cursor import Cursor, Subscription, WaitingRecords
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import SessionLimits
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.subscription_options import AS_PUBLISHED, NO_LOCAL


@attrs.define
class Connection:
    """Takes what is in its packet writer, which takes it some time."""

    clock: Clock
    packet_writer: Any
    takes: float
    flushes: int = 0

    def flush(self) -> None:
        """What much of a run does to a connection."""
        self.packet_writer.dequeue()
        self.clock.advance(self.takes)
        self.flushes += 1


def flushes(takes: float, count: int = 20) -> list[int]:
    """How often each of so many full ones was written after one run; the next run is after that."""
    clock = Clock()
    router = Router(lambda: None)
    none: Any = None
    tested = Delivery(none, none, router, now=clock.now, again=lambda: None)
    connections = []
    for _ in range(count):
        packet_writer = router.make_packet_writer()
        packet_writer.connection = Connection(clock, packet_writer, takes)
        packet_writer.send(bytes(HIGH_MARK))
        connections.append(packet_writer.connection)
    tested.deliver_left(none, JournalId("", 1), [])
    return [connection.flushes for connection in connections]


def test_those_that_a_run_has_filled_are_written_before_the_next() -> None:
    """Whoever reads fast loses no QoS 0."""
    assert [1] * 20 == flushes(0.0)


def test_a_crowd_that_takes_long_is_written_in_turns_of_its_own() -> None:
    """32 that read nothing took 170 ms, in which nobody else was served."""
    assert [1, 1] + [0] * 18 == flushes(0.6 * delivery.FULL_FOR)


PART = JournalId("", 1)


class UnreadRun:
    """Messages of QoS 1 that nobody may decode."""

    qos, count, size = 1, 2, 200

    def message(self, index: int) -> Any:
        """What must not be asked for."""
        raise AssertionError("a message that is read later was decoded")


class Behind:
    """A session that is behind in `PART`, with one subscription of these options."""

    is_behind, clean, client_id = True, True, "reader"
    sender = SimpleNamespace(takes_runs=False)

    def __init__(self, options: int) -> None:
        cursor = Cursor(PART, 0)
        cursor.waiting = WaitingRecords(seen=0, end=0)
        self.places = SimpleNamespace(behind={PART: cursor})
        self.subscriptions = {"#": Subscription("#", 1, options=options)}
        self.waiting = cursor.waiting


def deliver_later(options: int) -> WaitingRecords:
    """What waits for a session with these options after a run that it reads later."""
    none: Any = None
    run: Any = UnreadRun()
    session: Any = Behind(options)
    tested = Delivery(none, none, Router(lambda: None), now=Clock().now, again=lambda: None)
    tested.deliver_left(run, PART, [(session, range(2))])
    return session.waiting


@pytest.mark.parametrize("options", [0, AS_PUBLISHED])
def test_what_is_read_later_is_not_decoded(options: int) -> None:
    """Groups ask for the RETAIN flag of the publisher, which the journal has."""
    waiting = deliver_later(options)

    assert (2, 200) == (waiting.messages, waiting.size)


def test_what_may_be_the_clients_own_is_decoded() -> None:
    """Its own messages are not counted."""
    with pytest.raises(AssertionError, match="was decoded"):
        deliver_later(NO_LOCAL)


def test_a_group_takes_live_messages_in_one_run() -> None:
    """As many as its members have room for; the others stay in the journal."""
    none: Any = None
    watcher, sink = cast(Any, WatcherRecorder()), cast(Any, Coordinator(receive_maximum=3))
    session = Session("$share/g/#", clean=False, limits=SessionLimits(), watcher=watcher)
    session.add(Subscription("#", 2, options=AS_PUBLISHED))
    session.sender.attach(sink)
    tested = Delivery(none, none, Router(lambda: None), now=Clock().now, again=lambda: None)
    run = read_run([Message("t", b"", 1)] * 5, 1)
    tested.deliver_left(run, PART, [(session, range(5))])

    assert {PART: [1, 2, 3]} == dict(session.durable_sender.open_runs())
    assert (3, 3) == (session.places.behind[PART].offset, session.places.taken[PART])


@pytest.mark.parametrize(("ahead", "in_runs", "in_flight"), [(4, [5, 6, 7], []), (5, [], [6, 7])])
def test_a_group_that_has_caught_up_takes_what_follows_in_a_run(
    ahead: int, in_runs: list[int], in_flight: list[int]
) -> None:
    """One by one it gets what the stream brings along with what the group has read."""
    none: Any = None
    watcher, sink = cast(Any, WatcherRecorder()), cast(Any, Coordinator(receive_maximum=9))
    session = Session("$share/g/#", clean=False, limits=SessionLimits(), watcher=watcher)
    router = Router(lambda: None)
    target = router.make_target(session, Subscription("#", 2), router.make_packet_writer())
    router.targets.add("#", "g", target)
    session.add(target.subscription)
    session.sender.attach(sink)
    session.places.get_ahead(PART, ahead)
    tested = Delivery(none, none, router, now=Clock().now, again=lambda: None)
    run = read_run([Message("t", b"", 1)] * 3, 5)
    tested.deliver_left(run, PART, [(session, range(3))])

    assert in_runs == [o for _, offsets in session.durable_sender.open_runs() for o in offsets]
    flights = [entry.place for _, entry in session.durable_sender.flows()]
    assert in_flight == [place.offset for place in flights if place is not None]
    assert (7, {}) == (session.places.taken[PART], dict(session.places.ahead))


class Ticking(Clock):
    """Time that passes with each look at it: a quarter of what QoS 0 may take in a turn."""

    def now(self) -> float:
        """Seconds."""
        self.advance(delivery.LONGEST / 4)
        return super().now()


class Crowd:
    """Sessions that get a message with their subscription identifier, which the core leaves."""

    def __init__(self, count: int, *, qos: int) -> None:
        self.is_due = False
        self.router = Router(lambda: None)
        none: Any = None
        self.tested = Delivery(none, none, self.router, now=Ticking().now, again=self._again)
        self.watcher = cast(Any, WatcherRecorder())
        self.sinks: list[SinkRecorder] = []
        self.sessions: list[Session] = []
        for number in range(count):
            session = Session(f"{number}", clean=True, limits=SessionLimits(), watcher=self.watcher)
            sink = SinkRecorder(self.router)
            sink.packet_writer.level = 5
            session.add(Subscription("t", qos, identifier=7))
            session.sender.attach(sink)
            self.tested.listen(session, session.subscriptions["t"])
            self.sinks.append(sink)
            self.sessions.append(session)

    def deliver(self, run: Any) -> None:
        """Deliver a run to all of them."""
        self.tested.deliver_left(run, PART, [(s, range(run.count)) for s in self.sessions])

    def got(self) -> list[list[bytes]]:
        """The payloads, of one byte, that each has got by now."""
        return [[one.payload[-1:] for one in cast(Any, sink.events)] for sink in self.sinks]

    def turn(self) -> bool:
        """Do what was put off, in another turn; return True if more is left."""
        self.is_due = False
        self.tested.work()
        return self.is_due

    def _again(self) -> None:
        self.is_due = True


def run_of_qos0(payloads: list[bytes]) -> Any:
    """What a client sends."""
    router = Router(lambda: None)
    reader = router.make_packet_reader(router.make_packet_writer(), 1 << 20)
    reader.open(object(), "sender", None, clean=True, level=4)
    reader.feed(b"".join(wire.publish("t", payload) for payload in payloads))
    reader.step()
    return reader.qos0


def test_qos0_for_a_crowd_waits_for_later_turns() -> None:
    """All get all of it in its order, and no turn is long: 4,096 filters each took 25 ms."""
    crowd = Crowd(20, qos=0)
    payloads = [b"1", b"2", b"3"]
    crowd.deliver(run_of_qos0(payloads[:2]))
    assert 1 < sum(map(len, crowd.got())) < 20
    crowd.deliver(run_of_qos0(payloads[2:]))
    turns = 1
    while crowd.turn():
        turns += 1
    assert turns > 3
    assert crowd.got() == [payloads] * 20


def test_qos0_that_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a flood for a crowd fills the memory; each session counts what it misses."""
    monkeypatch.setattr(delivery, "MOST_LATE", 4)
    crowd = Crowd(20, qos=0)
    crowd.deliver(run_of_qos0([b"1"]))
    given = sum(map(len, crowd.got()))
    while crowd.turn():
        pass
    assert sum(map(len, crowd.got())) == given + 4
    assert sum(s.sender.dropped for s in crowd.sessions) == 20 - given - 4
    crowd.deliver(run_of_qos0([b"2"]))
    assert any(b"2" in got for got in crowd.got())


def test_qos1_for_a_crowd_is_read_from_the_journal() -> None:
    """The sessions that have had no turn fall behind, and ask for it."""
    crowd = Crowd(20, qos=1)
    crowd.deliver(read_run([Message("t", b"1", 1)], 5))
    late = [session for session in crowd.sessions if session.is_behind]
    assert 10 < len(late) < 20
    assert {4} == {session.places.behind[PART].offset for session in late}
    assert crowd.watcher.events.count(("room",)) == len(late)
    assert sum(map(len, crowd.got())) == 20 - len(late)


def test_a_session_that_gets_qos0_of_it_misses_nothing() -> None:
    """The journal is read for QoS 1 and 2 alone."""
    crowd = Crowd(20, qos=0)
    crowd.deliver(read_run([Message("t", b"1", 1)], 5))
    assert not any(session.is_behind for session in crowd.sessions)
    while crowd.turn():
        pass
    assert crowd.got() == [[b"1"]] * 20


@pytest.mark.parametrize("qos", [0, 1])
def test_a_single_message_for_a_crowd_takes_no_long_turn(qos: int) -> None:
    """A retained one is in no run."""
    crowd = Crowd(20, qos=qos)
    message = Message("t", b"1", qos, retain=True)
    crowd.tested.deliver(LogPosition(PART, 5 if qos else 0), message)
    assert sum(map(len, crowd.got())) < 20
    late = [session for session in crowd.sessions if session.is_behind]
    assert bool(late) == bool(qos)
    while crowd.turn():
        pass
    assert sum(map(len, crowd.got())) == 20 - len(late)


def test_a_session_that_is_behind_is_left_alone_when_time_is_up() -> None:
    """It reads what comes; to count it, and to wake it, would take each of thousands a turn."""
    crowd = Crowd(20, qos=1)
    crowd.deliver(read_run([Message("t", b"1", 1)], 5))
    late = [session for session in crowd.sessions if session.is_behind]
    for session in late:
        session.places.behind[PART].waiting = WaitingRecords(seen=0, end=0)
    crowd.watcher.events.clear()
    again = read_run([Message("t", b"2", 1)], 6)
    crowd.tested.deliver_left(again, PART, [(session, range(1)) for session in late])
    assert [None] * len(late) == [session.places.behind[PART].waiting for session in late]
    assert {4} == {session.places.behind[PART].offset for session in late}
    assert not [event for event in crowd.watcher.events if event == ("room",)]


def a_crowd_behind() -> tuple[Crowd, list[Session]]:
    """Twenty sessions of which most have fallen behind, as their turn was over."""
    crowd = Crowd(20, qos=1)
    crowd.deliver(read_run([Message("t", b"1", 1)], 5))
    return crowd, [session for session in crowd.sessions if session.is_behind]


def passed_by(crowd: Crowd, part: JournalId = PART) -> list[Session]:
    """The sessions that the core does not name for a message of QoS 1."""
    left = crowd.router.fan_out(read_run([Message("t", b"2", 1)], 6), part)
    return [s for s in crowd.sessions if s not in dict(left)]


def test_what_a_crowd_reads_later_passes_it_by() -> None:
    """Each message for 9,000 groups that were behind took 30 ms of a turn."""
    crowd, late = a_crowd_behind()
    assert passed_by(crowd) == late
    assert passed_by(crowd, JournalId("", 2)) == []
    untouched = WaitingRecords(seen=0, end=0)
    for session in late:
        session.places.behind[PART].waiting = untouched
    crowd.tested.deliver(LogPosition(PART, 6), Message("t", b"2", 1))
    assert {4} == {session.places.behind[PART].offset for session in late}
    assert all(session.places.behind[PART].waiting is untouched for session in late)
    assert 0 == untouched.messages


def end(session: Session) -> None:
    """It has read all."""
    session.finish_part(session.places.behind[PART])


def subscribe_anew(session: Session) -> None:
    """A message that comes before SUBACK may be for the new subscription alone."""
    session.start_subscribing()
    assert session.sink is not None
    session.pass_by(PART)


def count(session: Session) -> None:
    """What is not counted could not be dropped beyond `session_limits`."""
    session.places.count(session.places.behind[PART], 6)


def add(session: Session) -> None:
    """It may want messages at QoS 0, for which no journal is read."""
    session.add(Subscription("t/#", 0))


@pytest.mark.parametrize("change", [end, subscribe_anew, count, add])
def test_a_session_whose_state_changes_is_passed_by_no_more(
    change: Callable[[Session], None],
) -> None:
    crowd, late = a_crowd_behind()
    change(late[0])
    assert passed_by(crowd) == late[1:]


def test_a_session_that_wants_qos0_too_is_not_passed_by() -> None:
    """The journal is read for QoS 1 and 2 alone."""
    crowd = Crowd(20, qos=1)
    for session in crowd.sessions:
        session.add(Subscription("t/#", 0))
    crowd.deliver(read_run([Message("t", b"1", 1)], 5))
    assert any(session.is_behind for session in crowd.sessions)
    assert passed_by(crowd) == []


def test_a_crowd_that_is_behind_is_counted_for_a_short_time() -> None:
    """Those that are current may take five times as long, as these lose more by a delay."""
    crowd = Crowd(20, qos=1)
    for session in crowd.sessions:
        session.places.fall_behind(LogPosition(PART, 3))
        session.places.count(session.places.behind[PART], 2)
    crowd.deliver(read_run([Message("t", b"1", 1)], 5))
    assert 0 < len(passed_by(crowd)) < 20
    counted = [s.places.behind[PART].waiting for s in crowd.sessions if s not in passed_by(crowd)]
    assert len(counted) <= 4 and None not in counted


def test_a_new_group_holds_no_qos0() -> None:
    """No member has a SUBACK yet; of 9,000 groups the messages held filled the memory."""
    none: Any = None
    watcher, sink = cast(Any, WatcherRecorder()), cast(Any, Coordinator())
    router = Router(lambda: None)
    session = Session("$share/g/t", clean=False, limits=SessionLimits(), watcher=watcher)
    subscription = Subscription("t", 2, options=AS_PUBLISHED)
    session.add(subscription)
    sink.packet_writer = router.make_packet_writer()
    session.sender.attach(sink)
    tested = Delivery(none, none, router, now=Clock().now, again=lambda: None)
    tested.listen(session, subscription)
    subscription.collect(is_fresh=True)
    tested.deliver_left(run_of_qos0([b"1"]), PART, [(session, range(1))])
    assert [] == subscription.held
