"""
An edge that ends in good order, and starts anew, after zones changed hands.

All was durable: nothing comes twice, and nothing is skipped.
"""

from __future__ import annotations

import random

import pytest

from tests.edge.sessions.test_catch_up_after_moves import bench_of, everything, subscribed
from tests.edge.sessions.test_session_cursors import A, in_journal, told
from tests.edge.sessions.test_transition_log import Visits, World, by_topic, everywhere
from tests.support.edge_bench import Client
from txbroker.edge.sessions.journal_read_cache import RETRY
from txbroker.model.log_position import JournalId
from txbroker.mqtt.session.cursor import Cursor


def start_anew(world: World) -> None:
    """The edge's process ends, and another one begins; the clients have left."""
    bench = world.bench
    bench.settle()
    bench.edge.cursors.checkpoint_now()
    bench.settle()
    world.start_edge_anew()


@pytest.mark.parametrize("filters", [("#",), ("a/x",), ("x", "a/#")])
@pytest.mark.parametrize("lives", [1, 2])
@pytest.mark.parametrize("ends", [1, 2])
def test_parts_of_a_restored_zone_that_came_back_are_not_read_again(
    filters: tuple[str, ...], lives: int, ends: int
) -> None:
    """
    The session had read each life of the zone; its place in the last one is gone with the part.
    """
    world = World()
    world.go_out()
    world.find("a")
    client = subscribed(world.bench, *filters)
    everywhere(world)
    came = everything(client)
    for _ in range(lives):
        everywhere(world)
        world.restore()
        everywhere(world)
        world.find("a")
        everywhere(world)
        came += everything(client)
    world.come_back()
    everywhere(world)
    came += everything(client)
    client.leave()
    for _ in range(ends):
        start_anew(world)
    world.settle()
    client = Client(world.bench, "c", clean=False)
    world.settle()
    everywhere(world)

    assert world.told(*filters) == by_topic(came + everything(client))
    assert {} == client.session.places.behind


@pytest.mark.parametrize("is_told", [False, True])
def test_part_whose_end_is_not_announced_yet_is_not_read_again(is_told: bool) -> None:
    """
    Its node has handed it back, and lets the session read the rest; the root is cut off.

    `is_told`: the edge hears of the root before it ends. Then nothing of the part is left.
    """
    world = World()
    world.go_out()
    world.find("a")
    client = subscribed(world.bench, "a/x")
    everywhere(world)
    came = everything(client)
    world.lose("a")
    world.lose("")
    everywhere(world)
    world.come_back()
    world.find("a")
    came += everything(client)
    assert ["a/x 1", "a/x 3"] == came
    if is_told:
        world.find("")
        assert [] == everything(client)
        assert JournalId("a", 1) not in client.session.places.taken
    client.leave()
    start_anew(world)
    world.settle()
    client = Client(world.bench, "c", clean=False)
    everywhere(world)

    assert world.told("a/x") == by_topic(came + everything(client))
    assert {} == client.session.places.behind


def test_part_that_is_still_to_be_read_keeps_where_its_subscriptions_begin() -> None:
    """A later part of the zone has gone: the earlier one has records from before the SUBSCRIBE."""
    bench = bench_of("a")
    client = subscribed(bench, "a/x")
    bench.lose("a")
    in_journal(bench, A, "child", 1, 3)
    bench.online("a", offset=3)
    session = client.session
    session.subscriptions["a/x"].exclude(A, 2)
    session.places.add(Cursor(A, 0))
    session.places.forget_part(JournalId("a", 2))
    bench.edge.cursors.wake()

    assert told("child", 3, 3) == everything(client)
    assert {} == session.places.behind


@pytest.mark.parametrize("seed", range(200))
def test_any_history_with_restarts(seed: int) -> None:
    """Zones go out, come back and are restored; links break, clients leave, the edge restarts."""
    rng = random.Random(seed)
    world = World(is_slow=rng.random() < 0.5)
    filters = rng.choice([("#",), ("a/x",), ("x", "a/#")])
    visits = Visits(world, *filters)
    for _ in range(rng.randrange(5, 40)):
        match rng.randrange(10):
            case 0 | 1:
                everywhere(world)
            case 2 if world.is_out:
                world.notice()
                world.come_back(is_late=rng.random() < 0.5)
            case 2:
                world.notice()
                world.go_out()
            case 3 if world.is_out:
                world.notice()
                everywhere(world)
                world.restore()
                everywhere(world)
            case 4 if world.linked:
                world.lose(rng.choice(sorted(world.linked)))
            case 5 | 6:
                world.find(rng.choice(["", "a"]))
            case 7 if visits.is_here:
                visits.leave()
            case 7 | 8 if not visits.is_here:
                visits.come()
            case 9:
                world.notice()
                visits.leave()
                start_anew(world)
            case _:
                world.bench.edge.cursors.checkpoint()
                world.bench.clock.advance(RETRY)
        visits.read()
    visits.check_end()
