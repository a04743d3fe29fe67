"""Messages that wait at their owner for a slow edge's credit age meanwhile."""

from __future__ import annotations

import pytest

from tests.core.cores import Client
from tests.support.wire5 import MESSAGE_EXPIRY, publish
from txbroker import core
from txbroker.core import Run
from txbroker.journal.zone_journal import Record
from txbroker.link import delivery_sender
from txbroker.link.frames import FrameReader
from txbroker.link.queue_ages import QueueAges
from txbroker.mqtt.wire.message import Message
from txbroker.v1.link_pb2 import LinkFrame

from .test_delivery_sender import Lines, messages_in

SECOND = 1_000_000


def interval(message: Message) -> int | None:
    """What is left of a message's interval."""
    return Message("", b"", properties=message.properties).expiry


@pytest.mark.parametrize("qos", [0, 1])
def test_the_wait_for_credit_is_taken_off(monkeypatch: pytest.MonkeyPatch, qos: int) -> None:
    """What left before is as it was; an interval that has passed is 0, which no client gets."""
    monkeypatch.setattr(delivery_sender, "WINDOW", 100)
    lines = Lines()
    lines.deliveries.set_properties(True)
    lines.authority.retained.now = lambda: now
    now = 0

    def read() -> dict[str, int | None]:
        out: list[bytes] = []
        lines.deliveries.write_to(out)
        items = FrameReader(1 << 20).read(b"".join(out))
        found = [m for item in items if not isinstance(item, LinkFrame) for m in messages_in(item)]
        return {message.topic: interval(message) for message in found}

    for topic, expiry in (("first", 1), ("short", 1), ("long", 100), ("never", None)):
        message = Message(topic, b"x" * 100, qos)
        lines.authority.publish(message if expiry is None else message.expiring(expiry))
        if topic == "first":
            assert {"first": 1} == read()
    now = 4 * SECOND
    assert {} == read()
    lines.deliveries.on_consumed(1000)
    assert {"short": 0, "long": 96, "never": None} == read()
    lines.deliveries.check()


def test_a_run_is_split_where_it_waited() -> None:
    """Its messages have their offsets; for less than a second a run goes as it is."""
    now = 0
    ages = QueueAges(lambda: now)
    router = core.Router(lambda: None)
    client = Client(core, router, "me", level=5)
    client.step(publish("a", b"1", properties=[(MESSAGE_EXPIRY, 9)]) + publish("b", b"2"))
    run = client.packet_reader.qos0
    assert isinstance(run, Run)
    run.first = 7
    ages.note(run)
    now = SECOND - 1
    assert [run] == ages.take([run])
    ages.note(run)
    now += 3 * SECOND
    records = ages.take([run])
    assert all(isinstance(one, Record) for one in records)
    assert [(7, "a", 6), (8, "b", None)] == [
        (one.offset, one.message.topic, interval(one.message))
        for one in records
        if isinstance(one, Record)
    ]
    assert [run] == ages.take([run])
