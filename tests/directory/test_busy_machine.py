"""
Nodes that share one slow processor: each message waits for all that came before it.

Such a site comes to rest only if a node neither repeats a call that will still be answered, nor
takes a slow member for a dead one. Otherwise more calls come than the processor can do, for ever.
"""

from __future__ import annotations

import pytest

from tests.support.site import Site
from txbroker.directory.heartbeat import pulse
from txbroker.directory.silent_members import WATCHERS

NODES = 20

AT_REST = 1.2 * NODES * WATCHERS / pulse(10.0)
"""Upper bound of calls a second of a site at rest: signs of life to those who watch."""


class BusySite(Site):
    """A site on one machine, whose processor takes `cost` seconds for each message."""

    def __init__(self, cost: float) -> None:
        super().__init__([f"n{number:02}" for number in range(NODES)], 1)
        self.cost = cost
        self._free = 0.0

    def passage(self) -> float:
        self._free = max(self._free, self.now) + self.cost
        return self._free - self.now

    @property
    def is_at_rest(self) -> bool:
        """True if each node knows that each other one answers, and has its entries."""
        peers = [
            peer
            for node in self.nodes.values()
            for peer in node.directory.replicator._peers.values()
        ]
        is_met = len(peers) == NODES * (NODES - 1)
        return is_met and all(peer.is_listed and not peer.failures for peer in peers)

    def rate(self, seconds: float) -> float:
        """Calls a second from now on."""
        before = len(self.calls)
        self.run(seconds)
        return (len(self.calls) - before) / seconds

    def reports(self) -> int:
        """How many reports of silent members all nodes have made."""
        return sum(node.directory.silence.version for node in self.nodes.values())


@pytest.fixture(scope="module")
def site() -> BusySite:
    """A site that starts at once, with messages that take the processor for a long time."""
    site = BusySite(cost=0.012)
    site.start(NODES)
    return site


def test_nodes_that_share_a_slow_processor_come_to_rest(site: BusySite) -> None:
    """When the processor has done what the start takes: two calls from each node to each other."""
    site.run_until(lambda: site.is_at_rest, 3.0 * 2 * NODES**2 * 2 * site.cost)
    site.run(15.0)

    assert site.is_at_rest
    assert site.rate(10.0) < AT_REST


def test_clients_of_such_a_site_are_served(site: BusySite) -> None:
    """Also of a kept session, which needs the answers of other nodes."""
    connections = [node.connect(f"c-{node.name}") for node in list(site.nodes.values())[:3]]
    site.run(10.0)

    assert [False] * 3 == [connection.present for connection in connections]


def test_a_busy_moment_is_no_death(site: BusySite) -> None:
    """No node is told that another one is silent; afterwards all is as before."""
    site.run(5.0)
    before = site.reports()
    usual, site.cost = site.cost, 0.1
    site.run(10.0)
    site.cost = usual
    site.run(15.0)

    assert before == site.reports()
    assert site.is_at_rest
    assert site.rate(10.0) < AT_REST


def test_a_death_is_noticed_at_a_busy_machine(site: BusySite) -> None:
    """In the time that it takes when nobody is busy, and a few seconds."""
    dead = site.nodes["n07"]
    dead.kill()
    began = site.now
    others = [node for node in site.nodes.values() if node is not dead]
    site.run_until(lambda: all("n07" in n.directory.silence._silent for n in others), 40.0)

    assert site.now - began < 25.0
