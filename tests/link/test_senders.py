"""What goes over a link past its ends: publishes and deliveries of QoS 0 behind known headers."""

from __future__ import annotations

import socket
from select import EPOLLIN, epoll
from typing import Any

from tests.link.link_bench import Bench
from tests.support.pair import Client, receive
from txbroker.authority.edge_peer import EdgePeer, PublishVerdict
from txbroker.core import FED, LinkReader, Router, Run, Sender
from txbroker.edge.routing.publication import Publication
from txbroker.link.batch_headers import CREDIT_BYTES
from txbroker.link.delivery_sender import WINDOW
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.encoder import encode_publish
from txbroker.mqtt.wire.message import Message
from txbroker.runtime.backpressure import PATIENCE


def a_run(router: Router, *payloads: bytes, client_id: str = "c") -> Run:
    """What the client has published."""
    packet_writer = router.make_packet_writer()
    packet_reader = router.make_packet_reader(packet_writer, 1_000_000)
    packet_reader.open(object(), client_id, None, clean=True)
    packet_reader.feed(
        b"".join(encode_publish("x", payload, 0, False, False, None) for payload in payloads)
    )
    assert packet_reader.step() is None and packet_reader.qos0 is not None
    return packet_reader.qos0


def sent(sender: Sender | None, end: Any, run: Run) -> bytes:
    """The bytes that it sends; the socket is not really there."""
    assert sender is not None
    end.packet_writer.descriptor = 0
    assert sender.send(run)
    end.packet_writer.descriptor = -1
    return bytes(end.packet_writer.dequeue())


def is_taken(router: Router, packet_reader: LinkReader, data: bytes, way: Any = None) -> bool:
    """True if the core takes what has come to that end, and nobody else has to."""
    ours, far = socket.socketpair()
    with ours, far, epoll() as watching:
        ours.setblocking(False)
        watching.register(ours.fileno(), EPOLLIN)
        sockets = router.make_sockets()
        sockets.wire_zone(lambda: way, lambda run, left: None, EdgePeer.sender)
        sockets.add(ours.fileno(), packet_reader)
        far.sendall(data)
        interest = bytearray(ours.fileno()) + bytes((EPOLLIN,))
        left = sockets.wait(watching, interest, 0.0, lambda: 1.0)
        assert left is None or left in ([], [(ours.fileno(), FED)])
        return not left


class Owner:
    """A bench whose edge has a subscriber, and whose owner has taken a first publish of `c`."""

    def __init__(self, *cuts: ZoneCut) -> None:
        self.bench = bench = Bench(*cuts)
        self.client = Client(bench.edge, "subscriber")
        self.client.subscribe(("x", 0))
        bench.link.pump()
        self.authority = bench.authority
        self.authority.router.routes.set("", "here")
        self.way = ("here", PublishVerdict.TAKEN, None, None)

    def publish(self, *payloads: bytes) -> bytes:
        """The bytes that these publishes come as."""
        end, run = self.bench.link.edge_end, a_run(self.bench.edge.router, *payloads)
        return sent(self.bench.route.sender(), end, run)

    def deliver(self, *payloads: bytes) -> bytes:
        """The bytes that these deliveries come as."""
        (peer,) = self.authority.peers
        run = a_run(self.authority.router, *payloads)
        return sent(peer.sender(), self.bench.link.owner_end, run)


def test_what_a_sender_sends_is_taken_like_all_else() -> None:
    owner = Owner()
    for payloads in ((b"1",), (b"2",), (b"3", b"4"), (b"5",)):
        owner.bench.link.up += owner.publish(*payloads)
        owner.bench.link.pump()
    assert [b"1", b"2", b"3", b"4", b"5"] == owner.client.payloads

    for payloads in ((b"6",), (b"7", b"8")):
        owner.bench.link.down += owner.deliver(*payloads)
        owner.bench.link.pump()
    assert [b"6", b"7", b"8"] == owner.client.payloads[5:]


def test_an_owner_knows_a_header_again() -> None:
    owner = Owner()
    link, router = owner.bench.link, owner.authority.router
    first = owner.publish(b"1")
    assert not is_taken(router, link.owner_end.reader.packet_reader, first, owner.way)
    link.owner_end.work()
    link.pump()
    assert not is_taken(router, link.owner_end.reader.packet_reader, owner.publish(b"2"), None)
    link.owner_end.work()
    link.pump()

    (peer,) = owner.authority.peers
    link.owner_end.packet_writer.descriptor = 0
    assert is_taken(router, link.owner_end.reader.packet_reader, owner.publish(b"3"), owner.way)
    link.owner_end.packet_writer.descriptor = -1
    link.down += bytes(link.owner_end.packet_writer.dequeue())
    link.pump()
    assert [b"1", b"2", b"3"] == owner.client.payloads


