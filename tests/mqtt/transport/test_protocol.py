"""Back-pressure on a client's connection while the disk is short; no sockets, no time passes."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.task import Clock as TwistedClock
from twisted.internet.testing import StringTransport

from tests.support import wire, wire5
from tests.support.edge_bench import EdgeBench
from tests.support.roaming import Alone
from txbroker.config import ReserveSize
from txbroker.edge.routing.edge_limits import EdgeLimits
from txbroker.edge.sessions.shared_subscriptions import SharedSubscriptions
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.transport import connection_output, subscribe_packets
from txbroker.mqtt.transport.connection_limits import ConnectionLimits
from txbroker.mqtt.transport.protocol import MqttFactory, MqttProtocol
from txbroker.mqtt.transport.read_pause import HOLD_TIMEOUT
from txbroker.mqtt.transport.service import MqttService
from txbroker.mqtt.transport.subscribe_packets import PIECE
from txbroker.mqtt.transport.unread_answers import DEAF_TIMEOUT, UnreadAnswers
from txbroker.runtime.connection_parts import ConnectionParts
from txbroker.runtime.deadlines import GRAIN
from txbroker.runtime.fair_shares import FairShares
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.periodic import ReactorTimers
from txbroker.runtime.sockets.poller import SocketOutputs
from txbroker.runtime.unauthenticated import HalfPackets, Unauthenticated
from txbroker.storage.disk_watermark import DiskWatermark

FULL, EMPTY = (0, 1000), (1000, 1000)


class Wire(StringTransport):
    """A TCP connection that keeps what was written."""

    bufferSize = 0

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Nothing waits here."""


@attrs.define
class Dialogue:
    """One client's connection: `say` bytes, look at what is `answered`."""

    protocol: MqttProtocol
    transport: Wire

    def say(self, *packets: bytes) -> None:
        self.protocol.dataReceived(b"".join(packets))

    def answered(self) -> list[str]:
        """Names of the packets that came since the last call."""
        buffer = bytearray(self.transport.value())
        self.transport.clear()
        names = []
        while (packet := wire.cut_packet(buffer)) is not None:
            names.append(wire.NAMES[packet.kind])
        return names

    @property
    def is_read(self) -> bool:
        return self.transport.producerState == "producing"


class Bench:
    """A service with an edge whose zone `x` takes publishes, on a disk that a test fills."""

    def __init__(self, limits: EdgeLimits | None = None) -> None:
        self.edge = EdgeBench("x", limits=limits)
        self.edge.online("x")
        self.edge.take()
        self.clock = TwistedClock()
        self.turn = FlushQueue(lambda action: None)
        self.disk = EMPTY
        self.space = DiskWatermark(
            Path("data"),
            ReserveSize(share=0.1),
            timers=ReactorTimers(self.clock, self.turn),
            counters=self.edge.counters,
            measure=lambda _: self.disk,
        )
        outputs = SocketOutputs(self.turn.mark_next)
        outputs.router = self.edge.router
        self.edge.on_output = lambda: self.turn.mark_dirty(outputs)
        alone = Alone(self.edge.edge, self.clock.seconds)
        self.directory = alone.directory
        self.service = MqttService(
            self.edge.edge,
            ConnectionParts(
                clock=self.clock,
                flush_queue=self.turn,
                counters=self.edge.counters,
                backpressure=self.edge.pressure,
                shares=FairShares(
                    later=lambda action: self.clock.callLater(0, action),
                    now=self.clock.seconds,
                    worked=self.clock.seconds,
                    flush_queue=self.turn,
                ),
                unauthenticated=Unauthenticated(self.edge.counters),
                halves=HalfPackets(self.edge.counters),
            ),
            watermark=self.space,
            connects=alone.roaming,
            successions=alone.successions,
            limits=ConnectionLimits(packet=1 << 20, connections=10, connect_timeout=10.0),
        )

    def set_limits(self, **limits: Any) -> None:
        self.service.limits = attrs.evolve(self.service.limits, **limits)

    def set_disk(self, disk: tuple[int, int]) -> None:
        self.disk = disk
        self.space.measure()
        self.turn.end()

    def client(self, name: str = "c", keep_alive: int = 0) -> Dialogue:
        """Connected."""
        protocol = MqttFactory(self.service).buildProtocol(None)
        transport = Wire()
        protocol.makeConnection(transport)
        dialogue = Dialogue(protocol, transport)
        dialogue.say(wire.connect(name, keep_alive=keep_alive))
        assert ["CONNACK"] == dialogue.answered()
        return dialogue

    def published(self) -> list[object]:
        """Payloads that went to the owner since the last call."""
        return [event[2] for event in self.edge.take() if event[:2] == ("x", "publish")]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_will_of_a_client_that_connects_again_before_its_connack_stays(bench: Bench) -> None:
    """The end of the first attempt, which the store answers first, is none of the second's."""
    first, second = (MqttFactory(bench.service).buildProtocol(None) for _ in range(2))
    for protocol in (first, second):
        protocol.makeConnection(Wire())
        protocol.dataReceived(wire.connect("c", clean=False, will=wire.Will(topic="w", qos=1)))
    bench.edge.settle()
    assert second._session is not None and first._session is None
    assert bench.directory.own_wills.get("c") is not None


