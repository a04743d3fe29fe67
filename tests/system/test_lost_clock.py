"""
A node that has lost its disk, or got an older copy of it, while its clock is behind.

Numbers that must not come twice begin anew with such a folder. A board without a battery wakes up
in an earlier year, so the time of day alone is no ground for them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults import clocks, disks
from tests.faults.clocks import Clock
from tests.support.nodes import NodeProcess, close_all, topology
from tests.support.rawclient import RawClient
from tests.system.commands import output, wait_until

DAY = 86_400.0

Make = Callable[[str | None], "Pair"]

pytestmark = pytest.mark.skipif(disks.compiler() is None, reason="needs a C compiler")


class Pair:
    """A root, and a node below it whose clock steps: a pure edge, or the owner of zone `a`."""

    def __init__(self, directory: Path, zone: str | None) -> None:
        self.directory = directory
        library = clocks.build(directory)
        self.clock = Clock(directory / "clock", library)
        self.root = NodeProcess(directory, topology("root", zone=""))
        self.node = NodeProcess(
            directory,
            topology("node", zone=zone, parent=self.root.grpc),
            env=self.clock.environment(),
        )
        self.root.start()
        self.join()

    def join(self) -> None:
        self.node.start()
        self.node.wait_event("join.granted", 30.0)

    def backup(self, name: str) -> Path:
        target = self.directory / name
        output("backup", self.node.grpc, target)
        return target

    def replace(self, copy: Path | None) -> None:
        """The node begins again with the copy, or with nothing."""
        self.node.kill()
        shutil.rmtree(self.node.data)
        if copy is not None:
            shutil.copytree(copy, self.node.data)
        self.join()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Pair] = []

    def pair(zone: str | None) -> Pair:
        made.append(Pair(tmp_path, zone))
        return made[-1]

    yield pair
    close_all(node for each in made for node in (each.node, each.root))


def pass_on(pair: Pair, name: str, count: int = 20) -> None:
    """Messages from the node to the root's zone: a durable session there gets each once."""
    with RawClient(pair.root.mqtt) as subscriber, RawClient(pair.node.mqtt) as publisher:
        subscriber.connect(f"subscriber {name}", clean=False)
        subscriber.subscribe((f"x/{name}", 2))
        publisher.connect(f"publisher {name}")
        payloads = [b"%s %d" % (name.encode(), number) for number in range(count)]
        for payload in payloads:
            publisher.publish(f"x/{name}", payload, qos=2)
        assert payloads == [message.payload for message in subscriber.take(count)]


def test_lost_disk(make: Make) -> None:
    """The first one began eight days ahead."""
    pair = make(None)
    pair.replace(None)
    pair.clock.step(8 * DAY)
    pair.replace(None)
    pass_on(pair, "ahead")

    pair.clock.step(-20 * DAY)
    pair.replace(None)

    pass_on(pair, "behind")
    wait_until(lambda: pair.node.has_event("link.opened"), what="a link")


@pytest.mark.parametrize("zone", [None, "a"])
def test_older_copy_twice(make: Make, zone: str | None) -> None:
    """Its lives since then have used numbers that the copy knows nothing of."""
    pair = make(zone)
    copy = pair.backup("copy")
    pass_on(pair, "first")
    pair.replace(copy)
    pass_on(pair, "second")
    pair.clock.step(-10 * DAY)
    pair.replace(copy)
    pass_on(pair, "third")
    pair.node.kill()
    pair.join()
    pass_on(pair, "fourth")


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param((10 * DAY, -20 * DAY), id="behind the copy"),
        pytest.param((10 * DAY, -5 * DAY), id="behind the first one"),
        pytest.param((10 * DAY, -9 * DAY, -9 * DAY, 30 * DAY), id="to and fro"),
    ],
)
def test_zone_of_an_older_copy(make: Make, steps: tuple[float, ...]) -> None:
    """A session at the parent has read offsets that the copy knows nothing of."""
    pair = make("a")
    copy = pair.backup("copy")
    with RawClient(pair.root.mqtt) as client:
        client.connect("reader", clean=False)
        client.subscribe(("a/x", 2))
        for number, moved in enumerate((0.0, *steps)):
            if number:
                pair.clock.step(moved)
                pair.replace(copy)
            with RawClient(pair.node.mqtt) as publisher:
                publisher.connect("publisher")
                payloads = [b"%d %d" % (number, each) for each in range(20)]
                for payload in payloads:
                    publisher.publish("a/x", payload, qos=2)
            assert payloads == [message.payload for message in client.take(20)]
