"""Attacks with what MQTT 5.0 has, and with the largest fields of each packet."""

from __future__ import annotations

import itertools
import os
import socket
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from tests.support import wire, wire5
from tests.support.nodes import Address
from tests.system.innocents import Ports, Stranger, sent

Attack = Callable[[Ports], Iterator[None]]

LONG: Final = 65_000
"""Bytes of a field that is as long as fields may be."""

USER_PROPERTY: Final = bytes((wire5.USER_PROPERTY,)) + bytes(4)
"""The smallest user property, as bytes."""

_open: Final[list[Stranger]] = []
"""What stays open until the end."""


def member5(address: Address, name: str, properties: wire5.Properties | bytes = b"") -> Stranger:
    """A stranger of level 5 that has connected."""
    made = Stranger.to(address)
    made.send(wire5.connect(f"{name} {os.getpid()}", properties=properties))
    return made


def long_filters(ports: Ports) -> Iterator[None]:
    """As many filters as a session may have, each as long as a filter may be."""
    for number in itertools.count():
        stranger = Stranger.to(ports.mqtt)
        stranger.send(wire.connect(f"long {number} {os.getpid()}"))
        _open.append(stranger)
        for place in range(500):
            filters = [(f"{number}/{place}/{n}/".ljust(LONG, "f"), 0) for n in range(20)]
            yield from sent(stranger, wire.subscribe(1 + place, *filters))
            stranger.read()
            if stranger.is_closed:
                break


def large_wills(ports: Ports) -> Iterator[None]:
    """Thousands of clients whose wills are as large as wills may be, and who stay."""
    while len(_open) < 15_000:
        will = wire.Will(topic=f"{len(_open)}/".ljust(LONG, "w"), payload=bytes(LONG))
        stranger = Stranger.to(ports.mqtt)
        _open.append(stranger)
        yield from sent(stranger, wire.connect(f"will {len(_open)} {os.getpid()}", will=will))
        stranger.read()
    yield from idle()


def delayed_wills(ports: Ports) -> Iterator[None]:
    """Clients that leave large wills which are due in a day."""
    for number in itertools.count():
        stranger = Stranger.to(ports.mqtt)
        will = wire5.Will(
            topic=f"delayed/{number}",
            payload=bytes(LONG),
            properties=[(wire5.WILL_DELAY, 86_400)],
        )
        packet = wire5.connect(
            f"delayed {number} {os.getpid()}",
            properties=[(wire5.SESSION_EXPIRY, 86_400)],
            will=will,
        )
        yield from sent(stranger, packet)
        _open.append(stranger)
        if len(_open) > 200:
            _open.pop(0).close()
        yield


def aliases(ports: Ports) -> Iterator[None]:
    """A hundred topic aliases of each of thousands of clients, with the longest topics."""
    while len(_open) < 15_000:
        stranger = member5(ports.mqtt, f"alias {len(_open)}")
        _open.append(stranger)
        for alias in range(1, 101):
            topic = f"{alias}/".ljust(LONG, "a")
            packet = wire5.publish(topic, b"x", properties=[(wire5.ALIAS, alias)])
            yield from sent(stranger, packet)
            if stranger.is_closed:
                break
    yield from idle()


def aliases_taken(ports: Ports) -> Iterator[None]:
    """Thousands of subscribers for whom the node remembers as many topics as they allow."""
    topics = [f"taken/{n}/".ljust(1_000, "t") for n in range(160)]
    publisher = member5(ports.mqtt, "alias publisher")
    once = b"".join(wire5.publish(topic, b"x") for topic in topics)
    while len(_open) < 15_000:
        stranger = member5(ports.mqtt, f"alias {len(_open)}", [(wire5.ALIAS_MAXIMUM, 65_535)])
        stranger.send(wire5.subscribe(1, ("taken/#", 0)))
        _open.append(stranger)
        if len(_open) % 100 == 0:
            for _ in range(2):
                yield from sent(publisher, once)
                for one in _open[-100:]:
                    one.read()
            for one in _open[-100:]:
                one.send(wire5.unsubscribe(2, "taken/#"))
        yield
    yield from idle()


def many_properties(ports: Ports, *, kind: str) -> Iterator[None]:
    """Packets that are made of millions of user properties."""
    listed = USER_PROPERTY
    packets = {
        "publish": wire5.publish("p", b"x", properties=listed * 2_500_000),
        "qos1": wire5.publish("p", b"x", qos=1, packet_id=1, properties=listed * 13_000),
        "subscribe": wire5.subscribe(1, ("p", 0), properties=listed * 2_500_000),
        "disconnect": wire5.disconnect(0, properties=listed * 2_500_000),
    }
    while True:
        strangers = [member5(ports.mqtt, f"properties {n}") for n in range(4)]
        for _ in range(20):
            for stranger in strangers:
                yield from sent(stranger, packets[kind])
            yield  # those that are closed by now send nothing


def large_connects(ports: Ports) -> Iterator[None]:
    """CONNECT packets that are made of user properties, one after the other."""
    packet = wire5.connect("properties", properties=USER_PROPERTY * 60_000)
    while True:
        strangers = [Stranger.to(ports.mqtt) for _ in range(10)]
        for stranger in strangers:
            yield from sent(stranger, packet)
        for stranger in strangers:
            stranger.close()
        yield


