"""Steps on a node take turns, and the history tells of processes what was, not what was planned."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import on_loop

from .cast import draw
from .conditions import LABORATORY
from .events import Down, Faulted
from .faulty import FaultyNode
from .networks import Relays
from .rounds import Play
from .schedule import Step
from .trees import TREES
from .world import World

TREE = TREES["pair"]

SLOW_TO_END = """
import signal, sys, time
def end(*_):
    time.sleep(1.0)
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True:
    time.sleep(600)
"""


class Idle(FaultyNode):
    """A process in the place of a node, that does nothing and takes its time to end."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", SLOW_TO_END]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Of idle processes, which run."""
    monkeypatch.setattr("tests.faults.world.FaultyNode", Idle)
    network = Relays(TREE.names)
    made = World(TREE, network, tmp_path, None, None, LABORATORY, mount=False, seed=1)
    try:
        made.start_all()
        yield made
    finally:
        for node in made.nodes.values():
            node.kill()
        made.close()


@on_loop
async def test_step_is_noted_in_its_turn(world: World) -> None:
    """So a node that is slow to end is dead before the start that was due meanwhile."""
    await asyncio.to_thread(wait_until_ready, world.nodes["a"])
    the_play = Play(TREE, draw(1, TREE), world, LABORATORY, 1)
    steps = (Step(0.0, "stop", ("a",)), Step(0.1, "start", ("a",)), Step(0.2, "kill", ("a",)))

    await asyncio.gather(*(the_play._perform(step) for step in steps))

    stop, down, start, kill, down_again = the_play.history
    assert isinstance(stop, Faulted) and "stop a" in stop.what
    assert isinstance(start, Faulted) and "start a" in start.what
    assert isinstance(kill, Faulted) and "kill a" in kill.what
    assert isinstance(down, Down) and "a" == down.node
    assert isinstance(down_again, Down) and "a" == down_again.node


def test_each_end_of_a_process_is_noted_once(world: World) -> None:
    """Also of one that nobody had ended, and of one that runs again."""
    world.notice_deaths()
    assert [] == world.down

    world.nodes["a"].kill()
    world.notice_deaths()
    world.notice_deaths()
    assert ["a"] == world.down

    world.start_all()
    world.nodes["a"].kill()
    world.start_all()
    world.notice_deaths()
    assert ["a", "a"] == world.down


def test_node_that_retires_late_is_started_again(world: World) -> None:
    """Its command had given up: the zone would be missing until the end of the play."""
    node = world.nodes["a"]
    wait_until_ready(node)
    node.send_signal(signal.SIGTERM)
    node.wait()

    world.settle()

    assert (node.running, world.died) == (True, [])


def wait_until_ready(node: FaultyNode) -> None:
    """Its handler is there."""
    while "ready" not in node.stdout:
        assert node.running
        with node._changed:
            node._changed.wait(0.1)
