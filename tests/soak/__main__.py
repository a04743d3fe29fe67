"""
The command: `python -m tests.soak [--minutes M | --visits N] [--clients N] [--nodes N] ...`.

Up to three nodes, clients that come and go, and rests in which every node is measured. Status 1 if
a visit fails, a session is left over, or a node grows beyond its bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

from tests.support.nodes import NodeProcess, free_port, topology

from .rest import MIB, PATIENCE, Rest, asked, cpu_seconds, left_over, measure, tables, warnings
from .visits import Visits

ZONES = {"root": "", "a": "a", "b": "b"}
RETENTION = 8 * MIB
SEGMENT = 1 * MIB
AHEAD = 1 * MIB
"""Bytes of a journal that are allocated ahead."""

TABLES = 16 * MIB
"""Bytes of the tables: of 20,000 wills that were taken, up to three times, and 2 MiB."""

WARM_UP = 100_000
"""Visits after which memory no longer grows, but for `GROWTH`."""

GROWTH = 1 * MIB
"""Bytes that memory may grow with each 100,000 visits after the warm-up."""

COLD_GROWTH = 16 * MIB
"""Bytes that memory may grow between two rests before the warm-up is over."""

LOG = 64 * 1024
"""Bytes of log between two rests, where no node is disturbed: nothing is logged of each visit."""

LONG = 300.0
"""Seconds between two rests from which on each begins when all is swept, not the last one alone."""

EMPTY = 60.0
"""Seconds in which sessions that nobody owns are found and ended."""

SWEPT = 120.0
"""Seconds in which what was kept for sessions that moved is let go, and when they connected."""


def main() -> int:
    """Exit status 0 if nothing is left behind."""
    options = parse()
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, ExitStack() as stack:
        nodes = start(Path(folder), stack, options.nodes)
        wrong = asyncio.run(Soak(nodes, options).run())
    for line in wrong:
        print(line)
    print("failed" if wrong else "ok")
    return 1 if wrong else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="without rests, in all")
    parser.add_argument("--visits", type=int, help="between two rests, however long they take")
    parser.add_argument("--clients", type=int, default=12, help="so many visits at a time")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--rests", type=int, default=4, help="beside the one at the beginning")
    parser.add_argument("--nodes", type=int, default=3, choices=range(1, len(ZONES) + 1))
    parser.add_argument("--faults", action="store_true", help="nodes are killed and frozen")
    return parser.parse_args()


def start(folder: Path, stack: ExitStack, count: int) -> list[NodeProcess]:
    """So many nodes that have joined."""
    nodes: list[NodeProcess] = []
    for name, zone in list(ZONES.items())[:count]:
        document = topology(
            name,
            zone=zone,
            parent=nodes[0].grpc if nodes else None,
            mqtt=[f"tcp:{free_port()}:interface=127.0.0.1"],
            retention={"size": f"{RETENTION // MIB}MiB"},
            roaming_wait="10s",  # no node is away: what is slow is the machine
        )
        node = NodeProcess(folder, {k: v for k, v in document.items() if v is not None})
        nodes.append(node)
        stack.callback(node.close)
        node.start(timeout=PATIENCE)
    for node in nodes[1:]:
        node.wait_event("join.granted", PATIENCE)
    return nodes


class Soak:
    """Visits, rests and, where wanted, faults of three nodes."""

    def __init__(self, nodes: list[NodeProcess], options: argparse.Namespace) -> None:
        self._nodes = nodes
        self._options = options
        self._rng = Random(options.seed)
        addresses = [node.mqtt for node in nodes]
        self._visits = Visits(lambda: addresses, self._rng, list(ZONES.values()))

    async def run(self) -> list[str]:
        """What is wrong at the end, a line each."""
        rests = [(0, await self._rest())]
        for number in range(1, self._options.rests + 1):
            length = await self._churn()
            await self._visits.discard_left()
            if left := await self._left_over():
                return [f"sessions are left over after {self._visits.done} visits: {left}"]
            await self._visits.clear_left()
            is_last = number == self._options.rests
            if (is_last or length >= LONG) and (wrong := await self._not_swept()):
                return [f"tables are not as they were after {self._visits.done} visits: {wrong}"]
            rests.append((self._visits.done, await self._rest()))
        return [*self._failures(), *self._growth(rests)]

    async def _churn(self) -> float:
        """Let clients come and go until the next rest; the seconds that it took."""
        options, visits, before = self._options, self._visits, self._visits.done
        began, spent = time.monotonic(), self._spent()
        over: float = began + 60 * options.minutes / options.rests
        most: int | None = options.visits

        def goes_on(left: float = 0.0) -> bool:
            if most is not None:
                return visits.done < before + most
            return time.monotonic() < over - left

        clients = [visits.make(goes_on) for _ in range(options.clients)]
        await asyncio.gather(*clients, *self._faults(goes_on))
        length, done = time.monotonic() - began, max(1, visits.done - before)
        each = {name: 1000 * (now - spent[name]) / done for name, now in self._spent().items()}
        print(f"{done / length:.0f} visits a second; ms of CPU each:", end=" ")
        print(*(f"{name} {cost:.1f}" for name, cost in each.items()), sep=", ", flush=True)
        return length

    def _spent(self) -> dict[str, float]:
        """Seconds of CPU of each node, and of the clients; a node that was killed begins anew."""
        spent = {node.name: cpu_seconds(node) for node in self._nodes}
        return {**spent, "clients": time.process_time()}

    def _faults(self, goes_on: Callable[[float], bool]) -> Iterator[asyncio.Future[None]]:
        if self._options.faults:
            yield asyncio.ensure_future(self._disturb(goes_on))

    async def _disturb(self, goes_on: Callable[[float], bool]) -> None:
        """A node at a time is killed and started again, or frozen for some seconds."""
        while goes_on(10.0):
            await asyncio.sleep(self._rng.uniform(2, 8))
            node = self._rng.choice(self._nodes)
            if self._rng.random() < 0.5:
                await asyncio.to_thread(node.kill)
                await asyncio.to_thread(node.start)
            else:
                node.pause()
                await asyncio.sleep(self._rng.uniform(0.5, 8))
                node.resume()

    async def _left_over(self) -> dict[str, list[str]]:
        """Sessions that are listed when there has been time to find those that nobody owns."""
        deadline = time.monotonic() + EMPTY
        while True:
            left = {
                node.name: [row["client_id"] for row in found]
                for node in self._nodes
                if (found := await asyncio.to_thread(asked, "sessions", node.grpc))
            }
            if not left or time.monotonic() > deadline:
                return {name: ids[:5] for name, ids in left.items()}
            await asyncio.sleep(1.0)

    async def _not_swept(self) -> dict[str, dict[str, int]]:
        """Tables that are not empty when there has been time to sweep them."""
        deadline = time.monotonic() + SWEPT
        while True:
            found = await asyncio.gather(
                *(asyncio.to_thread(left_over, node) for node in self._nodes)
            )
            left = {node.name: sizes for node, sizes in zip(self._nodes, found, strict=True)}
            left = {name: sizes for name, sizes in left.items() if sizes}
            if not left or time.monotonic() > deadline:
                return left
            await asyncio.sleep(2.0)

    async def _rest(self) -> dict[str, Rest]:
        found = await asyncio.gather(*(asyncio.to_thread(measure, node) for node in self._nodes))
        print(f"after {self._visits.done} visits, {len(self._visits.failed)} of them failed")
        for text in self._visits.failed[-3:]:
            print(f"  failed: {text}")
        for node, rest in zip(self._nodes, found, strict=True):
            print(f"  {node.name:5} {rest}", flush=True)
            sizes = await asyncio.to_thread(tables, node)
            print("       ", *(f"{k} {v}" for k, v in sizes.items() if v), sep="  ", flush=True)
            for event in warnings(node)[-3:]:
                print(f"        {event}", flush=True)
        return {node.name: rest for node, rest in zip(self._nodes, found, strict=True)}

    def _failures(self) -> list[str]:
        if self._options.faults:
            return []
        return [f"visit failed: {text}" for text in self._visits.failed[:5]]

    def _growth(self, rests: list[tuple[int, dict[str, Rest]]]) -> list[str]:
        """What is beyond its bound; the first rest but one is the measure."""
        wrong = []
        (_, first), (visits, last) = rests[1], rests[-1]
        for name, rest in last.items():
            if rest.journals > RETENTION + SEGMENT + AHEAD:
                wrong.append(f"{name}: {rest.journals / MIB:.0f} MiB of journals")
            if rest.tables > TABLES:
                wrong.append(f"{name}: {rest.tables / MIB:.0f} MiB of tables")
            if rest.descriptors > first[name].descriptors + 8:
                wrong.append(f"{name}: {rest.descriptors} descriptors")
            if rest.threads > first[name].threads + 8:
                wrong.append(f"{name}: {rest.threads} threads")
            if rest.cpu > 0.1:
                wrong.append(f"{name}: {rest.cpu:.0%} of a CPU while idle")
        for (before, earlier), (after, later) in zip(rests[1:], rests[2:], strict=False):
            bound = COLD_GROWTH
            if before >= WARM_UP:
                bound = GROWTH * max(after - before, WARM_UP) // WARM_UP
            for name, rest in later.items():
                if (logged := rest.log - earlier[name].log) > LOG and not self._options.faults:
                    wrong.append(f"{name}: {logged} bytes of log from {before} to {after}")
                if (grown := rest.memory - earlier[name].memory) > bound:
                    wrong.append(f"{name}: {grown / MIB:.1f} MiB more from {before} to {after}")
        if not visits:
            wrong.append("no visit was made")
        return wrong


if __name__ == "__main__":
    sys.exit(main())