def test_a_clean_session_ends_with_a_client_that_does_not_wait_for_it(bench: Bench) -> None:
    """Its CONNACK waits until what was kept is gone from the disk."""
    first = MqttFactory(bench.service).buildProtocol(None)
    first.makeConnection(Wire())
    first.dataReceived(wire.connect("c", clean=False))
    bench.edge.settle()
    first.connectionLost()
    second = MqttFactory(bench.service).buildProtocol(None)
    second.makeConnection(Wire())
    second.dataReceived(wire.connect("c"))
    assert [True] == [session.clean for session in bench.edge.edge.clients.sessions.values()]

    second.connectionLost()
    bench.edge.settle()

    assert {} == bench.edge.edge.clients.sessions


@pytest.mark.parametrize("comes_again", [False, True])
def test_a_will_goes_with_a_client_that_does_not_wait_for_its_session(
    bench: Bench, comes_again: bool
) -> None:
    """It was never here [MQTT-3.1.2-8]; the will of its next connection is another one."""
    clients = [MqttFactory(bench.service).buildProtocol(None) for _ in range(1 + comes_again)]
    for number, client in enumerate(clients):
        client.makeConnection(Wire())
        will = wire.Will(topic="x/t", payload=str(number).encode())
        client.dataReceived(wire.connect("c", clean=False, will=will))
        if client is not clients[-1]:
            client.connectionLost()
    if not comes_again:
        clients[0].connectionLost()
    bench.edge.settle()
    (session,) = bench.edge.edge.clients.sessions.values()
    known = bench.directory.own_wills.get("c")

    assert (b"1" if comes_again else None) == (session.will and session.will.payload)
    assert (b"1" if comes_again else None) == (known and known.will.payload)


def publish(payload: str, qos: int = 1, packet_id: int = 1) -> bytes:
    return wire.publish("x/t", payload.encode(), qos=qos, packet_id=packet_id if qos else None)


def test_nothing_is_taken_from_the_first_refused_publish_on(bench: Bench) -> None:
    """What came before it in the same read is, and all the rest in order once there is room."""
    client = bench.client()
    bench.set_disk(FULL)

    client.say(publish("0", qos=0), wire.PING, publish("1"), publish("2", 2, 2), wire.PING)
    assert (["0"], ["PINGRESP"], False) == (bench.published(), client.answered(), client.is_read)
    client.say(publish("3", qos=0)[:5])  # TLS had decrypted it before the pause
    client.say(publish("3", qos=0)[5:])
    assert [] == bench.published()
    assert 1 == bench.edge.counters.get("publish.refused.disk_free")

    bench.set_disk(EMPTY)

    assert (["1", "2", "3"], True) == (bench.published(), client.is_read)
    assert ["PINGRESP"] == client.answered()


def test_who_publishes_nothing_that_is_kept_is_read(bench: Bench) -> None:
    """Acknowledgements, subscriptions, QoS 0."""
    client = bench.client()
    bench.set_disk(FULL)

    client.say(wire.subscribe(1, ("$SYS/x", 1)), wire.ack(wire.PUBACK, 7), publish("0", qos=0))
    client.say(wire.ack(wire.PUBREL, 9), wire.PING)

    assert ["SUBACK", "PUBCOMP", "PINGRESP"] == client.answered()
    assert (["0"], True) == (bench.published(), client.is_read)


