"""Properties on a link between nodes of which one may not read them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.link.link_bench import Bench
from tests.support.pair import Client, Link, receive
from tests.support.property_lists import user_property
from txbroker.edge.routing.stored_outbox import OutboxEntry
from txbroker.link.frames import FrameReader, encode_frame
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Publish
from txbroker.v1.link_pb2 import LinkFrame


def rewrite(pieces: bytearray, change: Callable[[LinkFrame], None]) -> bytes:
    """What is on its way, as a node of another version says it."""
    reader = FrameReader()
    frames = [one for one in reader.read(bytes(pieces)) if isinstance(one, LinkFrame)]
    pieces.clear()
    for frame in frames:
        change(frame)
    return b"".join(map(encode_frame, frames))


def open_among(bench: Bench, older: str) -> None:
    """A link on which one end does not say that it reads properties."""

    def forget(frame: LinkFrame) -> None:
        frame.hello.reads_properties = False

    def forget_too(frame: LinkFrame) -> None:
        if frame.HasField("welcome"):
            frame.welcome.reads_properties = False

    bench.link.cut()
    bench.link = link = Link(bench.edge, bench.route, bench.host)
    link.edge_end.start(b"token")
    if older == "edge":
        link.up.extend(rewrite(link.up, forget))
    hello = bytes(link.up)
    link.up.clear()
    receive(link.owner_end, hello)
    if older == "owner":
        link.down.extend(rewrite(link.down, forget_too))
    link.pump()


class StreamUserRecorder:
    """An outbox that nothing is refused of."""

    def __init__(self) -> None:
        self.taken = 0

    def on_accepted(self, sequence: int) -> None:
        self.taken = sequence

    def on_refused(self, sequence: int, cut: ZoneCut | None, *, retry: bool) -> None:
        raise AssertionError(sequence)


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("older", ["none", "edge", "owner"])
def test_properties_pass_to_nodes_that_read_them(older: str, qos: int) -> None:
    """Others would end the link at once, and again when it is sent anew."""
    bench = Bench()
    open_among(bench, older)
    client = Client(bench.edge, "c")
    client.subscribe(("#", 1))
    bench.link.pump()
    properties = user_property("name", "value") + b"\x01\x01"
    packet_id = 90 if qos else None
    said = Publish("up", b"1", qos, True, False, packet_id, properties=properties)
    bench.edge.clients.publish(client.session, said)
    bench.link.pump()
    retained = bench.authority.retained.get("up")
    assert retained is not None
    assert (b"1", b"" if older == "owner" else properties) == (
        retained.payload,
        retained.properties,
    )

    waited = Message("outbox", b"0", 1, True, properties=properties)
    stream = bench.link.edge_end.open_stream(("edge", 1, "", 99), StreamUserRecorder())
    stream.send([OutboxEntry(1, waited, None)])
    bench.link.pump()
    drained = bench.authority.retained.get("outbox")
    assert drained is not None and drained.properties == retained.properties

    before = len(bench.link.went_down)
    bench.authority.publish(Message("down", b"2", qos, properties=properties))
    bench.link.pump()
    assert [b"1", b"0", b"2"] == client.payloads
    assert (older != "edge") is (properties in bench.link.went_down[before:])
    assert not bench.link.closed
