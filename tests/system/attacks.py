"""
A stranger's best effort on the ports of a node, for some seconds each.

    python -m tests.system.attacks NAME MQTT_PORT LINK_PORT SECONDS

runs one of `ATTACKS` from a process of its own; without arguments each is run against a node of its
own, and a table says what an innocent client and the node's memory saw of it.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.support import wire
from tests.support.nodes import ROOT, Address, NodeProcess, parse_address, topology
from tests.system.innocents import Pair, Stranger, quantile, resident

Step = Callable[[Stranger], None]

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


def subscribe_packets(mqtt: Address, _: Address, *, reads: bool) -> Iterator[None]:
    """Many SUBSCRIBE packets with thousands of filters."""
    strangers = [member(mqtt, f"subscribe {n}") for n in range(4)]
    packets = [wire.subscribe(1 + n, *many_filters(str(n))) for n in range(4)]
    return repeat(strangers, itertools.cycle(packets), reads=reads)


def wildcards(mqtt: Address, _: Address) -> Iterator[None]:
    """Four clients with 4,096 wildcard filters each, again and again."""
    while True:
        strangers = [member(mqtt, f"wild {n}") for n in range(4)]
        for number, stranger in enumerate(strangers):
            packet = wire.subscribe(1, *many_filters(f"{number}", 4_096))
            while not stranger.send(packet) and not stranger.is_closed:
                yield
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            for stranger in strangers:
                stranger.read()
            yield
        for stranger in strangers:
            stranger.close()


def unsubscribe_storm(mqtt: Address, _: Address) -> Iterator[None]:
    """UNSUBSCRIBE packets with thousands of filters."""
    strangers = [member(mqtt, f"unsubscribe {n}") for n in range(4)]
    filters = many_filters("u")
    take = wire.subscribe(1, *filters)
    leave = wire.unsubscribe(2, *(text for text, _ in filters))
    empty = wire.unsubscribe(3, *(f"n/{number}" for number in range(FILTERS)))
    return repeat(strangers, itertools.cycle([take, leave, empty, empty, empty]), reads=True)


def small_subscribes(mqtt: Address, _: Address, *, clean: bool) -> Iterator[None]:
    """SUBSCRIBE packets of one filter, in bulk, answers unread."""
    strangers = [member(mqtt, f"small {n} {clean}", clean=clean) for n in range(4)]
    packets = b"".join(wire.subscribe(1 + n, (f"small/{n}", 1)) for n in range(2_000))
    return repeat(strangers, itertools.repeat(packets), reads=False)


def publishes(mqtt: Address, _: Address, *, qos: int) -> Iterator[None]:
    """Publishes whose acknowledgements nobody reads."""
    strangers = [member(mqtt, f"publish {qos} {n}") for n in range(4)]
    packets = b"".join(
        wire.publish(f"flood/{n % 50}", b"x", qos=qos, packet_id=n + 1) for n in range(2_000)
    )
    return repeat(strangers, itertools.repeat(packets), reads=False)


def releases(mqtt: Address, _: Address) -> Iterator[None]:
    """PUBREL packets of unknown ids, whose PUBCOMP nobody reads."""
    strangers = [member(mqtt, f"release {n}") for n in range(4)]
    packets = b"".join(wire.ack(wire.PUBREL, n + 1) for n in range(20_000))
    return repeat(strangers, itertools.repeat(packets), reads=False)


def pings(mqtt: Address, _: Address) -> Iterator[None]:
    """PINGREQ packets whose answers nobody reads."""
    strangers = [member(mqtt, f"ping {n}") for n in range(4)]
    packets = wire.packet(wire.PINGREQ, 0) * 50_000
    return repeat(strangers, itertools.repeat(packets), reads=False)


def wills(mqtt: Address, _: Address) -> Iterator[None]:
    """500 clients with retained wills of QoS 1 that break off at once."""
    while True:
        strangers = [
            member(
                mqtt,
                f"will {n}",
                will=wire.Will(topic=f"will/{n}", payload=bytes(1_000), qos=1, retain=True),
            )
            for n in range(500)
        ]
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            for stranger in strangers:
                stranger.read()
            yield
        for stranger in strangers:
            stranger.close()


def garbage(mqtt: Address, link: Address, *, port: str) -> Iterator[None]:
    """Bytes that are no packets, from one connection after the other."""
    data = bytes(range(256)) * 256
    while True:
        strangers = [Stranger.to(mqtt if port == "mqtt" else link) for _ in range(50)]
        for stranger in strangers:
            stranger.send(data)
        yield
        for stranger in strangers:
            stranger.close()


def slow_garbage(mqtt: Address, link: Address) -> Iterator[None]:
    """The beginning of a large frame on many connections, to both ports."""
    for number in range(2_000):
        stranger = Stranger.to(mqtt if number % 2 else link)
        stranger.send((b"\x10" if number % 2 else b"\x00") + b"\xff\xff\x7f" + bytes(100_000))
        _open.append(stranger)
        yield
    while True:
        time.sleep(0.01)
        yield


_open: Final[list[Stranger]] = []
"""What stays open until the end."""


def deep_topics(mqtt: Address, _: Address) -> Iterator[None]:
    """Retained messages and filters of 200 levels."""
    strangers = [member(mqtt, f"deep {n}") for n in range(4)]

    def packets() -> Iterator[bytes]:
        for number in itertools.count():
            levels = "/".join(str(number + n) for n in range(199))
            publish = wire.publish(f"d/{levels}", b"x", retain=True)
            filters = [("d/" + "+/" * n + "#", 0) for n in range(150, 198)]
            yield publish * 5 + wire.subscribe(1 + number % 60_000, *filters)

    return repeat(strangers, packets(), reads=True)


def connects(mqtt: Address, _: Address, *, clean: bool) -> Iterator[None]:
    """Connections with a session each, one after the other."""
    for number in itertools.count():
        stranger = member(mqtt, f"connect {number}", clean=clean)
        _open.append(stranger)
        if len(_open) > 300:
            _open.pop(0).close()
        yield


def stuck_subscribers(mqtt: Address, _: Address) -> Iterator[None]:
    """Four new subscribers a second that read nothing."""
    for number in itertools.count():
        stranger = member(mqtt, f"stuck {number}")
        stranger.send(wire.subscribe(1, ("#", 0)))
        _open.append(stranger)
        deadline = time.monotonic() + 0.25
        while time.monotonic() < deadline:
            time.sleep(0.01)
            yield


def retained_answers(mqtt: Address, _: Address) -> Iterator[None]:
    """Ten thousand retained messages, asked for by all again and again."""
    strangers = [member(mqtt, f"retained {n}") for n in range(4)]
    for start in range(0, 10_000, 500):
        packets = (wire.publish(f"r/{n}", b"x", retain=True) for n in range(start, start + 500))
        while not strangers[0].send(b"".join(packets)):
            yield
    asked = wire.subscribe(1, ("r/#", 0)) * 50
    yield from repeat(strangers, itertools.repeat(asked), reads=True)


ATTACKS: Final[dict[str, Callable[[Address, Address], Iterator[None]]]] = {
    "subscribe": lambda m, k: subscribe_packets(m, k, reads=True),
    "subscribe-unread": lambda m, k: subscribe_packets(m, k, reads=False),
    "wildcards": wildcards,
    "unsubscribe": unsubscribe_storm,
    "small-subscribes": lambda m, k: small_subscribes(m, k, clean=True),
    "small-durable": lambda m, k: small_subscribes(m, k, clean=False),
    "qos1-unread": lambda m, k: publishes(m, k, qos=1),
    "qos2-unread": lambda m, k: publishes(m, k, qos=2),
    "pubrel-unread": releases,
    "ping-unread": pings,
    "wills": wills,
    "garbage-mqtt": lambda m, k: garbage(m, k, port="mqtt"),
    "garbage-link": lambda m, k: garbage(m, k, port="link"),
    "slow-garbage": slow_garbage,
    "deep": deep_topics,
    "connects": lambda m, k: connects(m, k, clean=True),
    "connects-durable": lambda m, k: connects(m, k, clean=False),
    "stuck-subscribers": stuck_subscribers,
    "retained-answers": retained_answers,
}


def command(name: str, node: NodeProcess, seconds: float) -> list[str]:
    """The command that attacks the node; it leaves the processor to whom it is measured by."""
    ports = [str(node.mqtt[1]), str(parse_address(node.link)[1])]
    module = [sys.executable, "-m", "tests.system.attacks"]
    return ["nice", "-n", "10", *module, name, *ports, str(seconds)]


def attack(name: str, mqtt: Address, link: Address, seconds: float) -> None:
    """Do one of them."""
    until = time.monotonic() + seconds
    for _ in ATTACKS[name](mqtt, link):
        if time.monotonic() > until:
            return


def measure(name: str, node: NodeProcess, seconds: float) -> dict[str, float]:
    """What an innocent pair saw during it and after it, in ms; the node's memory in MiB."""
    most = resident(node)
    with Pair(address=node.mqtt, topic="innocent") as pair:
        time.sleep(1)
        began = time.monotonic()
        with subprocess.Popen(command(name, node, seconds), cwd=ROOT) as process:
            while process.poll() is None:
                most = max(most, resident(node))
                time.sleep(0.05)
        ended = time.monotonic()
        time.sleep(2)
        most = max(most, resident(node))
    during, after = pair.between(began, ended), pair.between(ended, ended + 60)
    return {
        "p50": 1e3 * quantile(during, 0.5),
        "p99": 1e3 * quantile(during, 0.99),
        "worst": 1e3 * quantile(during, 1.0),
        "after": 1e3 * quantile(after, 1.0),
        "count": len(during),
        "memory": most / 2**20,
    }


def main(arguments: list[str]) -> None:
    """See the module's text."""
    if len(arguments) == 4:
        name, mqtt, link, seconds = arguments
        host = "127.0.0.1"
        attack(name, (host, int(mqtt)), (host, int(link)), float(seconds))
        return
    for name in arguments or ATTACKS:
        with tempfile.TemporaryDirectory() as directory:
            node = NodeProcess(Path(directory), topology("node", zone=""))
            with node:
                try:
                    found = measure(name, node, 4.0)
                except BaseException as error:
                    print(f"{name:18} {type(error).__name__} {error}"[:200], flush=True)
                    continue
                text = " ".join(f"{key} {value:9.1f}" for key, value in found.items())
                print(f"{name:18} {text}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
