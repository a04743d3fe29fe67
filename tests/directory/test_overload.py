"""
Busy nodes: calls time out, deadlines pass, replies come late, and clients give up before CONNACK.

A node does not notice at once that a client has given up, so the session may begin behind its back.
When all is quiet, each client that gave up comes once more with a clean session: nothing stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.client_life import CLIENTS, REST, Life
from tests.support.site import Connection

LOADS = (0.2, 0.4, 0.7)
"""Shares of the messages and syncs that take long, while nodes are busy."""

PATIENCES = (0.5, 2.0, 12.0)
"""Seconds that a client waits for CONNACK."""

STORMS = 8
"""With so many, one history in nine showed a session that was opened when it had ended."""


class BusyLife(Life):
    """A site that is busy now and then; in the end, those who gave up come back."""

    def __init__(self, seed: int, **settings: Any) -> None:
        super().__init__(seed, **settings)
        self._load = 0.0
        self._gave_up: dict[str, None] = {}
        site = self.site
        delay = site.delay

        def of_sync() -> float:
            return delay() + (site.random.uniform(0.0, 0.8) if self._is_slow() else 0.0)

        def of_message() -> float:
            return site.random.uniform(0.2, 3.0) if self._is_slow() else delay()

        site.delay, site.passage = of_sync, of_message  # type: ignore[method-assign]

    def run(self) -> None:
        """All of it, the last visits of those who gave up, and a rest."""
        for _ in range(CLIENTS):
            self._play(self._visitor())
        self._play(self._storms())
        self.site.run_until(lambda: not self._playing, 900.0)
        self.discarded -= self._gave_up.keys()
        for client_id in self._gave_up:
            self._play(self._last_visit(client_id))
        self.site.run_until(lambda: not self._playing, 900.0)
        self.site.run(REST)

    def _is_slow(self) -> bool:
        return self._load > 0.0 and self.site.random.random() < self._load

    def _storms(self) -> Iterator[float]:
        for _ in range(STORMS):
            yield self.random.uniform(0.5, 3.0)
            self._load = self.random.choice(LOADS)
            yield self.random.uniform(1.0, 8.0)
            self._load = 0.0
        self._is_over = True

    def _answered(self, connection: Connection | None) -> Iterator[float]:
        """Wait for CONNACK, or give up: the node notices that when it answers."""
        waited, patience = 0.0, self.random.choice(PATIENCES)
        while connection is not None and not connection.is_answered:
            if waited >= patience:
                self._gave_up[connection.client_id] = None
                self._play(self._noticed(connection))
                return
            waited += 0.05
            yield 0.05

    def _leave(self, connection: Connection) -> None:
        if connection.is_answered:
            super()._leave(connection)

    def _noticed(self, connection: Connection) -> Iterator[float]:
        while not connection.is_answered:
            yield 0.05
        super()._leave(connection)

    def _last_visit(self, client_id: str) -> Iterator[float]:
        present = None
        while present is None:
            connection = self._connect(client_id, True)
            assert connection is not None
            while not connection.is_answered:
                yield 0.05
            present = connection.present
            super()._leave(connection)
            yield 0.2
        self.discarded.add(client_id)


@pytest.mark.parametrize(("seed", "wait"), [(1, 3.0), (2, 10.0), (3, 3.0), (4, 10.0)])
def test_nothing_stays_of_clients_that_gave_up(seed: int, wait: float) -> None:
    """Neither a session, nor an entry of one, nor a move; and each CONNECT is answered."""
    life = BusyLife(seed, roaming_wait=wait)
    life.run()

    assert [] == life.left_over()
