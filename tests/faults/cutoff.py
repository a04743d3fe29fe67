"""
A site whose uplink is gone for a while: `python -m tests.faults.cutoff [--minutes M] [--rate R]`.

Two nodes, the root and a site. On each side two clients publish R messages a second in all at
QoS 1, one for the side's own zone, one for the other's, and a durable subscriber takes all. The
line between the two is cut for M minutes, then healed. Printed are, before, during and after: how
long the acknowledgement of a publish took, and the memory of both processes; and how long after the
heal everybody had everything. Status 1 if something was lost, doubled or out of order, or took more
than a minute.
As root, in network namespaces of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import struct
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import attrs

from tests.support import wire
from tests.support.nodes import Address

from .__main__ import INSIDE, UNSHARE
from .conditions import LABORATORY
from .networks import Namespaces
from .trees import NodeShape, Tree
from .world import World

TREE = Tree(
    "cutoff",
    (NodeShape(name="root", zone=""), NodeShape(name="site", zone="site", parent="root")),
)
TICK = 0.01
LIMIT = 60.0
STEADY = 5.0
"""Seconds: between bursts of a publisher, allowed for catching up, and before the cut."""

BODY = struct.Struct(">BI")
SIZE = 64


@attrs.define
class Phase:
    """What was measured from one point to the next; times in milliseconds, memory in MiB."""

    name: str
    waits: dict[str, list[float]] = attrs.Factory(lambda: defaultdict(list))
    memory: dict[str, list[float]] = attrs.Factory(lambda: defaultdict(list))

    def line(self) -> str:
        """For the terminal."""
        lines = [self.name]
        for kind, unsorted in self.waits.items():
            waits = sorted(unsorted)
            p50, p99 = (waits[int(len(waits) * share)] for share in (0.5, 0.99))
            lines.append(
                f"  {kind} zone: {len(waits)} acknowledged after {p50:.1f} ms (p50),"
                f" {p99:.1f} ms (p99), {waits[-1]:.0f} ms (maximum)"
            )
        for node, values in self.memory.items():
            lines.append(f"  memory of {node}: {min(values):.0f} to {max(values):.0f} MiB")
        return "\n".join(lines)


class Client:
    """A connection of asyncio that answers QoS 1; `handle` gets every packet."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def open(self, address: Address, *, clean: bool) -> None:
        """Connect and have the CONNACK."""
        self._reader, self.writer = await asyncio.open_connection(*address)
        self.writer.write(wire.connect(self.name, clean=clean))
        assert (await self._reader.readexactly(4))[3] == 0

    async def read(self) -> None:
        """Take packets for ever."""
        buffer = bytearray()
        while data := await self._reader.read(262_144):
            buffer += data
            while (packet := wire.cut_packet(buffer)) is not None:
                self.handle(packet)
        raise ConnectionError(f"{self.name} was disconnected")

    def handle(self, packet: wire.Packet) -> None:
        """One packet from the node."""
        raise NotImplementedError


class Publisher(Client):
    """Publishes at a fixed rate, whatever is acknowledged."""

    def __init__(self, number: int, node: str, kind: str, topic: str, rate: float) -> None:
        super().__init__(f"pub-{number}")
        self.node = node
        self.phase = Phase("")
        self.sent = 0
        self._number = number
        self._kind = kind
        self._topic = topic
        self._rate = rate
        self._open: dict[int, float] = {}

    @property
    def unacknowledged(self) -> int:
        """Publishes that are on their way."""
        return len(self._open)

    async def publish(self) -> None:
        """Until it is cancelled."""
        begin, before = time.monotonic(), self.sent
        while True:
            due = before + int((time.monotonic() - begin) * self._rate)
            while self.sent < due:
                self.sent += 1
                packet_id = self.sent % 65_535 + 1
                self._open[packet_id] = time.monotonic()
                body = BODY.pack(self._number, self.sent).ljust(SIZE, b".")
                self.writer.write(wire.publish(self._topic, body, qos=1, packet_id=packet_id))
            await asyncio.sleep(TICK)

    def handle(self, packet: wire.Packet) -> None:
        assert packet.kind == wire.PUBACK
        waited = time.monotonic() - self._open.pop(packet.packet_id)
        self.phase.waits[self._kind].append(waited * 1e3)


class Subscriber(Client):
    """Counts what comes from each publisher: in order, and once."""

    def __init__(self, node: str) -> None:
        super().__init__(f"sub-{node}")
        self.node = node
        self.count = 0
        self.faults: list[str] = []
        self._last: dict[int, int] = defaultdict(int)

    def handle(self, packet: wire.Packet) -> None:
        if packet.kind != wire.PUBLISH:
            return
        publish = wire.parse_publish(packet)
        publisher, number = BODY.unpack(publish.payload[: BODY.size])
        if number <= self._last[publisher]:
            last = self._last[publisher]
            self.faults.append(f"{self.name}: {publish.topic} {number} after {last}")
        self._last[publisher] = number
        self.count += 1
        self.writer.write(wire.ack(wire.PUBACK, publish.packet_id))


