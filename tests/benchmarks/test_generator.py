"""
The load generator against a real node, and against brokers that lose, double, reorder or damage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import generator
from benchmarks.generator import RunFailed
from tests.benchmarks.spoiler import Spoil, Spoiler, number_of
from tests.support.nodes import NodeProcess, topology

FEW = {"rate": 2000, "seconds": 0.1, "patience": 0.5}
"""200 messages."""


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    generator.build()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a node that owns everything."""
    with NodeProcess(tmp_path_factory.mktemp("node"), topology("solo", zone="")) as node:
        yield node.mqtt[1]


@contextlib.contextmanager
def spoiled(spoil: Spoil, *, level: int = 4, in_turn: bool = False) -> Iterator[int]:
    """The port of a broker that does this to its messages."""
    broker = Spoiler(spoil, level=level, in_turn=in_turn)
    try:
        yield broker.port
    finally:
        broker.close()


# -- a broker that does nothing wrong


@pytest.mark.parametrize(
    "arguments",
    [
        {"publishers": 3, "subscribers": 3},
        {"publishers": 2, "subscribers": 5, "mapping": "all"},
        {"publishers": 3, "subscribers": 4, "mapping": "wildcards", "filters": 40},
        {"publishers": 2, "subscribers": 2, "qos": "mixed", "window": 20},
        {"qos": 2, "subscribe-qos": 1, "durable": 1},
        {"size": 16},
        {"size": 300_000, "outstanding": 20},
        {"batch": 0, "churn": 2, "slow": 1},
        {"publishers": 3, "subscribers": 3, "level": 5, "properties": 2, "qos": "mixed"},
        {"level": 5, "properties": 2, "qos": 1, "durable": 1},
        {"publisher-level": 5, "properties": 2},
        {"level": 5, "properties": 1, "expiry": 60, "qos": "mixed"},
        {"level": 5, "publisher-level": 4},
        {"publishers": 3, "subscribers": 4, "level": 5, "mapping": "shared", "qos": "mixed"},
        {"publishers": 3, "subscribers": 2, "mapping": "shared"},
    ],
    ids=[
        *("pairs", "fan-out", "wildcards", "mixed", "qos2", "16B", "300kB", "churn"),
        *("level5", "level5-durable", "5-to-4", "expiry", "4-to-5", "shared5", "shared4"),
    ],
)
def test_a_node_delivers_all_that_is_published(port: int, arguments: dict[str, object]) -> None:
    """Every message is there once for each subscription that matches it."""
    figures = generator.run({"ports": port, "seconds": 0.3, **arguments})

    copies = {"all": 5, "wildcards": 2}.get(str(arguments.get("mapping")), 1)
    assert figures["published"] > 0
    assert copies * figures["published"] == figures["delivered"]


def test_a_rate_is_kept(port: int) -> None:
    """As many messages as the rate says, with the delays of all of them."""
    figures = generator.run({"ports": port, "rate": 500, "seconds": 0.5, "qos": 1})

    assert 250 == figures["delivered"]
    assert 0 < figures["p50_us"] <= figures["p99_us"] <= figures["max_us"]


@pytest.mark.parametrize("mode", ["connect", "cycle"])
@pytest.mark.parametrize("qos", [0, 1])
def test_connections_come_and_go(port: int, mode: str, qos: int) -> None:
    """All of them get to their end."""
    figures = generator.run({"ports": port, "mode": mode, "qos": qos, "connections": 100})

    assert 100 == figures["connections"]


def test_idle_connections_stay_until_the_end_of_the_block(port: int) -> None:
    """They are there when the block begins."""
    with generator.idle({"ports": port, "connections": 100}) as figures:
        assert 100 == figures["connections"]


# -- brokers that do something wrong


def at(count: int, change: Callable[[bytes], list[bytes]]) -> Spoil:
    """Does it to one message."""
    return lambda place, packet: change(packet) if place == count else [packet]


def drop(packet: bytes) -> list[bytes]:
    """Nothing is delivered."""
    return []


def double(packet: bytes) -> list[bytes]:
    """It is delivered twice."""
    return [packet, packet]


def damage(packet: bytes) -> list[bytes]:
    """The last byte is another one."""
    return [packet[:-1] + bytes([packet[-1] ^ 1])]


def other_topic(packet: bytes) -> list[bytes]:
    """The last letter of the topic is another one."""
    end = 4 + int.from_bytes(packet[2:4])
    return [packet[: end - 1] + b"X" + packet[end:]]


def retained(packet: bytes) -> list[bytes]:
    """It looks like an old one."""
    return [bytes([packet[0] | 1]) + packet[1:]]


def swapped(count: int) -> Spoil:
    """Two messages that follow one another change their places."""
    held: list[bytes] = []

    def spoil(place: int, packet: bytes) -> list[bytes]:
        if place == count:
            held.append(packet)
            return []
        return [packet, held.pop()] if held else [packet]

    return spoil