def test_keep_alive_is_suspended(bench: Bench) -> None:
    """A PINGREQ may lie unread behind the publish."""
    client = bench.client(keep_alive=2)
    bench.set_disk(FULL)
    client.say(publish("1"))

    for _ in range(int(HOLD_TIMEOUT) - 1):
        bench.clock.advance(1.0)
    assert not client.transport.disconnecting
    bench.set_disk(EMPTY)
    assert ["1"] == bench.published()
    bench.clock.advance(2.9)
    assert not client.transport.disconnecting

    bench.clock.advance(0.2)
    assert client.transport.disconnecting


def test_who_is_held_for_too_long_is_closed(bench: Bench) -> None:
    """What was refused is not taken afterwards, as nobody acknowledged it."""
    client, other = bench.client(), bench.client("other")
    bench.set_disk(FULL)
    client.say(publish("1"))
    bench.clock.advance(1.0)
    other.say(publish("2"))

    bench.clock.advance(HOLD_TIMEOUT - 0.5)
    assert (True, False) == (client.transport.disconnecting, other.transport.disconnecting)
    assert 1 == bench.edge.counters.get("clients.held_too_long")

    bench.set_disk(EMPTY)
    assert ["2"] == bench.published()
    bench.clock.advance(HOLD_TIMEOUT)
    assert not other.transport.disconnecting


def test_a_client_that_left_is_not_read_again(bench: Bench) -> None:
    """Neither by itself nor by another connection with its id."""
    gone, taken = bench.client("gone"), bench.client("taken")
    bench.set_disk(FULL)
    gone.say(publish("1"))
    taken.say(publish("2"))
    gone.protocol.connectionLost()
    bench.client("taken")

    bench.set_disk(EMPTY)

    assert [] == bench.published()
    assert not bench.clock.getDelayedCalls()


def test_each_limit_has_its_counter(bench: Bench) -> None:
    """Too large a packet, no CONNECT in time."""
    bench.client().say(b"\x30" + wire.length(2 << 20))
    assert 1 == bench.edge.counters.get("packet.over_limit")

    MqttFactory(bench.service).buildProtocol(None).makeConnection(Wire())
    bench.clock.advance(10.0 + 2 * GRAIN)
    assert 1 == bench.edge.counters.get("clients.no_connect")


def test_who_never_connects_takes_no_place(bench: Bench) -> None:
    """Of those that `limits.connections` has for others."""
    protocol = MqttFactory(bench.service).buildProtocol(None)
    protocol.makeConnection(Wire())
    assert [protocol] == list(bench.service.connections)

    bench.clock.advance(10.0)
    protocol.connectionLost()

    assert not bench.service.connections


def test_session_that_went_meanwhile_takes_no_place(bench: Bench) -> None:
    """It ended while its CONNACK was on the way."""
    bench.edge.edge.clients.attach = lambda session, connection: False
    protocol = MqttFactory(bench.service).buildProtocol(None)
    transport = Wire()
    protocol.makeConnection(transport)

    Dialogue(protocol, transport).say(wire.connect("c"))
    protocol.connectionLost()

    assert transport.disconnecting
    assert not bench.service.connections
    assert not bench.clock.getDelayedCalls()


@pytest.mark.parametrize("keep_alive", [2, 60])
def test_keep_alive(bench: Bench, keep_alive: int) -> None:
    """Shorter or longer than what CONNECT may take, whose deadline it follows on."""
    client = bench.client(keep_alive=keep_alive)
    bench.clock.advance(keep_alive - 0.1)
    client.say(wire.PING)
    for _ in range(int(keep_alive * 1.5)):
        bench.clock.advance(1.0 - 1e-3)
    assert (["PINGRESP"], False) == (client.answered(), client.transport.disconnecting)

    bench.clock.advance(0.5)
    assert client.transport.disconnecting
    assert not bench.clock.getDelayedCalls()