def auths(ports: Ports) -> Iterator[None]:
    """Strangers that want to authenticate, and some that say so after CONNACK."""
    for number in itertools.count():
        method: wire5.Properties = [
            (wire5.AUTH_METHOD, "m" * LONG),
            (wire5.AUTH_DATA, bytes(LONG)),
        ]
        stranger = Stranger.to(ports.mqtt)
        stranger.send(wire5.connect(f"auth {number}", properties=method if number % 2 else []))
        stranger.send(wire5.auth(0x18))
        _open.append(stranger)
        if len(_open) > 100:
            _open.pop(0).close()
        yield


def group_storm(ports: Ports, *, qos: int) -> Iterator[None]:
    """Two clients in thousands of groups each, and publishes that all of these share."""
    for number in range(2):
        stranger = member5(ports.mqtt, f"groups {number}")
        _open.append(stranger)
        for start in range(0, 9_000, 100):
            filters = [(f"$share/g{n}/group/#", 1) for n in range(start, start + 100)]
            yield from sent(stranger, wire5.subscribe(1 + start, *filters))
            stranger.read()
    publisher = member5(ports.mqtt, "group publisher")
    packet = wire5.publish("group/x", b"x", qos=qos, packet_id=1)
    while True:
        publisher.send(packet)
        for stranger in (*_open, publisher):
            stranger.read()
        yield


def group_churn(ports: Ports) -> Iterator[None]:
    """Groups that begin and end at once."""
    strangers = [member5(ports.mqtt, f"churn {n}") for n in range(4)]
    for number in itertools.count():
        groups = [f"$share/c{number % 50}-{n}/churn/{n}" for n in range(50)]
        for place, stranger in enumerate(strangers):
            stranger.send(
                wire5.subscribe(1, *((f"{one}/{place}", 1) for one in groups))
                + wire5.unsubscribe(2, *(f"{one}/{place}" for one in groups))
            )
            stranger.read()
        yield


def identifiers(ports: Ports) -> Iterator[None]:
    """Thousands of overlapping subscriptions of a client, with an identifier each."""
    strangers = [member5(ports.mqtt, f"identifiers {n}") for n in range(4)]
    for stranger in strangers:
        for number, levels in enumerate(itertools.product("a+", repeat=12)):
            properties: wire5.Properties = [(wire5.SUBSCRIPTION_ID, 200_000_000 + number)]
            packet = wire5.subscribe(1, ("/".join(levels), 0), properties=properties)
            yield from sent(stranger, packet)
            stranger.read()
    packets = wire5.publish("/".join("a" * 12), b"x") * 10
    while True:
        for stranger in strangers:
            stranger.send(packets)
            stranger.read()
        yield


def resets(ports: Ports, *, says: bytes) -> Iterator[None]:
    """Connections that are reset at once."""
    while True:
        for port in (ports.mqtt, ports.link, ports.grpc):
            stranger = Stranger.to(port)
            stranger.send(says)
            linger = struct.pack("ii", 1, 0)
            stranger.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            stranger.close()
        yield


def half_closed(ports: Ports) -> Iterator[None]:
    """Clients that say all they have to say, and stay to listen."""
    for number in itertools.count():
        stranger = Stranger.to(ports.mqtt)
        stranger.send(wire.connect(f"half {number} {os.getpid()}") + wire.subscribe(1, ("#", 0)))
        stranger.socket.shutdown(socket.SHUT_WR)
        _open.append(stranger)
        if len(_open) > 2_000:
            _open.pop(0).close()
        yield


def new_topics(ports: Ports) -> Iterator[None]:
    """Publishes of QoS 0 and 1, each to a topic that has never been."""
    strangers = [member5(ports.mqtt, f"topics {n}") for n in range(4)]
    numbers = itertools.count()
    while True:
        for stranger in strangers:
            stranger.send(
                b"".join(
                    wire5.publish(f"child/{n}/new" if n % 2 else f"{n}/new", b"x")
                    for n in itertools.islice(numbers, 500)
                )
            )
            stranger.read()
        yield


def idle() -> Iterator[None]:
    """Stay."""
    while True:
        for stranger in _open:
            stranger.read()
            yield


ATTACKS_5: Final[dict[str, Attack]] = {
    "long-filters": long_filters,
    "large-wills": large_wills,
    "delayed-wills": delayed_wills,
    "aliases": aliases,
    "aliases-taken": aliases_taken,
    "properties-publish": partial(many_properties, kind="publish"),
    "properties-qos1": partial(many_properties, kind="qos1"),
    "properties-subscribe": partial(many_properties, kind="subscribe"),
    "properties-disconnect": partial(many_properties, kind="disconnect"),
    "properties-connect": large_connects,
    "auths": auths,
    "group-storm": partial(group_storm, qos=0),
    "group-storm-qos1": partial(group_storm, qos=1),
    "group-churn": group_churn,
    "identifiers": identifiers,
    "resets": partial(resets, says=b""),
    "resets-connect": partial(resets, says=wire.connect("reset")),
    "half-closed": half_closed,
    "new-topics": new_topics,
}
