"""
What a seed does to a tree, and when. Pure: the same seed, tree and faults give the same schedule,
so a run that failed is played again by its seed. (What the nodes make of it may differ in time.)

A round is a list of steps. Faults come in episodes, from the step that begins one to the step that
ends it. A node's process has one episode at a time, and so has a client; all else overlaps freely.
Every episode ends within its round, but for a node that goes for good: later rounds are without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from random import Random

import attrs

from .cast import Cast
from .trees import Tree


@attrs.frozen
class Step:
    """At `at` seconds of its round, do this to these; `amount` is a share or a time in seconds."""

    at: float
    verb: str
    targets: tuple[str, ...] = ()
    amount: float = 0.0

    def __str__(self) -> str:
        amount = f" {self.amount:g}" if self.amount else ""
        return f"{self.at:6.2f} {' '.join([self.verb, *self.targets])}{amount}"


Round = tuple[Step, ...]

FAULTS = {
    "kill": 6,
    "kill-all": 1,
    "power": 4,
    "power-all": 1,
    "stop": 1,
    "freeze": 3,
    "cut": 3,
    "one-way": 3,
    "isolate": 3,
    "split": 2,
    "lose": 2,
    "fill": 2,
    "slow": 2,
    "clock": 3,
    "unplug": 2,
    "retire": 3,
    "broken-retire": 2,
    "broken-join": 2,
    "roam": 8,
    "away": 5,
    "stall": 2,
    "hop": 5,
    "mute": 2,
    "deaf": 2,
    "damage": 2,
    "restore": 2,
    "reclaim": 2,
    "exchange": 2,
    "ruin": 1,
    "void": 1,
}
"""Every fault, and how often it comes beside the others."""

BETWEEN_NODES = {
    "cut",
    "one-way",
    "isolate",
    "split",
    "retire",
    "broken-retire",
    "broken-join",
    "reclaim",
    "exchange",
    "void",
}
"""Those that one node alone cannot have."""

LEAST = 4
"""Nodes of a tree of which one may go for good: those that are left can have all other faults."""

DURATIONS = (1, 2, 4, 7, 10)
LONG_DURATIONS = (20, 30)
"""Seconds that an episode may take; long ones where a round is twice as long."""

LONGEST_STEP = 10 * 86_400
"""Seconds by which a clock may step at once, either way."""

ROAMING = ("close", "abort", "abandon")
"""How a client leaves: DISCONNECT, a reset, or without a word, the connection left open."""


def plan(
    seed: int, tree: Tree, cast: Cast, faults: Iterable[str], *, rounds: int, length: float
) -> tuple[Round, ...]:
    """So many rounds of `length` seconds, of these faults. Each round has one late subscriber."""
    impossible = set() if len(tree.nodes) > 1 else BETWEEN_NODES
    wanted = [name for name in FAULTS if name in set(faults) - impossible]
    found = []
    for number in range(rounds):
        rng = Random(f"{seed}/{tree.name}/{number}")
        newcomers = [client.name for client in cast.late[number : number + 1]]
        steps = _Planner(rng, tree, cast, length).plan(wanted, newcomers)
        found.append(steps)
        for step in steps:
            if step.verb == "ruin":
                tree = tree.without(step.targets[0])
    return tuple(found)


class _Planner:
    """Plans one round."""

    def __init__(self, rng: Random, tree: Tree, cast: Cast, length: float) -> None:
        self._rng = rng
        self._tree = tree
        self._length = length
        self._durations = (*DURATIONS, *(long for long in LONG_DURATIONS if 2 * long <= length))
        self._clients = [client.name for client in cast.clients]
        self._subscribers = [client.name for client in cast.subscribers]
        self._steps: list[Step] = []
        self._busy: list[tuple[str, float, float]] = []

    def plan(self, faults: Sequence[str], newcomers: Iterable[str]) -> Round:
        """As many episodes as the length asks for; one that finds no place is left out."""
        for client in newcomers:
            self._add(self._rng.uniform(0, self._length), "enter", client)
        weights = [FAULTS[name] for name in faults]
        for _ in range(round(self._rng.uniform(0.4, 0.7) * self._length) if faults else 0):
            start = self._rng.uniform(0.5, self._length * 0.8)
            end = min(start + self._rng.choice(self._durations), self._length)
            fault = self._rng.choices(faults, weights)[0]
            self._makers[fault](self, fault, start, end)
        return tuple(sorted(self._steps, key=lambda step: step.at))

    # processes

    def _process(self, fault: str, start: float, end: float) -> None:
        node = self._rng.choice(self._tree.names)
        if self._take([node], start, end):
            self._add(start, fault, node)
            self._add(end, "thaw" if fault == "freeze" else "start", node)

    def _retire(self, fault: str, start: float, end: float) -> None:
        node = self._rng.choice(self._tree.children)
        if self._take([node], start, end):
            self._add(start, fault, node)
            self._add(end, "start", node)

    def _operate(self, fault: str, start: float, end: float) -> None:
        """What an operator does to a node whose process is dead after that."""
        node = self._rng.choice(self._tree.names)
        if self._take([node], start, end):
            self._add(start, fault, node, amount=round(self._rng.random(), 6))
            self._add(end, "start", node)

    def _reclaim(self, fault: str, start: float, end: float) -> None:
        node = self._rng.choice([each for each in self._tree.nodes if each.zone])
        assert node.parent is not None
        if self._take([node.name, node.parent], start, end):
            self._add(start, fault, node.name, node.parent)
            self._add(end, "start", node.name)

    def _ruin(self, fault: str, start: float, end: float) -> None:
        """A node that is not the root dies and its disk with it; later an operator gives it up."""
        if len(self._tree.nodes) < LEAST or any(step.verb == fault for step in self._steps):
            return
        node = self._rng.choice(self._tree.nodes[1:])
        assert node.parent is not None
        if self._take([node.name], start, math.inf):
            self._add(start, fault, node.name)
            self._add(end, "forget", node.name, node.parent)

    def _void(self, fault: str, start: float, end: float) -> None:
        """The root loses its disk, and is started with an empty one."""
        root = self._tree.names[0]
        is_first = all(step.verb != fault for step in self._steps)
        if is_first and self._take([root], start, end):
            self._add(start, fault, root)
            self._add(end, "start", root)

    def _broken_retire(self, fault: str, start: float, end: float) -> None:
        """Kill the node, or its parent, while it gives its zone back."""
        node, victim = self._pair_of_handover()
        if self._take([node, victim], start, end):
            self._add(start, fault, node, victim, amount=self._moment())
            for name in {node: 1, victim: 1}:
                self._add(end, "start", name)

    def _broken_join(self, fault: str, start: float, end: float) -> None:
        """Kill the node, or its parent, while it takes its zone over again."""
        node, victim = self._pair_of_handover()
        if self._take([node, victim], start, end):
            self._add(start, "retire", node)
            self._add((start + end) / 2, fault, node, victim, amount=self._moment())
            for name in {node: 1, victim: 1}:
                self._add(end, "start", name)

    def _pair_of_handover(self) -> tuple[str, str]:
        node = self._rng.choice([each for each in self._tree.nodes if each.zone])
        assert node.parent is not None
        return node.name, self._rng.choice((node.name, node.parent))

    def _moment(self) -> float:
        """Seconds into a handover, which takes some milliseconds."""
        return round(self._rng.choice((0.0, 0.005, 0.02)) + self._rng.uniform(0, 0.01), 4)

    def _everybody(self, fault: str, start: float, end: float) -> None:
        names = list(self._tree.names)
        if self._take(names, start, end + 1.0):
            self._add(start, fault.removesuffix("-all"), *names)
            self._rng.shuffle(names)
            for name in names:
                self._add(end + self._rng.uniform(0, 1.0), "start", name)

    # the network

    def _pair(self, fault: str, start: float, end: float) -> None:
        pair = self._rng.sample(self._tree.names, 2)
        self._add(start, fault, *pair)
        self._add(end, f"mend-{fault}", *pair)

    def _exchange(self, fault: str, start: float, end: float) -> None:
        """Two nodes that run have each other's address for a while."""
        pair = self._rng.sample(self._tree.names, 2)
        if self._take(["addresses", *pair], start, end):
            self._add(start, fault, *pair)
            self._add(end, "mend-exchange", *pair)

    def _isolate(self, fault: str, start: float, end: float) -> None:
        """Cut one node off from all others."""
        self._part([self._rng.choice(self._tree.names)], start, end)

    def _split(self, fault: str, start: float, end: float) -> None:
        """Cut a site off, or, where all is one, a random half."""
        sites = [sorted(site) for site in self._tree.sites]
        half = self._rng.sample(self._tree.names, len(self._tree.names) // 2)
        self._part(self._rng.choice(sites) if len(sites) > 1 else half, start, end)

    def _of_node(self, fault: str, start: float, end: float) -> None:
        """
        Cut one node off from all others and from its clients: unplugged it hears and says nothing,
        mute it says nothing, deaf it hears nothing.
        """
        node = self._rng.choice(self._tree.names)
        self._add(start, fault, node)
        self._add(end, f"mend-{fault}", node)

    def _part(self, names: Sequence[str], start: float, end: float) -> None:
        self._add(start, "isolate", *names)
        self._add(end, "mend-isolate", *names)

    def _lose(self, fault: str, start: float, end: float) -> None:
        if self._take(["network"], start, end):
            self._add(start, "lose", amount=0.2)
            self._add(end, "lose")

    # disks

    def _fill(self, fault: str, start: float, end: float) -> None:
        node = self._rng.choice(self._tree.names)
        if self._take([f"room of {node}"], start, end):
            self._add(start, "fill", node)
            self._add(end, "free", node)

    def _slow(self, fault: str, start: float, end: float) -> None:
        node = self._rng.choice(self._tree.names)
        if self._take([f"speed of {node}"], start, end):
            self._add(start, "slow", node, amount=self._rng.choice((0.05, 0.3, 5.0)))
            self._add(end, "slow", node)

    def _clock(self, fault: str, start: float, end: float) -> None:
        """Set the time of day of a node that runs or is down; half of the steps are corrected."""
        node = self._rng.choice(self._tree.names)
        seconds = math.exp(self._rng.uniform(0.0, math.log(LONGEST_STEP)))
        amount = round(self._rng.choice((-1, 1)) * seconds, 3)
        self._add(start, fault, node, amount=amount)
        if self._rng.random() < 0.5:
            self._add(end, fault, node, amount=-amount)

    # clients

    def _roam(self, fault: str, start: float, end: float) -> None:
        client = self._rng.choice(self._clients)
        if self._take([client], start, start + 0.5):
            node = self._rng.choice(self._tree.names)
            self._add(start, fault, client, node, self._rng.choice(ROAMING))

    def _hop(self, fault: str, start: float, end: float) -> None:
        """From node to node, often before it has caught up, or is accepted, at the last one."""
        client = self._rng.choice(self._clients)
        moments = [start]
        for _ in range(self._rng.randint(2, 7)):
            moments.append(moments[-1] + self._rng.choice((0.05, 0.3, 1.0)))
        if self._take([client], start, moments[-1] + 0.5):
            for moment in moments:
                node, manner = self._rng.choice(self._tree.names), self._rng.choice(ROAMING)
                self._add(min(moment, self._length), fault, client, node, manner)

    def _away(self, fault: str, start: float, end: float) -> None:
        client = self._rng.choice(self._subscribers)
        if self._take([client], start, end):
            self._add(start, fault, client, self._rng.choice(ROAMING[:2]))
            self._add(end, "back", client, self._rng.choice(self._tree.names))

    def _stall(self, fault: str, start: float, end: float) -> None:
        client = self._rng.choice(self._subscribers)
        if self._take([client], start, end):
            self._add(start, fault, client)
            self._add(end, "go-on", client)

    # internal

    def _add(self, at: float, verb: str, *targets: str, amount: float = 0.0) -> None:
        self._steps.append(Step(round(at, 2), verb, targets, amount))

    def _take(self, names: Iterable[str], start: float, end: float) -> bool:
        """Reserve them for this time, with a second around it; False if one of them is taken."""
        names = list(names)
        for name, begin, finish in self._busy:
            if name in names and begin < end + 1.0 and start < finish + 1.0:
                return False
        self._busy += [(name, start, end) for name in names]
        return True

    _makers: dict[str, Callable[[_Planner, str, float, float], None]] = {
        "kill": _process,
        "kill-all": _everybody,
        "power": _process,
        "power-all": _everybody,
        "stop": _process,
        "freeze": _process,
        "cut": _pair,
        "one-way": _pair,
        "isolate": _isolate,
        "split": _split,
        "unplug": _of_node,
        "lose": _lose,
        "fill": _fill,
        "slow": _slow,
        "clock": _clock,
        "retire": _retire,
        "broken-retire": _broken_retire,
        "broken-join": _broken_join,
        "roam": _roam,
        "away": _away,
        "stall": _stall,
        "hop": _hop,
        "mute": _of_node,
        "deaf": _of_node,
        "damage": _operate,
        "restore": _operate,
        "reclaim": _reclaim,
        "exchange": _exchange,
        "ruin": _ruin,
        "void": _void,
    }
