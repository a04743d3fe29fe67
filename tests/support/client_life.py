"""
Clients that come and go while nodes die and are cut off, as a history that a seed draws.

Many clients at once, on nodes in memory. When all nodes are whole again, each entry that is kept
names a node that has the session, and nobody remembers a move. In harder orders messages come
twice or when their call is over, nodes join late, are lost for good and forgotten by command, or
are of two sites.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from tests.support.site import Connection, Node, Site

NODES = ("a", "b", "c")
FIVE = ("a", "b", "c", "d", "e")
CLIENTS = 12
FAULTS = 15
CHECK_EVERY = 50
"""Turns of a node between two checks of its invariants."""

REST = 120.0
"""Seconds in which what is left over is found."""

Pauses = Iterator[float]


class Life:
    """
    A site, its clients and its faults; `run` plays them to their end. The last `late` nodes start
    amid the faults; with `is_one_lost` one dies for good; `doubled` is the share of messages that
    come twice, `delayed` that of messages that come when their call is over, `all_die` that of
    faults in which all nodes die at once.
    """

    def __init__(
        self,
        seed: int,
        nodes: tuple[str, ...] = NODES,
        *,
        late: int = 0,
        is_one_lost: bool = False,
        doubled: float = 0.0,
        delayed: float = 0.0,
        all_die: float = 0.0,
        **settings: Any,
    ) -> None:
        self.random = Random(seed)
        self.site = Site(nodes, seed, **settings)
        self.site.doubled = doubled
        self.site.check_every = CHECK_EVERY
        self.site.start(len(nodes) - late)
        self.site.run(3.0)
        self.discarded: set[str] = set()
        self._lost_discards: set[str] = set()
        self._all_die, self._delayed = all_die, delayed
        self._late = list(nodes[len(nodes) - late :])
        self._lost = nodes[-late - 1] if is_one_lost else None
        self._visits = 0
        self._is_over = False
        self._playing = 0

    def run(self) -> None:
        """All of it, and a rest in which all nodes are whole; the end has a check of each node."""
        self.site.delayed = self._delayed
        for _ in range(CLIENTS):
            self._play(self._visitor())
        self._play(self._faults())
        self.site.run_until(lambda: not self._playing, 600.0)
        self.site.heal()
        self.site.delayed = 0.0
        self.site.run(REST)
        for _, node in self._members():
            node.directory.check()

    def left_over(self) -> list[str]:
        """What stays that should not, in words."""
        found = []
        for name, node in self._members():
            directory = node.directory
            sessions = (self.discarded - self._lost_discards) & set(node.host.kept)
            moves = dict(directory.ownership.tombstones())
            found += [f"{name} has session {client_id}" for client_id in sessions]
            found += [f"{name} remembers {move}" for move in moves.items()]
            found += [f"{name} tells of {entry}" for entry in directory.replicator.gone.values()]
            beside = {
                "clients": directory.connected.remembered,
                "discards": len(directory.clearings),
                "copies": len(directory.ownership.arriving),
                "nodes to tell": len(directory.replica.entries.losers()),
            }
            found += [f"{name} has {count} {what}" for what, count in beside.items() if count]
            for entry in directory.replica.entries.durable():
                named = self.site.nodes[entry.node]
                if not named.is_up or entry.client_id not in named.directory.ownership.held:
                    found.append(f"{name} keeps {entry}")
        return found

    def _members(self) -> list[tuple[str, Node]]:
        return [(name, node) for name, node in self.site.nodes.items() if node.is_up]

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
        """A node at a time dies, or is cut off, and is back; or all of them die."""
        for number in range(FAULTS):
            yield self.random.uniform(0.5, 4.0)
            names = [name for name, _ in self._members()]
            if self._late and self.random.random() < 0.3:
                self.site.nodes[self._late.pop()].start()
            if self._lost in names and number == FAULTS // 2:
                yield from self._lose(self.site.nodes[self._lost])
            elif self.random.random() < self._all_die:
                yield from self._kill(*names)
            elif self.random.random() < 0.5:
                yield from self._kill(self.random.choice(names))
            else:
                self.site.isolate(self.random.choice(names))
                yield self.random.uniform(0.5, 8.0)
                self.site.heal()
        self._is_over = True

    def _kill(self, *names: str) -> Pauses:
        for name in names:
            self.site.nodes[name].kill(self.random.randrange(4))
        for name in self.random.sample(names, len(names)):
            yield self.random.choice((0.5, 1.0, 3.0))
            self.site.nodes[name].start()

    def _lose(self, node: Node) -> Pauses:
        """
        It dies for good; the root is told, after a while.

        The node alone remembers its pending discards (docs/guarantees.md): their sessions may stay.
        """
        pending = node.store.table("discards").items()
        self._lost_discards |= {client_id.decode() for client_id, _ in pending}
        node.kill(self.random.randrange(4))
        yield self.random.uniform(0.5, 8.0)
        self.site.nodes[self.site.root].directory.members.remove(node.name)

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
                    self._leave(connection)
                    if clean and connection.present is not None:
                        self.discarded.add(client_id)
                yield self.random.choice((0.0, 0.0, 0.02, 0.05, 0.1, 0.3))

    def _leave(self, connection: Connection) -> None:
        connection.lost(is_will_due=False)

    def _connect(self, client_id: str, clean: bool) -> Connection | None:
        node = self.site.nodes[self.random.choice(list(self.site.nodes))]
        return node.connect(client_id, clean=clean) if node.is_up else None

    def _answered(self, connection: Connection | None) -> Pauses:
        for _ in range(100):
            if connection is None or connection.is_answered:
                return
            yield 0.05
