"""
Clients that come and go while nodes die and are cut off: nothing of them stays behind.

Many clients at once, on three nodes in memory. When all nodes are whole again, each entry that is
kept names a node that has the session, and nobody remembers a move.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from tests.support.site import Connection, Site

NODES = ("a", "b", "c")
CLIENTS = 12
FAULTS = 15
REST = 120.0
"""Seconds in which what is left over is found."""

Pauses = Iterator[float]


class Life:
    """A site, its clients and its faults; `run` plays them to their end."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.site = Site(NODES, seed)
        self.site.start(len(NODES))
        self.site.run(3.0)
        self.discarded: set[str] = set()
        self._visits = 0
        self._is_over = False
        self._playing = 0

    def run(self) -> None:
        """All of it, and a rest in which all nodes are whole."""
        for _ in range(CLIENTS):
            self._play(self._visitor())
        self._play(self._faults())
        self.site.run_until(lambda: not self._playing, 600.0)
        self.site.heal()
        self.site.run(REST)

    def _play(self, pauses: Pauses) -> None:
        self._playing += 1

        def step() -> None:
            pause = next(pauses, None)
            if pause is None:
                self._playing -= 1
            else:
                self.site.after(max(pause, 0.001), step)

        step()

    def _faults(self) -> Pauses:
        """A node at a time dies, or is cut off, and is back."""
        for _ in range(FAULTS):
            yield self.random.uniform(0.5, 4.0)
            node = self.site.nodes[self.random.choice(NODES)]
            if self.random.random() < 0.5:
                node.kill(self.random.randrange(4))
                yield self.random.choice((0.5, 1.0, 3.0))
                node.start()
            else:
                self.site.isolate(node.name)
                yield self.random.uniform(0.5, 8.0)
                self.site.heal()
        self._is_over = True

    def _visitor(self) -> Pauses:
        """One client id after the other: a session begins, moves or not, and is discarded."""
        while not self._is_over:
            self._visits += 1
            client_id = f"x{self._visits}"
            for clean in (*[False] * self.random.randrange(4), True):
                connection = self._connect(client_id, clean)
                yield from self._answered(connection)
                yield self.random.choice((0.0, 0.02, 0.1))
                if connection is not None:
                    connection.lost(is_will_due=False)
                    if clean and connection.present is not None:
                        self.discarded.add(client_id)
                yield self.random.choice((0.0, 0.0, 0.02, 0.05, 0.1, 0.3))

    def _connect(self, client_id: str, clean: bool) -> Connection | None:
        node = self.site.nodes[self.random.choice(NODES)]
        return node.connect(client_id, clean=clean) if node.is_up else None

    def _answered(self, connection: Connection | None) -> Pauses:
        for _ in range(100):
            if connection is None or connection.is_answered:
                return
            yield 0.05


@pytest.mark.parametrize("seed", [0, 2, 6, 8, 9, 13])
def test_nothing_stays_of_clients_that_came_and_went_amid_faults(seed: int) -> None:
    """
    What was discarded is gone. Tombstones and moves end with what they are about; entries name who
    has the session.
    """
    life = Life(seed)
    life.run()
    nodes = life.site.nodes
    for name, node in nodes.items():
        assert set() == life.discarded & set(node.host.kept), f"sessions at {name}"
        assert () == tuple(node.directory.holdings.tombstones()), f"tombstones at {name}"
        assert {} == node.directory.registrar.gone, f"moves that {name} tells of"
        for entry in node.directory.keeper.entries.durable():
            held = nodes[entry.node].directory.holdings.held
            assert entry.client_id in held, f"{name} keeps {entry}"