def test_no_keep_alive(bench: Bench) -> None:
    """Then no deadline either, that for CONNECT included."""
    client = bench.client()
    assert not bench.clock.getDelayedCalls()
    bench.clock.advance(3600.0)
    assert not client.transport.disconnecting


def test_a_session_that_is_over_is_freed_at_once(bench: Bench) -> None:
    """Not by the collector, which thousands that come and go would keep busy."""
    client = bench.client()
    gc.disable()
    try:
        session = weakref.ref(bench.edge.edge.clients.sessions["c"])
        client.say(wire.BYE)
        assert session() is None
    finally:
        gc.enable()


# -- work that is more than a share


def test_a_large_subscribe_is_answered_once_when_all_its_pieces_are_done(bench: Bench) -> None:
    """What is illegal in its last filter makes the whole of it void."""
    client = bench.client()
    filters = [(f"x/{number:020}", number % 3) for number in range(5 * PIECE + 1)]
    client.say(wire.subscribe(7, *filters))
    answered = client.answered()
    route = bench.edge.route("x")
    while route.interest.requests and not answered:
        for request in list(route.interest.requests):
            bench.edge.edge.interests.on_answer(route, request, 0, [])
        bench.turn.end()
        answered = client.answered()
    assert answered == ["SUBACK"]
    assert len(bench.edge.edge.clients.sessions["c"].subscriptions) == len(filters)
    client.say(wire.subscribe(8, *[(f"y/{n:020}", 0) for n in range(5 * PIECE)], ("z", 3)))
    assert client.transport.disconnecting
    assert "c" not in bench.edge.edge.clients.sessions


def test_groups_come_and_go_two_at_a_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may begin or end a session: fifty of them in one packet took 15 ms."""
    client, shared = bench.client(), bench.edge.edge.shared
    pieces: list[int] = []

    def subscribe(session: Session, filters: Any, *rest: Any) -> None:
        pieces.append(len(filters))
        SharedSubscriptions.subscribe(shared, session, filters, *rest)

    def unsubscribe(session: Session, texts: Any, *rest: Any) -> None:
        pieces.append(-len(texts))
        SharedSubscriptions.unsubscribe(shared, session, texts, *rest)

    monkeypatch.setattr(shared, "subscribe", subscribe)
    monkeypatch.setattr(shared, "unsubscribe", unsubscribe)
    groups = [f"$share/group{number:010}/x" for number in range(9)]
    client.say(wire.subscribe(7, *((text, 1) for text in groups)))
    client.say(wire.unsubscribe(8, *groups))
    bench.clock.advance(0)
    assert pieces == [2, 2, 2, 2, 1, -2, -2, -2, -2, -1]


def test_a_large_subscribe_takes_many_turns(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """200,000 filters in one go stopped the node for seconds."""
    client = bench.client()
    filters = [(f"x/{number:020}", 0) for number in range(5 * PIECE + 1)]
    subscriptions = bench.edge.edge.clients.sessions["c"].subscriptions
    sizes = [0]

    def is_over(_: FairShares) -> bool:
        """Each share is used up by one step."""
        sizes.append(len(subscriptions))
        return True

    monkeypatch.setattr(FairShares, "is_over", property(is_over))
    client.say(wire.subscribe(7, *filters))
    route = bench.edge.route("x")
    for _ in range(100):
        bench.clock.advance(0)
        for request in list(route.interest.requests):
            bench.edge.edge.interests.on_answer(route, request, 0, [])
        bench.turn.end()

    assert len(filters) == len(subscriptions)
    assert all(after - before <= PIECE for before, after in pairwise([*sizes, len(filters)]))


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ([], [("pending-zone", "x")]),
        ([(wire5.PROBLEM_INFO, 1)], [("pending-zone", "x")]),
        ([(wire5.PROBLEM_INFO, 0)], []),
        ([(wire5.MAXIMUM_PACKET, 24)], [("pending-zone", "x")]),
        ([(wire5.MAXIMUM_PACKET, 23)], []),
    ],
    ids=["default", "asked", "brief", "room", "no-room"],
)
def test_pending_zones_are_told_to_who_asks_and_has_room(
    bench: Bench, properties: wire5.Properties, named: list[tuple[str, str]]
) -> None:
    """SUBACK names them in user properties [MQTT-3.1.2-29] [MQTT-3.9.2-2]."""
    client = Dialogue(MqttFactory(bench.service).buildProtocol(None), Wire())
    client.protocol.makeConnection(client.transport)
    client.say(wire5.connect("c", properties=properties))
    assert client.transport.value().startswith(b"\x20")
    client.transport.clear()
    client.say(wire5.subscribe(7, ("x/#", 1)))
    bench.edge.clock.advance(2.0)
    bench.turn.end()

    raw = wire.cut_frame(bytearray(client.transport.value()))
    assert raw is not None
    found = wire5.parse(raw)
    assert isinstance(found, wire5.Answer)
    assert (found.packet_id, found.codes) == (7, (1,))
    assert found.properties == [(wire5.USER_PROPERTY, pair) for pair in named]


def test_a_client_that_reads_no_answers_is_not_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it sends on stays with it, until it has read."""
    monkeypatch.setattr(connection_output, "FULL", 1_000)
    client = bench.client()
    client.protocol.pauseProducing()
    pings = wire.packet(wire.PINGREQ, 0) * 600
    for _ in range(5):
        client.say(pings)
        bench.turn.end()
    assert not client.is_read
    assert client.protocol.packet_writer.size < 3_000
    client.protocol.resumeProducing()
    assert client.is_read


