"""A checkpoint of thousands of sessions is written in slices, and its positions after them."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from tests.edge.sessions.test_catch_up_after_moves import bench_of, everything, say, subscribed
from tests.support.edge_bench import Client, EdgeBench
from txbroker.edge.sessions.session_store import STEP
from txbroker.model.log_position import JournalId

ROOT = JournalId("", 1)
CLIENTS = 3 * STEP


class Stepped:
    """An edge whose `CLIENTS` have left together; its checkpoints go on as a test says."""

    def __init__(self) -> None:
        self.bench = bench_of()
        self.written: list[bool] = []
        self._steps: list[Iterator[None]] = []
        for number in range(CLIENTS):
            subscribed(self.bench, "x", name=f"c{number}").leave()
        self.bench.commit.commit()
        self.store = self.bench.edge.session_store
        self.store.wire_slices(self._steps.append)
        for session in self.bench.edge.clients.sessions.values():
            self.store.save(session, urgent=False)

    def checkpoint(self) -> None:
        """Begin a checkpoint."""
        self.bench.edge.cursors.checkpoint(lambda: self.written.append(True))

    def step(self) -> int:
        """Do a step; return how many sessions were written."""
        before = self.bench.commit.windows.puts
        next(self._steps[0], None)
        return self.bench.commit.windows.puts - before

    @property
    def position(self) -> int:
        """What is kept of the zone's stream."""
        return self.store.stored.load().get(ROOT, 0)


def test_sessions_are_written_in_slices_and_their_positions_last() -> None:
    """The rows of 9,000 groups took 0.8 s of one turn."""
    edge = Stepped()
    say(edge.bench, 1, 1)
    edge.checkpoint()
    say(edge.bench, 2, 2)
    edge.checkpoint()  # the last one is not over
    for _ in range(CLIENTS // STEP):
        assert edge.step() == STEP
        assert edge.position == 0
        assert not edge.written
    assert edge.step() == 0
    assert edge.position == 1
    assert edge.written == [True]


@pytest.mark.parametrize("is_over", [False, True])
def test_a_checkpoint_undoes_no_later_position(is_over: bool) -> None:
    """A part that ends while sessions are written has no position, or that of its end."""
    edge = Stepped()
    say(edge.bench, 1, 1)
    edge.checkpoint()
    edge.step()
    if is_over:
        edge.store.on_ended(ROOT)
    else:
        edge.store.on_closed(ROOT, 5)
    while not edge.written:
        edge.step()
    assert edge.position == (0 if is_over else 5)


def test_transitions_are_written_with_positions_behind_them() -> None:
    """Both are true or neither: a transition during a checkpoint waits for the next one."""
    edge = Stepped()
    passages = edge.bench.commit.passages
    edge.store.stored.note_transition(b"before")
    edge.checkpoint()
    edge.store.stored.note_transition(b"during")
    assert not passages.values
    while not edge.written:
        edge.step()
    assert set(passages.values) == {b"before"}


def test_the_end_of_a_node_waits_for_no_slice() -> None:
    edge = Stepped()
    say(edge.bench, 1, 1)
    edge.checkpoint()
    edge.step()
    say(edge.bench, 2, 2)
    before = edge.bench.commit.windows.puts
    edge.bench.edge.cursors.checkpoint_now()
    assert edge.position == 2
    assert edge.bench.commit.windows.puts - before == CLIENTS - STEP
    while not edge.written:
        edge.step()
    assert edge.position == 2


def test_an_error_ends_one_checkpoint_only() -> None:
    edge = Stepped()
    with patch.object(edge.store, "_put_window", side_effect=OSError):
        edge.checkpoint()
        with pytest.raises(OSError):
            edge.step()
    edge._steps.clear()
    edge.checkpoint()
    while not edge.written:
        edge.step()


@pytest.mark.parametrize("steps", range(5))
def test_a_crash_amid_a_checkpoint_loses_nothing(steps: int) -> None:
    """Some sessions are newer than the position, and none is older."""
    edge = Stepped()
    say(edge.bench, 1, 3)
    edge.checkpoint()
    for _ in range(steps):
        edge.step()
    say(edge.bench, 4, 4)
    edge.bench.commit.commit()
    bench: EdgeBench = edge.bench.restart()
    bench.online("", offset=4)
    for number in range(CLIENTS):
        client = Client(bench, f"c{number}", clean=False)
        assert everything(client) == [str(offset) for offset in range(1, 5)]
