"""What becomes of packet writers that a run has filled, and of what is read later."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest

from tests.mqtt.session.test_group_sender import Coordinator
from tests.support.clock import Clock
from tests.support.recorders import WatcherRecorder
from tests.support.runs import read_run
from txbroker.core import HIGH_MARK, Router
from txbroker.edge.sessions import delivery
from txbroker.edge.sessions.delivery import Delivery
from txbroker.model.log_position import JournalId
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
    tested = Delivery(none, none, router, now=clock.now)
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
    tested = Delivery(none, none, Router(lambda: None), now=Clock().now)
    tested.deliver_left(run, PART, [(session, 0), (session, 1)])
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
    tested = Delivery(none, none, Router(lambda: None), now=Clock().now)
    run = read_run([Message("t", b"", 1)] * 5, 1)
    tested.deliver_left(run, PART, [(session, index) for index in range(5)])

    assert {PART: [1, 2, 3]} == dict(session.durable_sender.open_runs())
    assert (3, 3) == (session.places.behind[PART].offset, session.places.taken[PART])