class Run:
    """The two nodes and their clients."""

    def __init__(self, world: World, rate: float) -> None:
        self._world = world
        self.publishers = [
            Publisher(1, "root", "own", "hall/t", rate / 2),
            Publisher(2, "root", "other", "site/from-root", rate / 2),
            Publisher(3, "site", "own", "site/t", rate / 2),
            Publisher(4, "site", "other", "hall/from-site", rate / 2),
        ]
        self.subscribers = [Subscriber("root"), Subscriber("site")]
        self.phases: list[Phase] = []

    async def open(self) -> list[asyncio.Task[None]]:
        """Connect all; the tasks that read run for ever."""
        places = self._world.network.places
        for subscriber in self.subscribers:
            await subscriber.open(places[subscriber.node].mqtt, clean=False)
            subscriber.writer.write(wire.subscribe(1, ("#", 1)))
        for publisher in self.publishers:
            await publisher.open(places[publisher.node].mqtt, clean=True)
        await asyncio.sleep(1.0)
        return [asyncio.create_task(c.read()) for c in (*self.subscribers, *self.publishers)]

    def begin(self, name: str) -> None:
        """A phase; the one before is over."""
        if self.phases:
            print(self.phases[-1].line(), flush=True)
        self.phases.append(Phase(name))
        for publisher in self.publishers:
            publisher.phase = self.phases[-1]

    async def sample(self) -> None:
        """Memory, once a second, for ever."""
        while True:
            for name, node in self._world.nodes.items():
                self.phases[-1].memory[name].append(anonymous_memory(node.pid))
            await asyncio.sleep(1.0)

    def missing(self) -> int:
        """Deliveries, and acknowledgements, that are still to come."""
        sent = sum(publisher.sent for publisher in self.publishers)
        received = sum(subscriber.count for subscriber in self.subscribers)
        return 2 * sent - received + sum(each.unacknowledged for each in self.publishers)


def anonymous_memory(pid: int) -> float:
    """RssAnon of a node's process and of those that it began, in MiB."""
    found = 0.0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            found += int(line.split()[1]) / 1024
    return found


async def play(minutes: float, rate: float) -> bool:
    """True if all was kept."""
    with tempfile.TemporaryDirectory(prefix="txbroker-cutoff-") as folder:
        network = Namespaces(TREE.names)
        world = World(TREE, network, Path(folder), None, None, LABORATORY, mount=False, seed=1)
        try:
            return await _play(world, minutes, rate)
        finally:
            await asyncio.to_thread(world.close)


async def _play(world: World, minutes: float, rate: float) -> bool:
    await asyncio.to_thread(world.start_all)
    for node in world.nodes.values():
        await asyncio.to_thread(node.wait_event, "node.ready", after=0)
    await asyncio.to_thread(world.nodes["root"].wait_event, "child.joined", after=0)
    run = Run(world, rate)
    reading = await run.open()
    run.begin("together")
    sampling = asyncio.create_task(run.sample())
    publishing = [asyncio.create_task(each.publish()) for each in run.publishers]
    await asyncio.sleep(STEADY)
    world.network.cut([("root", "site"), ("site", "root")])
    run.begin(f"cut off for {minutes:g} min")
    await asyncio.sleep(60 * minutes)
    world.network.cut([])
    run.begin("healed")
    healed = time.monotonic()
    behind = run.missing()
    while run.missing() > 2 * rate and time.monotonic() - healed < LIMIT:
        await asyncio.sleep(0.1)
    caught_up = time.monotonic() - healed
    await asyncio.sleep(STEADY)
    for task in publishing:
        task.cancel()
    end = time.monotonic()
    while run.missing() and time.monotonic() - end < LIMIT:
        await asyncio.sleep(0.1)
    run.begin("")
    faults = [fault for each in run.subscribers for fault in each.faults]
    for task in (sampling, *reading, *publishing):
        task.cancel()
    ended = await asyncio.gather(sampling, *reading, *publishing, return_exceptions=True)
    faults += [repr(each) for each in ended if not isinstance(each, asyncio.CancelledError)]
    print(f"{behind} deliveries behind at the heal, caught up after {caught_up:.1f} s")
    print(f"missing: {run.missing()}; {len(faults)} doubled or out of order", *faults[:5], sep="\n")
    return not run.missing() and not faults and caught_up < LIMIT


def main() -> int:
    """Exit status 0 if nothing was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.cutoff", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=1000.0, help="messages a second, each side")
    options = parser.parse_args()
    if INSIDE not in os.environ:
        command = [*UNSHARE, sys.executable, "-m", "tests.faults.cutoff", *sys.argv[1:]]
        os.execvpe(UNSHARE[0], command, {**os.environ, INSIDE: "yes"})
    return 0 if asyncio.run(play(options.minutes, options.rate)) else 1


if __name__ == "__main__":
    sys.exit(main())
