"""
CORE: decides which zones share a host, so that few messages cross between hosts.

`cuts` balances loads; this module only exchanges zones within the capacity of hosts. The gain is in
*ties*. The tie of two zones is the clients' traffic that a host with both zones would join. To
maximise the ties within hosts is graph partitioning, which is NP-hard. The search exchanges pairs
and moves single zones while that gains, as in B. W. Kernighan, S. Lin, "An efficient heuristic
procedure for partitioning graphs", Bell System Technical Journal 49 (1970), and C. M. Fiduccia, R.
M. Mattheyses, "A linear-time heuristic for improving network partitions", DAC (1982), without their
look-ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

ROUNDS = 50
"""Maximum number of rounds, more than any plan needed; each round gains, so the search ends."""


def regroup(
    hosts: Mapping[str, str],
    loads: Mapping[str, float],
    ties: Mapping[tuple[str, str], float],
    new_hosts: Sequence[str],
    *,
    capacity: float,
    zones: int,
) -> dict[str, str]:
    """
    Return the host of each zone of `hosts`, changed so that more ties are within hosts.

    A host gets at most `capacity` (or its present load, if larger), and at most `zones` zones.
    `ties` has each pair once, in any order; pairs with zones outside `hosts` are ignored.
    """
    grouping = _Grouping(hosts, loads, ties, new_hosts, capacity, zones)
    for _ in range(ROUNDS):
        if not (grouping.move_some() | grouping.swap_some()):
            break
    return grouping.hosts


class _Grouping:
    """The state of one search."""

    def __init__(
        self,
        hosts: Mapping[str, str],
        loads: Mapping[str, float],
        ties: Mapping[tuple[str, str], float],
        new_hosts: Sequence[str],
        capacity: float,
        zones: int,
    ) -> None:
        self.hosts = dict(hosts)
        self._loads = loads
        self._names = list(new_hosts)
        self._most = zones
        self._load = dict.fromkeys(new_hosts, 0.0)
        self._count = dict.fromkeys(new_hosts, 0)
        for apex, host in hosts.items():
            self._load[host] += loads[apex]
            self._count[host] += 1
        self._capacity = max((capacity, *self._load.values()))
        self._ties: dict[str, dict[str, float]] = {apex: {} for apex in hosts}
        self._pull = {apex: dict.fromkeys(new_hosts, 0.0) for apex in hosts}
        for (one, other), tie in ties.items():
            if one != other and one in hosts and other in hosts:
                self._ties[one][other] = self._ties[other][one] = tie
                self._pull[one][hosts[other]] += tie
                self._pull[other][hosts[one]] += tie

    def move_some(self) -> bool:
        """Move zones to hosts with more of their ties; return True if any zone moved."""
        has_moved = False
        for apex in sorted(self.hosts):
            pull, at = self._pull[apex], self.hosts[apex]
            host = max(self._names, key=lambda host: pull[host])
            has_room = (
                self._count[host] < self._most
                and self._load[host] + self._loads[apex] <= self._capacity
            )
            if pull[host] > pull[at] and has_room:
                self._move(apex, host)
                has_moved = True
        return has_moved

    def swap_some(self) -> bool:
        """Exchange pairs of zones where that gains; return True if any pair was exchanged."""
        has_moved = False
        apexes = sorted(self.hosts)
        for number, one in enumerate(apexes):
            for other in apexes[number + 1 :]:
                if self._gain(one, other) > 0 and self._swap_has_room(one, other):
                    here, there = self.hosts[one], self.hosts[other]
                    self._move(one, there)
                    self._move(other, here)
                    has_moved = True
        return has_moved

    # internal

    def _gain(self, one: str, other: str) -> float:
        here, there = self.hosts[one], self.hosts[other]
        if here == there:
            return 0.0
        gain = self._pull[one][there] - self._pull[one][here]
        gain += self._pull[other][here] - self._pull[other][there]
        # Each pull counted the other zone at its old host, which it leaves.
        return gain - 2 * self._ties[one].get(other, 0.0)

    def _swap_has_room(self, one: str, other: str) -> bool:
        more = self._loads[one] - self._loads[other]
        here, there = self.hosts[one], self.hosts[other]
        return (
            self._load[here] - more <= self._capacity and self._load[there] + more <= self._capacity
        )

    def _move(self, apex: str, host: str) -> None:
        at = self.hosts[apex]
        self._load[at] -= self._loads[apex]
        self._load[host] += self._loads[apex]
        self._count[at] -= 1
        self._count[host] += 1
        for other, tie in self._ties[apex].items():
            self._pull[other][at] -= tie
            self._pull[other][host] += tie
        self.hosts[apex] = host
