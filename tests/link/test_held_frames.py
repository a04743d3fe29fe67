"""Frames behind a silence are held until a heartbeat tells how long they waited."""

from __future__ import annotations

import attrs
import pytest

from tests.support.property_lists import user_property
from txbroker.core import Run
from txbroker.link.frames import FrameReader, encode_frame, packets_of
from txbroker.link.held_frames import LONGEST
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Publish
from txbroker.v1.link_pb2 import Batch, Heartbeat, LinkFrame

AHEAD = 93.0
"""By so much is the reader's clock ahead of its peer's."""

SHORT = Message("a/short", b"1", 1).expiring(1)
LONG = Message("a/long", b"2", 1, properties=user_property("k", "v")).expiring(100)
LASTING = Message("a/lasting", b"3", 1)


@attrs.define
class Bench:
    """A reader that has heard the heartbeats of the first three seconds."""

    reader: FrameReader = attrs.field(factory=FrameReader)

    def __attrs_post_init__(self) -> None:
        for second in range(3):
            assert 1 == len(self.beat(second, second))

    def hear(self, now: float, data: bytes) -> list[LinkFrame | Publish | Run]:
        """What goes on when these bytes come, at this second of the peer's clock."""
        self.reader.hear(AHEAD + now)
        return list(self.reader.read(data))

    def beat(self, now: float, at: float) -> list[LinkFrame | Publish | Run]:
        """The same of a heartbeat of that second."""
        return self.hear(now, heartbeat(at))

    def publish(self, now: float, *messages: Message) -> list[LinkFrame | Publish | Run]:
        """The same of a batch."""
        batch = LinkFrame(batch=Batch(kind=Batch.LIVE, count=len(messages)))
        return self.hear(now, encode_frame(batch) + b"".join(packets_of(messages)))


def heartbeat(at: float) -> bytes:
    return encode_frame(LinkFrame(heartbeat=Heartbeat(at=int(1000 * at))))


def intervals(frames: list[LinkFrame | Publish | Run]) -> dict[str, int | None]:
    """What is left of the interval of each message, by topic."""
    messages: list[Message | Publish] = []
    for frame in frames:
        if isinstance(frame, Run):
            messages += map(frame.message, range(frame.count))
        elif isinstance(frame, Publish):
            messages.append(frame)
    return {m.topic: Message(m.topic, b"", properties=m.properties).expiry for m in messages}


def test_messages_age_by_the_wait_of_the_heartbeat_behind_them() -> None:
    """None ages by more than it waited."""
    bench = Bench()
    assert [] == bench.publish(7.0, SHORT, LONG, LASTING)
    found = bench.beat(7.0, 4.0)
    assert {"a/short": 0, "a/long": 97, "a/lasting": None} == intervals(found)
    assert isinstance(found[0], LinkFrame) and found[0].HasField("batch")
    assert isinstance(found[-1], LinkFrame) and found[-1].HasField("heartbeat")


def test_a_fresh_heartbeat_ends_the_hold() -> None:
    """Others do not: what is behind them waited, too."""
    bench = Bench()
    bench.publish(7.0, LASTING)
    bench.beat(7.0, 3.0)
    assert [] == bench.publish(7.0, SHORT)
    assert {"a/short": 1} == intervals(bench.beat(7.1, 7.0))
    assert {"a/short": 1} == intervals(bench.publish(7.2, SHORT))


def test_a_hold_ends_with_time() -> None:
    """The clock of a machine that was halted may have stood still: its heartbeats seem late."""
    bench = Bench()
    assert [] == bench.publish(12.0, SHORT)
    found = bench.beat(12.1 + LONGEST, 3.0)
    assert {"a/short": 1} == intervals(found)
    assert {"a/short": 1} == intervals(bench.publish(14.5, SHORT))


def test_an_earlier_version_says_no_time() -> None:
    """Its heartbeats let messages go on as they are."""
    bench = Bench()
    assert [] == bench.publish(7.0, SHORT)
    found = bench.hear(7.0, encode_frame(LinkFrame(heartbeat=Heartbeat())))
    assert {"a/short": 1} == intervals(found)


@pytest.mark.parametrize("gap", [0.0, 1.5])
def test_nothing_is_held_behind_a_usual_pause(gap: float) -> None:
    """Heartbeats are a second apart."""
    bench = Bench()
    assert {"a/short": 1} == intervals(bench.publish(2.0 + gap, SHORT))


def test_no_header_is_known_behind_a_silence() -> None:
    """A batch with a known header would pass the held frames."""
    bench = Bench()
    reader = bench.reader.packet_reader
    reader.is_open = True
    bench.publish(2.0, Message("a", b"1"))
    reader.know("", "", 1)
    bench.publish(7.0, SHORT)
    data = encode_frame(LinkFrame(batch=Batch(kind=Batch.LIVE, count=1))) + SHORT.link_packet
    peek = getattr(reader, "peek", None)
    assert peek is None or peek(data) is None
