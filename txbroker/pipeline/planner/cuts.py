"""
CORE: decides which subtrees to delegate to which host, so that no host has much more than its
share.

The module has arithmetic on loads of topic subtrees, and no rows, nodes or files. A *load* is any
additive measure, such as events per second. A *host* is a machine that runs one node for each of
its zones.

The problem is to partition a tree. A new zone takes a subtree, less the zones that are cut out of
it. So one cut moves a whole branch, and several cuts move a branch that is too heavy for any host.
To balance given parts is multiprocessor scheduling, which is NP-hard. Heaviest first, each to the
host with the least load, is within 4/3 of the best (LPT: R. L. Graham, "Bounds on multiprocessing
timing anomalies", SIAM J. Appl. Math. 17 (1969)).

The search makes the parts on the way. The search opens the heaviest subtree that fits no host, and
its children become parts. The fit depends on the capacity of a host. Bisection finds that capacity,
as MULTIFIT does (E. G. Coffman, M. R. Garey, D. S. Johnson, SIAM J. Comput. 7 (1978)). Heaviest
first also needs the fewest zones for the load that it moves. Only cuts move load, and only away
from present hosts.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

import attrs

from txbroker.model.topics import TopicError, deepest_enclosing, validate_apex

PRECISION = 0.001
"""Relative precision of the capacity at which bisection ends."""
EPSILON = 1e-9
"""Relative difference below which sums of floats are equal."""


@attrs.frozen(slots=True, kw_only=True)
class LoadTree:
    """
    The loads of subtrees, and the hosts of zones.

    `loads` has the whole load of each subtree by its topmost topic, "" for all topics. A missing
    subtree belongs to its parent. `zones` has the host of each zone by apex, including the root.
    """

    loads: Mapping[str, float]
    zones: Mapping[str, str]


@attrs.frozen(slots=True, kw_only=True)
class PlannedCuts:
    """
    Zones to add: the host (`hosts`) and the own load (`loads`) of each, by apex.

    `busiest` is the load of the busiest host after the cuts.
    """

    hosts: Mapping[str, str]
    loads: Mapping[str, float]
    busiest: float


def choose_cuts(
    tree: LoadTree, new_hosts: Sequence[str], *, zones: int, slack: float = 0.05
) -> PlannedCuts:
    """
    Choose zones for `new_hosts` that minimise the load of the busiest of all hosts.

    A new host gets at most `zones` zones. The busiest host may have `slack` (a part) more than the
    least load found, if that needs fewer zones.
    """
    best = _Packing(tree, new_hosts, zones).result()
    low = max(sum(own_loads(tree).values()) / (len(host_loads(tree)) + len(new_hosts)), EPSILON)
    high = best.busiest
    while high - low > PRECISION * high:
        capacity = (low + high) / 2
        found = _packed(tree, new_hosts, zones, capacity)
        if found.busiest < best.busiest * (1 - EPSILON):
            best = found
        if found.busiest <= capacity * (1 + EPSILON):
            high = min(found.busiest, capacity)
        else:
            low = capacity
    relaxed = _packed(tree, new_hosts, zones, best.busiest * (1 + slack))
    is_cheaper = len(relaxed.hosts) < len(best.hosts)
    return relaxed if is_cheaper and relaxed.busiest <= best.busiest * (1 + slack) else best


def own_loads(tree: LoadTree) -> dict[str, float]:
    """Return the load of each zone: that of its subtree, less the zones cut out of it."""
    rest = _rest(tree)
    return {apex: rest.get(apex, 0.0) for apex in tree.zones}


def host_loads(tree: LoadTree) -> dict[str, float]:
    """Return the load of each host that has a zone."""
    loads = dict.fromkeys(tree.zones.values(), 0.0)
    for apex, load in own_loads(tree).items():
        loads[tree.zones[apex]] += load
    return loads


def above(topic: str) -> Iterator[str]:
    """Yield the topics above `topic`, nearest first, "" last."""
    while topic:
        topic = topic.rpartition("/")[0]
        yield topic


def may_be_zone(topic: str) -> bool:
    """True if a topology file accepts `topic` as the apex of a zone below the root."""
    if not topic or not all(topic.split("/")):
        return False
    try:
        validate_apex(topic)
    except TopicError:
        return False
    return True


def _rest(tree: LoadTree) -> dict[str, float]:
    """Return the load of each subtree less the zones strictly below its top."""
    rest = dict(tree.loads)
    for apex in sorted(tree.zones, key=lambda apex: -apex.count("/") if apex else 1):
        own = rest.get(apex, 0.0)
        for upper in above(apex):
            if upper in rest:
                rest[upper] -= own
    return rest


def _packed(tree: LoadTree, new_hosts: Sequence[str], zones: int, capacity: float) -> PlannedCuts:
    packing = _Packing(tree, new_hosts, zones)
    packing.pack(capacity)
    packing.undo_cuts(capacity)
    return packing.result()


class _Packing:
    """An attempt: cuts zones until no present host exceeds a capacity."""

    def __init__(self, tree: LoadTree, new_hosts: Sequence[str], zones: int) -> None:
        self._rest = _rest(tree)
        self._zones = dict(tree.zones)
        self._most = zones
        self._hosts = host_loads(tree)
        self._new = dict.fromkeys(new_hosts, 0.0)
        self._count = dict.fromkeys(new_hosts, 0)
        self._taken: dict[str, float] = {}
        self._below: dict[str, list[str]] = {}
        for topic in self._rest:
            if topic:
                parent = next(upper for upper in above(topic) if upper in self._rest or not upper)
                self._below.setdefault(parent, []).append(topic)
        self._heap: list[tuple[float, int, str]] = []
        self._opened: set[str] = set()

    def result(self) -> PlannedCuts:
        """Return the cuts so far."""
        hosts = {apex: self._zones[apex] for apex in self._taken}
        busiest = max((*self._hosts.values(), *self._new.values()))
        return PlannedCuts(hosts=hosts, loads=dict(self._taken), busiest=busiest)

    def pack(self, capacity: float) -> None:
        """
        Cut zones, heaviest that fits a new host first, until no present host is over capacity.
        """
        limit = capacity * (1 + EPSILON)
        for apex in list(self._zones):
            self._open(apex)
        while self._heap and self._has_slots() and max(self._hosts.values()) > limit:
            load, _, topic = heapq.heappop(self._heap)
            if -load != self._rest[topic] or topic in self._zones:
                continue  # An outdated entry: a cut has moved it, or returned its rest to the heap.
            enclosing = self._enclosing(topic)
            if self._hosts.get(self._zones[enclosing], 0.0) <= limit:
                continue
            host = self._room(-load, limit) if may_be_zone(topic) else None
            if host is None:
                self._open(topic)
            else:
                self._cut(topic, enclosing, host)

    def undo_cuts(self, capacity: float) -> None:
        """Undo cuts that `capacity` does not need, lightest first."""
        for topic, load in sorted(self._taken.items(), key=lambda item: (item[1], item[0])):
            host = self._zones.pop(topic)
            enclosing = self._enclosing(topic)
            owner = self._zones[enclosing]
            if owner in self._hosts and self._hosts[owner] + load <= capacity:
                self._hosts[owner] += load
                self._new[host] -= load
                self._count[host] -= 1
                self._add(topic, enclosing, load)
                del self._taken[topic]
            else:
                self._zones[topic] = host

    # internal

    def _enclosing(self, topic: str) -> str:
        apex = deepest_enclosing(topic, self._zones)
        assert apex is not None  # the root zone encloses every topic
        return apex

    def _has_slots(self) -> bool:
        return any(count < self._most for count in self._count.values())

    def _room(self, load: float, limit: float) -> str | None:
        """Return the new host with the least load if a zone of `load` fits it, or None."""
        free = [host for host, count in self._count.items() if count < self._most]
        host = min(free, key=lambda host: self._new[host], default=None)
        return host if host is not None and self._new[host] + load <= limit else None

    def _open(self, topic: str) -> None:
        if topic not in self._opened:
            self._opened.add(topic)
            for child in self._below.get(topic, ()):
                self._offer(child)

    def _offer(self, topic: str) -> None:
        if self._rest[topic] > 0 and topic not in self._zones:
            # Of equal loads the deeper one is first: the rest of its branch may then also fit.
            heapq.heappush(self._heap, (-self._rest[topic], -topic.count("/"), topic))

    def _cut(self, topic: str, enclosing: str, host: str) -> None:
        load = self._rest[topic]
        self._hosts[self._zones[enclosing]] -= load
        self._new[host] += load
        self._count[host] += 1
        self._taken[topic] = load
        self._zones[topic] = host
        self._add(topic, enclosing, -load)

    def _add(self, topic: str, enclosing: str, load: float) -> None:
        """Add `load` to all subtrees between `topic` and the zone that encloses it."""
        for upper in above(topic):
            if upper in self._rest:
                self._rest[upper] += load
                if upper in self._opened and upper != enclosing:
                    self._offer(upper)
            if upper == enclosing:
                break
