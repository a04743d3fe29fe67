"""
One tree from start to end: rounds of faults, and after each a calm in which all must be caught up
within `PATIENCE` seconds of the last heal, with nobody's help but clients that reconnect.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import attrs

from . import events
from .cast import Cast
from .clients import Client
from .conditions import Conditions
from .estates import Loss
from .events import (
    Believed,
    Calm,
    Copied,
    Down,
    Ended,
    Event,
    Faulted,
    Granted,
    Healed,
    Overdue,
    Reclaimed,
    Remembered,
    Returned,
    Ruined,
    Stuck,
)
from .groups import PREFIX
from .history import Checker, Tally, Violation, summary
from .publisher import Publisher
from .rules import matches
from .schedule import Round, Step
from .subscriber import GroupMember, Subscriber
from .trees import Tree
from .visitors import Newcomers, retained
from .world import World

PATIENCE = 60.0
"""Seconds from the heal until all must be caught up."""

SHORT_PATIENCE = 15.0
"""The same once something is broken already: long enough to see what else is."""

START_PATIENCE = 150.0
"""Seconds until a tree that has never run must be whole; many processes start at once."""

PROBES = 6
POLL = 0.2


class DoesNotStart(Exception):
    """The tree, before any fault; the message says what is missing."""


@attrs.frozen(kw_only=True)
class Result:
    """What came of a round; `seconds` from the heal to the calm, None if it never came."""

    number: int
    steps: int
    tally: Tally
    seconds: float | None
    violations: list[Violation]


class Play:
    """
    A tree, its cast, its faults. `history` grows while `rounds` is run through; `close` ends all.
    """

    def __init__(
        self, tree: Tree, cast: Cast, world: World, conditions: Conditions, seed: int
    ) -> None:
        self.history: list[Event] = []
        self.log: list[str] = []  # what was done to the tree, with its outcome
        self._tree = tree
        self._cast = cast
        self._world = world
        self._seed = seed
        self._rng = Random(f"{seed}/{tree.name}/play")
        self._checker = Checker({each.name: each.site or "" for each in tree.nodes})
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self.log.append(f"   0.00   0.00 begin {datetime.now(UTC).isoformat()}")  # as nodes log it
        self._read: dict[str, int] = dict.fromkeys(tree.names, 0)
        self._tasks: set[asyncio.Task[Any]] = set()
        numbers = itertools.count(1)
        self._refuges = {name: name for name in tree.names}  # where clients go that would go there
        self._addresses = {name: world.network.places[name].mqtt for name in tree.names}

        def parts(name: str) -> tuple[Any, ...]:
            rng = Random(f"{seed}/{tree.name}/{name}")
            return self._addresses, self._note, lambda: next(numbers), rng

        self._newcomers = Newcomers(self._addresses, self._note, lambda: next(numbers))
        self._publishers = [
            Publisher(each, conditions, *parts(each.name)) for each in cast.publishers
        ]
        self._subscribers = [Subscriber(each, *parts(each.name)) for each in cast.subscribers]
        self._members = [GroupMember(each, *parts(each.name)) for each in cast.members]
        self._late = {each.name: Subscriber(each, *parts(each.name)) for each in cast.late}

    async def begin(self) -> None:
        """Start the nodes; subscribe, then publish. Raises `DoesNotStart`."""
        await asyncio.to_thread(self._world.start_all)
        await self._until_whole()
        for client in (*self._subscribers, *self._members, *self._publishers):
            self._spawn(client.run())
        deadline = self._now() + START_PATIENCE
        while missing := self._missing():
            if self._now() > deadline:
                raise DoesNotStart(missing)
            await asyncio.sleep(POLL)
        self._note(Calm)
        for publisher in self._publishers:
            self._spawn(publisher.produce())

    async def rounds(self, schedule: Sequence[Round]) -> Any:
        """Yields the result of each round; ends after one that found violations."""
        for number, steps in enumerate(schedule, 1):
            first = len(self.history)
            seconds = await self._round(steps)
            result = Result(
                number=number,
                steps=len(steps),
                tally=Tally.of(self.history[first:]),
                seconds=seconds,
                violations=self._checker.verdict(),
            )
            yield result
            if result.violations:
                return

    async def close(self) -> None:
        """End clients and nodes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._world.close)

    def keep(self, folder: Path) -> None:
        """What is needed to understand a failure."""
        folder.mkdir(parents=True, exist_ok=True)
        events.write(self.history, folder / "history.jsonl")
        (folder / "log.txt").write_text("\n".join(self.log) + "\n")
        found = summary(self._checker.verdict(), each=200)
        (folder / "violations.txt").write_text("\n".join(found) + "\n")
        for name, node in self._world.nodes.items():
            (folder / f"{name}.log").write_text("\n".join(node.lines) + "\n")
            (folder / f"{name}.yaml").write_text(node.file.read_text())

    # a round

    async def _round(self, steps: Round) -> float | None:
        for publisher in self._publishers:
            publisher.is_producing = True
        begin = self._now()
        performing = []
        for step in steps:
            await asyncio.sleep(begin + step.at - self._now())
            performing.append(asyncio.ensure_future(self._perform(step)))
        await asyncio.gather(*performing)
        self._notice_deaths()
        await asyncio.to_thread(self._world.heal)
        self._note(Healed)
        healed = self._now()
        for publisher in self._publishers:
            publisher.is_producing = False
        while missing := await self._gap():
            patience = SHORT_PATIENCE if self._checker.verdict() else PATIENCE
            if self._now() > healed + patience:
                self._note_logs()
                self._note(Overdue, what=missing)
                return None
            await asyncio.sleep(POLL)
        seconds = self._now() - healed
        self._note_logs()
        self._note(Calm)
        self._world.note_calm()
        await self._probe()
        return seconds

    async def _perform(self, step: Step) -> None:
        outcome = ""
        if self._world.knows(step):
            async with self._world.turn(step):
                self._note(Faulted, what=str(step))
                outcome = await self._world.perform(step)
                self._notice_deaths()
                self._note_outcome(step)
        else:
            self._note(Faulted, what=str(step))
            self._direct(step)
        self.log.append(f"{self._now():8.2f} {step} {outcome}".rstrip())

    def _note_outcome(self, step: Step) -> None:
        if step.verb in ("exchange", "mend-exchange"):
            places = self._world.network.places
            self._addresses.update((name, places[name].mqtt) for name in step.targets)
        while self._world.reclaimed:
            self._note(Reclaimed, zone=self._world.reclaimed.pop())
        while self._world.ruined:
            self._lose(self._world.ruined.pop())

    def _lose(self, loss: Loss) -> None:
        """A node's disk is lost. If it is gone for good, its clients have to go to its parent."""
        fields = {"node": loss.name, "zones": loss.zones, "kept": loss.kept, "nodes": loss.nodes}
        self._note(Ruined, **fields, is_void=loss.is_void)
        for subscriber in (*self._subscribers, *self._late.values()):
            # A session that it finds may be one that began without a word to it.
            if subscriber.name in self._checker.losses.sessions:
                subscriber.doubt()
        if loss.is_void:
            return
        (refuge,) = (each.parent for each in self._tree.nodes if each.name == loss.name)
        assert refuge is not None
        self._tree = self._tree.without(loss.name)
        del self._addresses[loss.name]
        self._refuges = {
            name: refuge if to == loss.name else to for name, to in self._refuges.items()
        }
        for client in (*self._everybody, *self._late.values()):
            client.node = self._refuges[client.node]

    def _direct(self, step: Step) -> None:
        """A step that is about a client."""
        name, *rest = (self._refuges.get(each, each) for each in step.targets)
        if step.verb == "enter":
            self._subscribers.append(self._late[name])
            self._spawn(self._late[name].run())
            return
        client = next(each for each in self._everybody if each.name == name)
        match step.verb:
            case "roam" | "hop":
                client.leave(rest[1])
                client.go(rest[0])
            case "away":
                client.leave(rest[0])
            case "back":
                client.go(rest[0])
            case "stall":
                client.stall()
            case "go-on":
                client.go_on()
            case _:
                raise AssertionError(step)

    @property
    def _everybody(self) -> tuple[Client, ...]:
        return (*self._publishers, *self._subscribers, *self._members)

    # the calm

    def _missing(self) -> str:
        """What is not caught up, in words; empty when all is."""
        self._notice_deaths()
        found = []
        for client in self._everybody:
            if not client.is_connected:
                found.append(f"{client.name} is not connected to {client.node}")
        subscribers = (*self._subscribers, *self._members)
        found += [f"{sub.name} has no SUBACK" for sub in subscribers if not sub.is_subscribed]
        for publisher in self._publishers:
            if flows := publisher.open_flows:
                found.append(f"{publisher.name} has {len(flows)} open flows from {flows[0]} on")
        missing = sorted(self._checker.deliveries.missing)
        if missing:
            found.append(f"{len(missing)} deliveries, the first: {missing[0]}")
        if shared := sorted(self._checker.groups.missing):
            found.append(f"{len(shared)} messages of the group, the first: {shared[0]}")
        if wills := self._checker.wills.missing:
            found.append(f"{len(wills)} wills, the first: {wills[0]}")
        return "; ".join(found)

    async def _gap(self) -> str:
        """What is not caught up, in words; empty when all is. Operators do what is theirs."""
        await asyncio.to_thread(self._world.settle)
        return self._missing() or await self._tree_gap()

    async def _tree_gap(self) -> str:
        """What is wrong with `txbroker tree`; empty when every zone is where it belongs."""
        root = self._world.network.places[self._tree.names[0]].grpc
        status, output = await asyncio.to_thread(self._world.command, "tree", root, "--json")
        if status:
            return f"txbroker tree: status {status}\n{output}"
        served = {each["zone"]: each["node"] for each in json.loads(output) if each["alive"]}
        wanted = {node.zone: node.name for node in self._tree.nodes if node.zone is not None}
        gone = {zone: name for zone, name in wanted.items() if served.get(zone) != name}
        return f"zones that are not with their nodes: {gone}" if gone else ""

    async def _until_whole(self) -> None:
        deadline = self._now() + START_PATIENCE
        while gap := await self._tree_gap():
            self._world.notice_deaths()
            if self._world.died or self._now() > deadline:
                raise DoesNotStart(f"{gap}; ended by themselves: {self._world.died}")

    async def _probe(self) -> None:
        """In the calm: which way messages take, what is retained, which connections are left."""
        for client in self._everybody:
            await client.look_for_ghosts()
        await self._probe_retained()
        await self._newcomers.visit(self._tree.names)
        self._world.network.watch()
        probes = {}
        for _ in range(PROBES):
            publisher = self._rng.choice(self._publishers)
            topic = self._rng.choice(publisher.topics)
            # A group gets a copy of its own.
            is_shared = any(matches(m.filters[0][0][len(PREFIX) :], topic) for m in self._members)
            if publisher.is_connected and not is_shared:
                number = publisher.publish(topic, self._rng.choice((1, 2)))
                probes[publisher.name, number] = (topic, publisher.node)
            await asyncio.sleep(0.05)
        deadline = self._now() + PATIENCE
        while self._missing() and self._now() < deadline:
            await asyncio.sleep(POLL)
        if missing := self._missing():
            self._note(Overdue, what=missing)
        for source, target, tag, count in self._world.network.watched():
            name, _, digits = tag.rpartition(" ")
            probe = probes.get((name, int(digits)))
            if probe is not None and {source, target} <= set(self._tree.names):
                self._note_copies(name, int(digits), source, target, count, *probe)

    def _note_copies(
        self,
        publisher: str,
        number: int,
        source: str,
        target: str,
        count: int,
        topic: str,
        edge: str,
    ) -> None:
        holders = {
            each.node
            for each in self._subscribers
            if any(matches(text, topic) for text, _ in each.filters)
        }
        self._note(
            Copied,
            publisher=publisher,
            number=number,
            source=source,
            target=target,
            count=count,
            edge=edge,
            owner=self._tree.owner(topic),
            holders=tuple(sorted(holders)),
        )

    async def _probe_retained(self) -> None:
        topics = [each.kept for each in self._cast.publishers]
        node = self._rng.choice(self._tree.names)
        address = self._world.network.places[node].mqtt
        deadline = self._now() + PATIENCE
        while True:
            try:
                values = await asyncio.to_thread(retained, address, topics)
            except ConnectionRefusedError:  # it is just starting
                if self._now() > deadline:
                    self._note(Overdue, what=f"{node} does not listen")
                    return
                await asyncio.sleep(POLL)
            else:
                self._note(Remembered, values=tuple(values))
                return

    # internal

    def _now(self) -> float:
        return self._loop.time() - self._start

    def _note(self, kind: type[Event], /, **fields: Any) -> None:
        event = kind(at=round(self._now(), 4), **fields)
        self.history.append(event)
        self._checker.feed(event)

    def _notice_deaths(self) -> None:
        self._world.notice_deaths()
        while self._world.down:
            self._note(Down, node=self._world.down.pop())
        while self._world.died:
            name, status = self._world.died.pop()
            self._note(Ended, node=name, status=status)
        while self._world.stuck:
            name, order = self._world.stuck.pop()
            self._note(Stuck, node=name, order=order)
        while self._world.believed:
            name, what = self._world.believed.pop()
            self._note(Believed, node=name, what=what)

    def _note_logs(self) -> None:
        """What the nodes said about zones since the last time, in its order."""
        lines = []
        for name, node in self._world.nodes.items():
            found = node.events[self._read[name] :]
            self._read[name] += len(found)
            lines += [line for line in found if line.get("zone") and "time" in line]
        for line in sorted(lines, key=lambda line: str(line["time"])):
            match line["event"]:
                case "join.granted":
                    self._note(Granted, node=line["node"], zone=line["zone"], epoch=line["epoch"])
                case "handback.committed":
                    self._note(Returned, node=line["node"], zone=line["zone"])

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(_assert_fine)


def _assert_fine(task: asyncio.Task[Any]) -> None:
    """A client of ours that fails is a fault of the harness."""
    if not task.cancelled() and task.exception() is not None:
        raise SystemError("a client failed") from task.exception()