@pytest.mark.parametrize(
    ("spoil", "fresh", "said"),
    [
        (at(100, drop), 0, "message 101 of bench/p0000/t0000/now came in the place of 100"),
        (at(199, drop), 0, "messages 199 to 199 are missing; 1 of 200 deliveries did not come"),
        (at(100, drop), 1, "1 of 200 deliveries did not come"),
        (at(100, double), 0, "message 100 of bench/p0000/t0000/now came twice"),
        (at(199, double), 0, "message 199 of bench/p0000/t0000/now came twice"),
        (at(100, double), 1, "message 100 of bench/p0000/t0000/00000000 came twice"),
        (swapped(100), 0, "message 101 of bench/p0000/t0000/now came in the place of 100"),
        (at(100, damage), 0, "a payload is damaged"),
        (at(100, other_topic), 0, "came with the topic bench/p0000/t0000/noX"),
        (at(100, other_topic), 1, "came with the topic bench/p0000/t0000/0000006X"),
        (at(100, retained), 0, "retain 1"),
    ],
    ids=[
        *("lost", "last-lost", "fresh-lost", "doubled", "last-doubled", "fresh-doubled"),
        *("swapped", "damaged", "other-topic", "fresh-other-topic", "retained"),
    ],
)
def test_what_goes_wrong_is_told(spoil: Spoil, fresh: int, said: str) -> None:
    """A run in which it happens fails, and the message says what it was."""
    with spoiled(spoil) as port, pytest.raises(RunFailed) as failed:
        generator.run({"ports": port, "fresh": fresh, **FEW})

    assert said in str(failed.value)


def other_property(packet: bytes) -> list[bytes]:
    """The last letter of the properties is another one."""
    place = packet.index(b"value-1") + len("value-1")
    return [packet[: place - 1] + b"X" + packet[place:]]


def longer_interval(packet: bytes) -> list[bytes]:
    """The message expires a second later than its publisher said."""
    place = packet.index(b"\x02\0\0\0\x3c")
    return [packet[:place] + b"\x02\0\0\0\x3d" + packet[place + 5 :]]


@pytest.mark.parametrize(
    ("spoil", "expiry"), [(other_property, 0), (other_property, 60), (longer_interval, 60)]
)
def test_properties_that_change_are_told(
    spoil: Callable[[bytes], list[bytes]], expiry: int
) -> None:
    """They belong to the message."""
    arguments = {"level": 5, "properties": 2, "expiry": expiry, **FEW}
    with (
        spoiled(at(100, spoil), level=5) as port,
        pytest.raises(RunFailed, match="came with other properties"),
    ):
        generator.run({"ports": port, **arguments})


@pytest.mark.parametrize(
    ("spoil", "fresh", "said"),
    [
        (at(100, drop), 0, "message 100 of bench/p0000/t0000/now has come to no member"),
        (at(100, drop), 1, "1 of 200 deliveries did not come"),
        (at(100, double), 0, "message 100 of bench/p0000/t0000/now came twice to the group"),
        (at(100, double), 1, "message 100 of bench/p0000/t0000/00000000 came twice to the group"),
        (swapped(100), 0, "message 100 of bench/p0000/t0000/now came after 101"),
    ],
    ids=["lost", "fresh-lost", "doubled", "fresh-doubled", "swapped"],
)
def test_what_goes_wrong_in_a_group_is_told(spoil: Spoil, fresh: int, said: str) -> None:
    """Each message comes to one member, in its order."""
    with spoiled(spoil) as port, pytest.raises(RunFailed) as failed:
        generator.run({"ports": port, "fresh": fresh, "mapping": "shared", **FEW})

    assert said in str(failed.value)


def test_a_message_to_two_members_is_told() -> None:
    """All get their copy of this one, as without a group."""
    with spoiled(at(100, double), in_turn=True) as port, pytest.raises(RunFailed) as failed:
        generator.run({"ports": port, "fresh": 0, "mapping": "shared", "subscribers": 2, **FEW})

    assert "came twice to the group" in str(failed.value)


def test_topics_that_are_used_once_may_change_places() -> None:
    """Order is promised within a topic."""
    numbers: list[int] = []
    swap = swapped(100)

    def spoil(place: int, packet: bytes) -> list[bytes]:
        chosen = swap(place, packet)
        numbers.extend(map(number_of, chosen))
        return chosen

    with spoiled(spoil) as port:
        figures = generator.run({"ports": port, "fresh": 1, **FEW})

    assert 200 == figures["delivered"]
    assert [99, 101, 100, 102] == numbers[99:103]


def test_a_broker_that_closes_is_told() -> None:
    """Also before anything was published."""

    def close(place: int, packet: bytes) -> list[bytes]:
        raise OSError

    with spoiled(close) as port, pytest.raises(RunFailed, match="the broker has closed"):
        generator.run({"ports": port, **FEW})


def test_the_command_line_has_lists_with_commas(tmp_path: Path) -> None:
    """And leaves out what is empty."""
    command = generator.command_of({"ports": (1, 2), "qos": 1}, [])

    assert [str(generator.PROGRAM), "--ports", "1,2", "--qos", "1"] == command
