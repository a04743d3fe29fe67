"""
What strangers do on the ports of a node: each is one stranger's best effort in one process.

An attack is a generator: between two of its steps it may be ended.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from tests.support import wire
from tests.support.nodes import Address
from tests.system.attack_list5 import ATTACKS_5
from tests.system.call_attacks import CALLS, call_storm
from tests.system.half_messages import half_messages
from tests.system.http2_attacks import HTTP2
from tests.system.innocents import Ports, Stranger, sent

Attack = Callable[[Ports], Iterator[None]]

FILTERS = 2_000
"""Filters in one packet."""


def member(address: Address, name: str, **options: object) -> Stranger:
    """A stranger that has connected."""
    made = Stranger.to(address)
    made.send(wire.connect(f"{name} {os.getpid()}", **options))
    return made


def repeat(strangers: list[Stranger], packets: Iterator[bytes], *, reads: bool) -> Iterator[None]:
    """Each sends one packet after the other, and reads what comes or does not."""
    while not all(stranger.is_closed for stranger in strangers):
        for stranger in strangers:
            if not stranger.is_closed:
                stranger.send(next(packets))
                if reads:
                    stranger.read()
        yield


def many_filters(prefix: str, count: int = FILTERS) -> list[tuple[str | bytes, int]]:
    """Filters that differ, with wildcards."""
    return [(f"+/{prefix}/{number}/#", 1) for number in range(count)]


def subscribe_packets(ports: Ports, *, reads: bool) -> Iterator[None]:
    """Many SUBSCRIBE packets with thousands of filters."""
    strangers = [member(ports.mqtt, f"subscribe {n}") for n in range(4)]
    packets = [wire.subscribe(1 + n, *many_filters(str(n))) for n in range(4)]
    return repeat(strangers, itertools.cycle(packets), reads=reads)


def wildcards(ports: Ports) -> Iterator[None]:
    """Four clients with 4,096 wildcard filters each, again and again."""
    while True:
        strangers = [member(ports.mqtt, f"wild {n}") for n in range(4)]
        for number, stranger in enumerate(strangers):
            packet = wire.subscribe(1, *many_filters(f"{number}", 4_096))
            while not stranger.send(packet) and not stranger.is_closed:
                yield
        yield from _quiet(strangers, 1.0)
        for stranger in strangers:
            stranger.close()


def unsubscribe_storm(ports: Ports) -> Iterator[None]:
    """UNSUBSCRIBE packets with thousands of filters."""
    strangers = [member(ports.mqtt, f"unsubscribe {n}") for n in range(4)]
    filters = many_filters("u")
    take = wire.subscribe(1, *filters)
    leave = wire.unsubscribe(2, *(text for text, _ in filters))
    empty = wire.unsubscribe(3, *(f"n/{number}" for number in range(FILTERS)))
    return repeat(strangers, itertools.cycle([take, leave, empty, empty, empty]), reads=True)


def small_subscribes(ports: Ports, *, clean: bool) -> Iterator[None]:
    """SUBSCRIBE packets of one filter, in bulk, answers unread."""
    strangers = [member(ports.mqtt, f"small {n} {clean}", clean=clean) for n in range(4)]
    packets = b"".join(wire.subscribe(1 + n, (f"small/{n}", 1)) for n in range(2_000))
    return repeat(strangers, itertools.repeat(packets), reads=False)


def publishes(ports: Ports, *, qos: int) -> Iterator[None]:
    """Publishes whose acknowledgements nobody reads."""
    strangers = [member(ports.mqtt, f"publish {qos} {n}") for n in range(4)]
    packets = b"".join(
        wire.publish(f"flood/{n % 50}", b"x", qos=qos, packet_id=n + 1) for n in range(2_000)
    )
    return repeat(strangers, itertools.repeat(packets), reads=False)


def acks(ports: Ports, *, kind: int, clean: bool) -> Iterator[None]:
    """Acknowledgements of unknown ids, whose answers nobody reads."""
    strangers = [member(ports.mqtt, f"ack {n} {clean}", clean=clean) for n in range(4)]
    packets = b"".join(wire.ack(kind, n + 1) for n in range(20_000))
    return repeat(strangers, itertools.repeat(packets), reads=False)


def pings(ports: Ports) -> Iterator[None]:
    """PINGREQ packets whose answers nobody reads."""
    strangers = [member(ports.mqtt, f"ping {n}") for n in range(4)]
    packets = wire.packet(wire.PINGREQ, 0) * 50_000
    return repeat(strangers, itertools.repeat(packets), reads=False)


def wills(ports: Ports) -> Iterator[None]:
    """500 clients with retained wills of QoS 1 that break off at once."""
    while True:
        strangers = [
            member(
                ports.mqtt,
                f"will {n}",
                will=wire.Will(topic=f"will/{n}", payload=bytes(1_000), qos=1, retain=True),
            )
            for n in range(500)
        ]
        yield from _quiet(strangers, 0.5)
        for stranger in strangers:
            stranger.close()


def garbage(ports: Ports, *, port: str) -> Iterator[None]:
    """Bytes that are no packets, from one connection after the other."""
    address: Address = getattr(ports, port)
    data = bytes(range(256)) * 256
    while True:
        strangers = [Stranger.to(address) for _ in range(50)]
        for stranger in strangers:
            stranger.send(data)
        yield
        for stranger in strangers:
            stranger.close()


def slow_garbage(ports: Ports) -> Iterator[None]:
    """The beginning of a large frame on many connections, to both ports."""
    for number in range(2_000):
        stranger = Stranger.to(ports.mqtt if number % 2 else ports.link)
        stranger.send((b"\x10" if number % 2 else b"\x00") + b"\xff\xff\x7f" + bytes(100_000))
        _open.append(stranger)
        yield
    while True:
        time.sleep(0.01)
        yield


_open: Final[list[Stranger]] = []
"""What stays open until the end."""


def deep_topics(ports: Ports) -> Iterator[None]:
    """Retained messages and filters of 200 levels."""
    strangers = [member(ports.mqtt, f"deep {n}") for n in range(4)]

    def packets() -> Iterator[bytes]:
        for number in itertools.count():
            levels = "/".join(str(number + n) for n in range(199))
            publish = wire.publish(f"d/{levels}", b"x", retain=True)
            filters = [("d/" + "+/" * n + "#", 0) for n in range(150, 198)]
            yield publish * 5 + wire.subscribe(1 + number % 60_000, *filters)

    return repeat(strangers, packets(), reads=True)


def connects(ports: Ports, *, clean: bool) -> Iterator[None]:
    """Connections with a session each, one after the other."""
    for number in itertools.count():
        stranger = member(ports.mqtt, f"connect {number}", clean=clean)
        _open.append(stranger)
        if len(_open) > 300:
            _open.pop(0).close()
        yield


def stuck_subscribers(ports: Ports) -> Iterator[None]:
    """Four new subscribers a second that read nothing."""
    for number in itertools.count():
        stranger = member(ports.mqtt, f"stuck {number}")
        stranger.send(wire.subscribe(1, ("#", 0)))
        _open.append(stranger)
        deadline = time.monotonic() + 0.25
        while time.monotonic() < deadline:
            time.sleep(0.01)
            yield


def retained_answers(ports: Ports) -> Iterator[None]:
    """A hundred thousand retained messages, asked for by all again and again."""
    strangers = [member(ports.mqtt, f"retained {n}") for n in range(4)]
    for start in range(0, 100_000, 500):
        packets = (wire.publish(f"r/{n}", b"x", retain=True) for n in range(start, start + 500))
        yield from sent(strangers[0], b"".join(packets))
    asked = wire.subscribe(1, ("r/#", 0)) * 50
    yield from repeat(strangers, itertools.repeat(asked), reads=True)


def large_packets(ports: Ports, *, leaves: bool) -> Iterator[None]:
    """SUBSCRIBE packets of 200,000 filters, or UNSUBSCRIBE ones, of two clients."""
    strangers = [member(ports.mqtt, f"large {n}") for n in range(2)]
    filters = many_filters("l", 200_000)
    packet = wire.subscribe(1, *filters)
    if leaves:
        packet = wire.subscribe(1, *filters[:10_000])
        packet += wire.unsubscribe(2, *(text for text, _ in filters))
    return repeat(strangers, itertools.repeat(packet), reads=True)


def session_ends(ports: Ports, *, clean: bool) -> Iterator[None]:
    """Clients with 9,984 filters each that come and go."""
    packets = [wire.subscribe(1 + n, *many_filters(str(n), 416)) for n in range(24)]
    for number in itertools.count():
        strangers = [member(ports.mqtt, f"ends {n}", clean=clean) for n in range(4)]
        for stranger in strangers:
            if clean or number < 4:
                yield from sent(stranger, b"".join(packets))
            stranger.send(wire.packet(wire.PINGREQ, 0))
        yield from _quiet(strangers, 1.0)
        for stranger in strangers:
            stranger.close()


def overlaps(ports: Ports) -> Iterator[None]:
    """Filters that all match the same topics, and publishes to ever new ones of these."""
    strangers = [member(ports.mqtt, f"overlap {n}") for n in range(4)]
    for number, stranger in enumerate(strangers):
        levels = itertools.product("a+", repeat=12)
        filters = [(f"{'/'.join(some)}/{'#' if number else '+'}", 0) for some in levels]
        yield from sent(stranger, wire.subscribe(1, *filters))
    topics = ("/".join("a" * 12) + f"/{number}" for number in itertools.count())
    packets = (b"".join(wire.publish(next(topics), b"x") for _ in range(1_000)) for _ in topics)
    yield from repeat(strangers, packets, reads=True)


def flood(ports: Ports, *, count: int, size: int, listeners: int = 0) -> Iterator[None]:
    """Publishes of QoS 0 from many connections, to whom others subscribe that read nothing."""
    for number in range(listeners):
        listener = member(ports.mqtt, f"listener {number}")
        listener.send(wire.subscribe(1, ("flood/#", 0)))
        _open.append(listener)
        yield
    strangers = [member(ports.mqtt, f"flood {n}") for n in range(count)]
    one = b"".join(wire.publish(f"flood/{n % 20}", bytes(size)) for n in range(20))
    packets = one * max(1, 65_536 // len(one))
    return (yield from repeat(strangers, itertools.repeat(packets), reads=False))


def parts_of_packets(ports: Ports) -> Iterator[None]:
    """All but the end of a PUBLISH of 16 MB, on 40 connections."""
    strangers = [member(ports.mqtt, f"part {n}") for n in range(40)]
    packet = wire.publish("part", bytes(16_000_000))[:-100]
    while not all(stranger.send(packet) for stranger in strangers):
        yield
    while True:
        time.sleep(0.01)
        yield


def retained_flood(ports: Ports, *, size: int) -> Iterator[None]:
    """Retained messages of ever new topics."""
    strangers = [member(ports.mqtt, f"keep {n}") for n in range(4)]
    topics = (f"keep/{number % 100}/{number}" for number in itertools.count())
    packets = (
        b"".join(wire.publish(next(topics), bytes(size), retain=True) for _ in range(200))
        for _ in topics
    )
    return repeat(strangers, packets, reads=True)


def open_flows(ports: Ports, *, clean: bool) -> Iterator[None]:
    """65,535 QoS 2 publishes of each client that it never releases, and new clients for more."""
    for number in itertools.count():
        stranger = member(ports.mqtt, f"open {number}", clean=clean)
        _open.append(stranger)
        if len(_open) > 40:
            _open.pop(0).close()
        for start in range(1, 65_536, 1_285):
            ids = range(start, start + 1_285)
            packets = [wire.publish(f"q/{n % 7}", b"x", qos=2, packet_id=n) for n in ids]
            yield from sent(stranger, b"".join(packets))
            yield


def takeovers(ports: Ports, *, clean: bool) -> Iterator[None]:
    """The same client ids again and again, with will and subscriptions."""
    will = wire.Will(topic="taken", payload=b"over", qos=1, retain=False)
    rest = wire.subscribe(1, *[(f"t/{n}", 1) for n in range(50)])
    for number in itertools.count():
        stranger = member(ports.mqtt, f"taken {number % 5}", clean=clean, will=will)
        stranger.send(rest)
        _open.append(stranger)
        if len(_open) > 50:
            _open.pop(0).close()
        yield


def crowd(ports: Ports, *, count: int, says: bytes) -> Iterator[None]:
    """As many connections as there may be, each of which says a little, byte by byte."""
    while len(_open) < count:
        try:
            _open.append(Stranger.to(ports.mqtt))
        except OSError:
            break
        yield
    for place in itertools.cycle(range(len(says))):
        for stranger in _open:
            stranger.send(says[place : place + 1])
            stranger.read()
        yield


def grpc_crowd(ports: Ports) -> Iterator[None]:
    """The beginning of HTTP/2 and no more, on many connections to the gRPC port."""
    while True:
        strangers = [Stranger.to(ports.grpc) for _ in range(100)]
        for stranger in strangers:
            stranger.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9) * 2_000)
        yield from _quiet(strangers, 0.2)
        for stranger in strangers:
            stranger.close()


def _quiet(strangers: list[Stranger], seconds: float) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for stranger in strangers:
            stranger.read()
        time.sleep(0.002)
        yield


ATTACKS: Final[dict[str, Attack]] = {
    "subscribe": partial(subscribe_packets, reads=True),
    "subscribe-unread": partial(subscribe_packets, reads=False),
    "subscribe-large": partial(large_packets, leaves=False),
    "unsubscribe": unsubscribe_storm,
    "unsubscribe-large": partial(large_packets, leaves=True),
    "wildcards": wildcards,
    "overlaps": overlaps,
    "small-subscribes": partial(small_subscribes, clean=True),
    "small-durable": partial(small_subscribes, clean=False),
    "session-ends": partial(session_ends, clean=True),
    "session-loads": partial(session_ends, clean=False),
    "qos1-unread": partial(publishes, qos=1),
    "qos2-unread": partial(publishes, qos=2),
    "qos2-open": partial(open_flows, clean=True),
    "qos2-open-durable": partial(open_flows, clean=False),
    "pubrel-unread": partial(acks, kind=wire.PUBREL, clean=True),
    "pubrel-durable": partial(acks, kind=wire.PUBREL, clean=False),
    "puback": partial(acks, kind=wire.PUBACK, clean=True),
    "ping-unread": pings,
    "flood": partial(flood, count=4, size=16),
    "flood-many": partial(flood, count=500, size=16),
    "flood-64k": partial(flood, count=8, size=65_000),
    "flood-16m": partial(flood, count=4, size=16_000_000),
    "flood-listeners": partial(flood, count=2, size=16, listeners=400),
    "flood-large-listeners": partial(flood, count=2, size=65_000, listeners=400),
    "parts": parts_of_packets,
    "wills": wills,
    "takeovers": partial(takeovers, clean=True),
    "takeovers-durable": partial(takeovers, clean=False),
    "connects": partial(connects, clean=True),
    "connects-durable": partial(connects, clean=False),
    "crowd": partial(crowd, count=10_000, says=b"\x10\x7f" + bytes(100)),
    "crowd-pings": partial(crowd, count=5_000, says=wire.connect("") + b"\xc0\0" * 200),
    "garbage-mqtt": partial(garbage, port="mqtt"),
    "garbage-link": partial(garbage, port="link"),
    "garbage-grpc": partial(garbage, port="grpc"),
    "half-grpc": grpc_crowd,
    "streams-half": half_messages,
    "slow-garbage": slow_garbage,
    "deep": deep_topics,
    "stuck-subscribers": stuck_subscribers,
    "retained-flood": partial(retained_flood, size=16),
    "retained-flood-64k": partial(retained_flood, size=65_000),
    "retained-answers": retained_answers,
    **{name: partial(call_storm, call=call) for name, call in CALLS.items()},
    **HTTP2,
    **ATTACKS_5,
}