def test_a_client_that_reads_nothing_for_long_is_closed(bench: Bench) -> None:
    """It is told apart from one that is slow."""
    left = [1_000]
    closed: list[bool] = []
    UnreadAnswers(
        bench.service.clock, "c", left=lambda: left[0], give_up=lambda: closed.append(True)
    )
    left[0] = 900
    bench.clock.advance(DEAF_TIMEOUT)
    assert not closed
    bench.clock.advance(DEAF_TIMEOUT)
    assert closed


def test_halves_of_packets_are_bounded_together(bench: Bench) -> None:
    """Beyond it the oldest half is closed as if it had broken; who sends the rest in time stays."""
    bench.service.halves.most = 250_000
    clients = [bench.client(name) for name in "abc"]
    packet = wire.publish("x/t", bytes(100_000))
    for client in clients[:2]:
        client.say(packet[:-1])
    clients[0].say(packet[-1:])
    assert 100_000 < bench.service.halves.held < 110_000
    clients[0].say(packet[:-1])
    clients[2].say(packet[:-1])

    assert [False, True, False] == [one.transport.disconnecting for one in clients]
    assert 1 == bench.edge.counters.get("packet.halves_over_limit")
    for client in clients:
        client.protocol.connectionLost()
    assert 0 == bench.service.halves.held


def test_long_filters_have_room_in_all(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger would fill the memory with them; a usual client's fit always."""
    monkeypatch.setattr(subscribe_packets, "MOST_BYTES", 1_000)
    monkeypatch.setattr(subscribe_packets, "FEW_BYTES", 100)
    stranger, usual = bench.client("stranger"), bench.client("usual")

    def codes(client: Dialogue, *filters: str) -> list[int]:
        client.say(wire.subscribe(1, *((text, 0) for text in filters)))
        route = bench.edge.route("x")
        for request in list(route.interest.requests):
            bench.edge.edge.interests.on_answer(route, request, 0, [])
        bench.turn.end()
        buffer = bytearray(client.transport.value())
        client.transport.clear()
        packet = wire.cut_packet(buffer)
        assert packet is not None and packet.kind == wire.SUBACK
        return list(packet.body[2:])

    assert [0, 0x80, 0] == codes(stranger, "x/".ljust(500, "a"), "x/".ljust(600, "b"), "x/c")
    assert [0] == codes(stranger, "x/".ljust(480, "d"))
    assert [0x80] == codes(stranger, "x/".ljust(50, "e"))
    assert [0, 0x80] == codes(usual, "x/".ljust(60, "f"), "x/".ljust(60, "g"))
    stranger.say(wire.unsubscribe(2, "x/".ljust(500, "a")))
    stranger.transport.clear()
    assert [0] == codes(usual, "x/".ljust(60, "g"))
