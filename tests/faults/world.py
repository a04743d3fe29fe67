"""The nodes as processes, and what a fault does to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from tests.support.nodes import ROOT, NodeFailed

from . import operators
from .clocks import Clock
from .conditions import Conditions
from .disks import Disk
from .estates import Estates, Loss
from .faulty import FaultyNode
from .networks import Network
from .schedule import Step
from .switch import OUTSIDE
from .trees import Tree

QUICK = {
    "cut",
    "mend-cut",
    "one-way",
    "mend-one-way",
    "isolate",
    "mend-isolate",
    "unplug",
    "mend-unplug",
    "mute",
    "mend-mute",
    "deaf",
    "mend-deaf",
    "lose",
    "slow",
    "clock",
    "exchange",
    "mend-exchange",
}
"""Verbs that do not wait for a process."""

END_TIMEOUT = 20.0
JOIN_TIMEOUT = 8.0
COMMAND_TIMEOUT = 40.0  # seconds; a command that hangs is not waited for any longer


class World:
    """
    A tree of nodes in `folder`. `perform` carries out the steps of a schedule that are about nodes;
    all that can go wrong with a fault itself (a retirement that is refused) is its outcome, a text.
    """

    def __init__(
        self,
        tree: Tree,
        network: Network,
        folder: Path,
        library: Path | None,
        clock_library: Path | None,
        conditions: Conditions,
        *,
        mount: bool,
        seed: int,
    ) -> None:
        self.tree = tree
        self.network = network
        self.nodes: dict[str, FaultyNode] = {}
        self.died: list[tuple[str, int]] = []  # nodes that ended by themselves, status
        self.down: list[str] = []  # nodes whose process has ended, whoever ended it
        self.stuck: list[tuple[str, str]] = []  # nodes that did not end, the order
        self.believed: list[tuple[str, str]] = []  # nodes that took damaged data, which
        self.reclaimed: list[str] = []  # zones that an operator took, since the last look
        self.ruined: list[Loss] = []  # nodes that are gone for good, since the last look
        self._estates = Estates(tree)
        self._branches: dict[str, str] = {}  # node: the zone that was taken from it
        self._rng = Random(f"{seed}/{tree.name}/disks")
        self._cuts: Counter[tuple[str, str]] = Counter()
        self._turns = {name: asyncio.Lock() for name in tree.names}
        self._pids: dict[str, int] = {}  # of the processes that ran when they were looked at last
        for shape in tree.nodes:
            control = folder / f"control-{shape.name}"
            delay = conditions.delay
            disk = Disk(folder / shape.name, control, library, mount=mount, delay=delay)
            document = {"node": shape.name, "zone": shape.zone, "site": shape.site}
            if shape.parent is not None:
                document["parent"] = network.places[shape.parent].grpc
            document = {key: value for key, value in document.items() if value is not None}
            document |= conditions.keys
            place = network.places[shape.name]
            clock = Clock(folder / f"clock-{shape.name}", clock_library)
            document["data"] = str(disk.data)
            node = FaultyNode(folder, document, place, disk, clock, conditions)
            self.nodes[shape.name] = node
        self._verbs: dict[str, Callable[[Step], Any]] = {
            "start": lambda step: self._start(*step.targets),
            "kill": lambda step: self._kill(*step.targets),
            "power": self._power,
            "stop": self._stop,
            "freeze": lambda step: self._freeze(*step.targets),
            "thaw": lambda step: self._thaw(*step.targets),
            "retire": self._retire,
            "broken-retire": self._broken_retire,
            "broken-join": self._broken_join,
            "cut": lambda step: self._cut(_both(*step.targets), 1),
            "mend-cut": lambda step: self._cut(_both(*step.targets), -1),
            "one-way": lambda step: self._cut([step.targets], 1),
            "mend-one-way": lambda step: self._cut([step.targets], -1),
            "isolate": lambda step: self._cut(self._around(step.targets), 1),
            "mend-isolate": lambda step: self._cut(self._around(step.targets), -1),
            "unplug": lambda step: self._cut(self._around(step.targets, OUTSIDE), 1),
            "mend-unplug": lambda step: self._cut(self._around(step.targets, OUTSIDE), -1),
            "mute": lambda step: self._cut(self._out_of(*step.targets), 1),
            "mend-mute": lambda step: self._cut(self._out_of(*step.targets), -1),
            "deaf": lambda step: self._cut(self._into(*step.targets), 1),
            "mend-deaf": lambda step: self._cut(self._into(*step.targets), -1),
            "lose": lambda step: self.network.lose(step.amount),
            "fill": lambda step: self._fill(*step.targets),
            "free": lambda step: self._free(*step.targets),
            "slow": lambda step: self.nodes[step.targets[0]].disk.slow(step.amount),
            "clock": lambda step: self.nodes[step.targets[0]].clock.step(step.amount),
            "damage": self._damage,
            "restore": self._restore,
            "reclaim": self._reclaim,
            "ruin": lambda step: self._ruin(*step.targets),
            "void": lambda step: self._void(*step.targets),
            "forget": lambda step: self._give_up(step.targets[0]),
            "exchange": lambda step: self.network.exchange(*step.targets),
            "mend-exchange": lambda step: self.network.exchange(*step.targets),
        }

    def knows(self, step: Step) -> bool:
        """True if the step is about nodes."""
        return step.verb in self._verbs

    @contextlib.asynccontextmanager
    async def turn(self, step: Step) -> AsyncIterator[None]:
        """Steps on a node take turns: one may begin long after the time of its schedule."""
        async with contextlib.AsyncExitStack() as stack:
            for name in sorted(set(step.targets)):
                await stack.enter_async_context(self._turns[name])
            yield

    async def perform(self, step: Step) -> str:
        """Carry it out, in its turn; its outcome, if there is one to tell."""
        self.notice_deaths()
        if step.verb in QUICK:
            return self._verbs[step.verb](step) or ""
        return await asyncio.to_thread(self._verbs[step.verb], step) or ""

    def start_all(self) -> None:
        """Every node that does not run."""
        self._start(*self.nodes)

    def heal(self) -> None:
        """No more faults: all that is cut, slow, full, frozen or dead ends."""
        self._cuts.clear()
        self.network.cut([])
        self.network.lose(0.0)
        for node in self.nodes.values():
            node.disk.slow(0)
            node.disk.free()
            node.is_full = False
            self._thaw(node.name)
        self.notice_deaths()
        self.start_all()

    def notice_deaths(self) -> None:
        """
        A node that should run and does not has ended by itself. It may where it cannot start on a
        full disk, or when a retirement came through although the command had given up.
        """
        for node in self.nodes.values():
            self._look_at(node)
            if node.should_run and not node.running:
                node.should_run = False
                status = node.wait()
                if status and not node.is_full:
                    self.died.append((node.name, status))

    def settle(self) -> None:
        """
        Branches of nodes that are back are replayed, and lost nodes are given up, as an operator
        does it. Blocks.

        A node may end now, of a retirement whose command had given up: it is started again.
        """
        self.notice_deaths()
        self.start_all()
        for name in self._estates.unsettled:
            self._give_up(name)
        for name, zone in list(self._branches.items()):
            node = self.nodes[name]
            if node.has_event("zone.divergent"):
                self.command("divergent", "replay", node.place.grpc, zone)
            if node.has_event("join.granted"):
                del self._branches[name]

    def note_calm(self) -> None:
        """All is caught up: what a node was given since the last time reached whom it is for."""
        self._estates.note_calm()

    def command(self, *arguments: str, at: FaultyNode | None = None) -> tuple[int, str]:
        """
        A command of txbroker, `at` the place of a node: its exit status and all that it printed.
        Blocks.
        """
        prefix = () if at is None else at.place.prefix
        try:
            done = subprocess.run(
                [*prefix, sys.executable, "-m", "txbroker.cli", *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMMAND_TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            return -1, f"no end after {COMMAND_TIMEOUT} s"
        return done.returncode, done.stdout.strip()

    def close(self) -> None:
        """End all of it."""
        for node in self.nodes.values():
            if node.running:
                node.kill()
            node.close()
            node.disk.close()
        self.network.close()

    # processes

    def _start(self, *names: str) -> None:
        for name in names:
            node = self.nodes[name]
            if not node.running and not self._estates.is_lost(name):
                self._look_at(node)
                node.start(ready=False)
                self._pids[name] = node.pid
                self.network.started(name, node.pid)
            node.should_run = node.running

    def _look_at(self, node: FaultyNode) -> None:
        """Note that its process has ended, once."""
        if not node.running and self._pids.pop(node.name, None) is not None:
            self.down.append(node.name)

    def _kill(self, *names: str) -> None:
        nodes = [self.nodes[name] for name in names if self.nodes[name].running]
        for node in nodes:
            node.should_run = False
            node.send_signal(signal.SIGKILL)
        for node in nodes:
            node.wait()

    def _power(self, step: Step) -> str:
        self._kill(*step.targets)
        lost = {name: self.nodes[name].disk.lose_power(self._rng) for name in step.targets}
        return f"unsynced writes lost: {lost}"

    def _stop(self, step: Step) -> str:
        node = self.nodes[step.targets[0]]
        node.should_run = False
        return self._end(node, signal.SIGTERM, "SIGTERM") if node.running else "was down"

    def _end(self, node: FaultyNode, number: signal.Signals | None, order: str) -> str:
        """Wait for the end of a node that was told to; with force if it does not come."""
        if number is not None:
            node.send_signal(number)
        try:
            return f"status {node.wait(END_TIMEOUT)}"
        except NodeFailed:
            self.stuck.append((node.name, order))
            node.kill()
            return f"did not end on {order}"

    def _freeze(self, name: str) -> None:
        if self.nodes[name].running:
            self.nodes[name].pause()

    def _thaw(self, name: str) -> None:
        if self.nodes[name].running:
            self.nodes[name].resume()

    def _retire(self, step: Step) -> str:
        node = self.nodes[step.targets[0]]
        if not node.running:
            return "was down"
        node.should_run = False
        self._estates.give(node.name)
        status, output = self.command("retire", node.place.grpc)
        if status:
            node.should_run = True
            return f"status {status}: {output}"
        return f"retired, {self._end(node, None, 'retire')}"

    def _broken_retire(self, step: Step) -> str:
        """The command is loaded and waits for a word, so that the moment is well chosen."""
        node, victim = (self.nodes[name] for name in step.targets)
        if not node.running or not victim.running:
            return "was down"
        self._estates.give(node.name)
        program = (
            "import sys; from txbroker.cli import main; sys.stdin.readline(); main(sys.argv[1:])"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program, "retire", node.place.grpc],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as command:
            assert command.stdin is not None and command.stdout is not None
            time.sleep(1.0)
            node.should_run = victim.should_run = False
            command.stdin.write("now\n")
            command.stdin.flush()
            time.sleep(step.amount)
            self._kill(victim.name)
            try:
                command.wait(COMMAND_TIMEOUT)
            except subprocess.TimeoutExpired:
                command.kill()
            said = command.stdout.read().strip()
        node.should_run = node.running
        return f"status {command.returncode}: {said}"

    def _broken_join(self, step: Step) -> str:
        node, victim = (self.nodes[name] for name in step.targets)
        if node.running or not victim.running and victim is not node:
            return "not retired, or nobody to join"
        mark = victim.mark()
        self._start(node.name)
        event = "node.ready" if victim is node else "handover.started"
        try:
            victim.wait_event(event, JOIN_TIMEOUT, after=mark)
        except NodeFailed:
            return f"no {event}"
        time.sleep(step.amount)
        self._kill(victim.name)
        return f"killed after {event}"

    # operators

    def _damage(self, step: Step) -> str:
        """The node sees it, or nobody does: it is alone in the world meanwhile."""
        (name,) = step.targets
        self._kill(name)
        with self._alone(name):
            said, is_believed = operators.damage(self.nodes[name], self.command, step.amount)
        if is_believed:
            self.believed.append((name, said))
        return said

    def _restore(self, step: Step) -> str:
        """From a backup that is as new as can be: nothing is acknowledged after it."""
        (name,) = step.targets
        node = self.nodes[name]
        if not node.running:
            return "was down"
        with self._alone(name):
            time.sleep(operators.QUIET)
            said = operators.back_up(node, self.command)
            self._kill(name)
            # What the node answered after the backup, its kernel would deliver after the cut.
            self.network.forget(name)
            if not said:
                operators.restore(node)
        return said or "restored"

    def _reclaim(self, step: Step) -> str:
        node, parent = (self.nodes[name] for name in step.targets)
        if not node.running or not parent.running or node.zone is None:
            return "was down"
        self._kill(node.name)
        self._estates.give(node.name)
        status, said = self.command("reclaim", parent.place.grpc, node.zone)
        # Also where it seems to have failed: the answer may have been lost.
        self.reclaimed.append(node.zone)
        self._branches[node.name] = node.zone
        return f"status {status}: {said}"

    def _ruin(self, name: str) -> None:
        """The node does not come back, and its disk has gone with it."""
        self._kill(name)
        self.nodes[name].disk.destroy()
        self.ruined.append(self._estates.lose(name))

    def _void(self, name: str) -> None:
        self._kill(name)
        self.nodes[name].disk.destroy()
        self.ruined.append(self._estates.empty(name))

    def _give_up(self, name: str) -> str:
        """What is to be done once it is known to be lost; again until all of it succeeds."""
        parent = self._estates.parents[name]
        assert parent is not None
        where = self.network.places[parent].grpc
        others = [other for other in self.nodes if not self._estates.is_lost(other)]
        is_done, said = operators.give_up(self.nodes[name], where, others, self.command)
        if is_done:
            self._estates.settle(name)
        return said

    @contextlib.contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        pairs = self._around([name], OUTSIDE)
        self._cut(pairs, 1)
        try:
            yield
        finally:
            self._cut(pairs, -1)

    # network and disks

    def _cut(self, pairs: Iterable[tuple[str, ...]], count: int) -> None:
        for source, target in pairs:
            self._cuts[source, target] += count
        self.network.cut(pair for pair, number in self._cuts.items() if number > 0)

    def _around(self, names: Iterable[str], *more: str) -> list[tuple[str, str]]:
        inside = set(names)
        outside = {*self.nodes, *more} - inside
        return [pair for one in inside for other in outside for pair in _both(one, other)]

    def _out_of(self, name: str) -> list[tuple[str, str]]:
        return [(name, other) for other in (*self.nodes, OUTSIDE) if other != name]

    def _into(self, name: str) -> list[tuple[str, str]]:
        return [(other, name) for other in (*self.nodes, OUTSIDE) if other != name]

    def _fill(self, name: str) -> None:
        self.nodes[name].is_full = True
        self.nodes[name].disk.fill()

    def _free(self, name: str) -> None:
        self.nodes[name].disk.free()
        self.nodes[name].is_full = False


def _both(one: str, other: str) -> list[tuple[str, str]]:
    return [(one, other), (other, one)]