def test_a_header_of_before_a_refusal_is_not_sent_again() -> None:
    """It has the sequence of a publish that the refusal took back: the owner would end the link."""
    owner = Owner(ZoneCut(apex="a", epoch=1, node="n", grpc="h:2"))
    bench, link = owner.bench, owner.bench.link
    below = bench.edge.zones.get("a")
    assert below is not None
    bench.edge.zones.remove(below)
    Client(bench.edge, "other").publish("a/x", b"refused")
    next(link.steps())
    link.owner_end.flush()
    link.up += owner.publish(b"1")
    receive(link.edge_end, bytes(link.down))
    link.down.clear()
    link.pump()
    link.up += owner.publish(b"2")
    link.pump()

    assert [b"1", b"2"] == owner.client.payloads


def test_an_edge_knows_a_header_again() -> None:
    owner = Owner()
    link, router = owner.bench.link, owner.bench.edge.router
    assert not is_taken(router, link.edge_end.reader.packet_reader, owner.deliver(b"1"))
    link.edge_end.work()
    assert is_taken(router, link.edge_end.reader.packet_reader, owner.deliver(b"2"))
    assert is_taken(
        router, link.edge_end.reader.packet_reader, owner.deliver(b"3", b"4") + owner.deliver(b"5")
    )
    assert [b"1", b"2", b"3", b"4", b"5"] == owner.client.payloads


def test_what_is_left_of_a_batch_is_worked_off_by_the_end() -> None:
    """Also after a part of it went past; what the header said holds for the rest."""
    owner = Owner()
    link, router = owner.bench.link, owner.bench.edge.router
    assert not is_taken(router, link.edge_end.reader.packet_reader, owner.deliver(b"1"))
    link.edge_end.work()
    batch = owner.deliver(b"2", b"3", b"4")
    assert is_taken(router, link.edge_end.reader.packet_reader, batch[:-8])
    link.down += batch[-8:] + owner.deliver(b"5")
    link.pump()
    assert [b"1", b"2", b"3", b"4", b"5"] == owner.client.payloads


def test_a_header_is_not_known_behind_qos1_of_its_batch() -> None:
    """It says which sequence comes first, and that has come."""
    owner = Owner()
    link, router = owner.bench.link, owner.authority.router
    items = [Message("x", bytes((number,)), int(number == 1), client_id="c") for number in range(3)]
    for item in items:
        link.edge_end.publish(Publication(message=item))
    link.edge_end.flush()
    data = bytes(link.up)
    link.up.clear()
    assert not is_taken(router, link.owner_end.reader.packet_reader, data, owner.way)
    link.owner_end.work()
    again = data[: data.index(b"\x30")][:-4] + (1).to_bytes(4, "little") + items[2].link_packet
    assert not is_taken(router, link.owner_end.reader.packet_reader, again, owner.way)


def test_nothing_overtakes_what_waits_in_an_edge() -> None:
    bench = Bench()
    client = Client(bench.edge, "c")
    assert bench.route.sender() is not None
    client.publish("x", b"1", 0)
    assert bench.route.sender() is None
    bench.link.pump()
    assert bench.route.sender() is not None

    bench.link.edge_end.on_disconnect()
    assert bench.route.sender() is None


def test_nothing_overtakes_what_waits_for_an_edge() -> None:
    owner = Owner()
    (peer,) = owner.authority.peers
    assert peer.sender() is not None
    owner.authority.publish(Message("x", b"1"))
    assert peer.sender() is None
    owner.bench.link.pump()
    assert peer.sender() is not None

    owner.bench.host.backpressure.raise_(owner.bench.link.owner_end, lambda: 1, has_drained=True)
    owner.bench.alarms.advance(PATIENCE)
    assert peer.sender() is None
    owner.bench.link.owner_end.on_disconnect()
    assert peer.sender() is None


def test_a_header_changes_with_the_sequences_of_the_stream() -> None:
    """An owner checks that no publish of QoS 1 and 2 is missing before it."""
    owner = Owner()
    link, router = owner.bench.link, owner.authority.router
    client = Client(owner.bench.edge, "c")
    before = owner.publish(b"1")
    link.up += before
    link.pump()
    client.publish("x", b"2", 1)
    link.pump()
    after = owner.publish(b"3")
    assert before[: -len(b"3")] != after[: -len(b"3")]
    assert not is_taken(router, link.owner_end.reader.packet_reader, before, owner.way)


def test_bytes_that_go_past_the_ends_use_up_credit_and_get_it_back() -> None:
    owner = Owner()
    link = owner.bench.link
    size = 100_000
    passed = 0
    while passed < 2 * WINDOW:
        link.up += owner.publish(bytes(size))
        passed += size
        link.pump()
    passed = 0
    while passed < 2 * WINDOW:
        link.down += owner.deliver(bytes(size))
        passed += size
        link.pump()

    lost = 0
    while owner.bench.route.sender() is not None:
        owner.publish(bytes(size))
        lost += size
    assert WINDOW - CREDIT_BYTES - size < lost <= WINDOW + size


def test_an_owner_has_others_look_when_credit_is_due() -> None:
    owner = Owner()
    link, router = owner.bench.link, owner.authority.router
    data = bytes(1000)
    link.up += owner.publish(data)
    link.pump()
    taken = 0
    link.owner_end.packet_writer.descriptor = 0
    while is_taken(router, link.owner_end.reader.packet_reader, owner.publish(data), owner.way):
        taken += 1
    assert CREDIT_BYTES / 1300 < taken < CREDIT_BYTES / 1000
