"""Wills in a whole site in memory, one scenario each."""

from __future__ import annotations

import pytest

from tests.directory.scenarios import WILL, connect, id_kept_by, keepers, site
from tests.support.site import Site


@pytest.mark.parametrize("after", [3.0, 10.0, 40.0])
@pytest.mark.parametrize("lived", [1.0, 2.4, 4.7])
def test_the_will_of_a_dead_node_is_published_once(after: float, lived: float) -> None:
    """
    After `will_after`, by the first keeper that is left; not again when the node is back. Not much
    earlier, however long ago the keepers had heard of the node when it died, nor much later.
    """
    all_nodes = site(will_after=after)
    connect(all_nodes, "b", will=WILL)
    connect(all_nodes, "b", "clean", clean=True, will=WILL)
    all_nodes.run(lived)
    all_nodes.nodes["b"].kill()
    all_nodes.run(after - 1.0)
    assert not all_nodes.wills
    all_nodes.run(8.5)
    assert [("clean", "b", 1, 2), ("x", "b", 1, 1)] == sorted(all_nodes.wills)
    all_nodes.nodes["b"].start()
    all_nodes.run(after + 7.0)

    assert len(all_nodes.wills) == 2


def test_the_will_of_a_node_that_is_forgotten_is_published_at_once() -> None:
    """By one keeper, though nobody watches the node any more; not of who went on elsewhere."""
    all_nodes = site(will_after=40.0)
    names = [f"id{number}" for number in range(20)]
    for name in names:
        connect(all_nodes, "b", name, will=WILL)
    all_nodes.run(1.0)
    all_nodes.nodes["b"].kill()
    connect(all_nodes, "c", names[0], clean=True)
    all_nodes.run(4.0)
    all_nodes.nodes["a"].directory.members.remove("b")
    all_nodes.run(5.0)

    assert sorted(names[1:]) == sorted(client_id for client_id, *_ in all_nodes.wills)
    all_nodes.run(60.0)
    assert len(names) - 1 == len(all_nodes.wills)


def test_the_next_keeper_publishes_it_when_the_first_is_dead_too() -> None:
    """Once."""
    all_nodes = site(will_after=3.0)
    client_id = id_kept_by(all_nodes, but_not="b")
    connect(all_nodes, "b", client_id, will=WILL)
    all_nodes.run(1.0)
    all_nodes.nodes["b"].kill()
    all_nodes.nodes[keepers(all_nodes, client_id)[0]].kill()
    all_nodes.run(15.0)

    assert len(all_nodes.wills) == 1


def test_a_keeper_that_has_just_started_waits_whatever_it_is_told() -> None:
    """Others have missed the dead node for long; those who want the will are not back yet."""
    all_nodes = site(will_after=3.0)
    client_id = id_kept_by(all_nodes, but_not="d")
    connect(all_nodes, "b", client_id, will=WILL)
    all_nodes.run(1.0)
    for name in ("a", "b", "c"):
        all_nodes.nodes[name].kill()
    all_nodes.run(20.0)
    all_nodes.nodes["a"].start()
    all_nodes.run(2.5)
    assert not all_nodes.wills

    all_nodes.run(10.0)

    assert 1 == len(all_nodes.wills)


def test_no_will_of_a_client_that_came_back() -> None:
    """Elsewhere, or at the node that was started again."""
    all_nodes = site(will_after=3.0, roaming_wait=0.3, is_fresh=True)
    for client_id in ("x", "y", "z"):
        connect(all_nodes, "b", client_id, clean=client_id == "z", will=WILL)
    all_nodes.run(1.0)
    all_nodes.nodes["b"].kill()
    connect(all_nodes, "c", "x")
    connect(all_nodes, "d", "z", clean=True)
    all_nodes.run(1.0)
    all_nodes.nodes["b"].start()
    connect(all_nodes, "b", "y")
    all_nodes.run(15.0)

    assert not all_nodes.wills


def test_a_node_that_is_back_publishes_what_nobody_did() -> None:
    """A tree of one node has no keeper but itself."""
    alone = site(["a"], will_after=3.0)
    connect(alone, "a", will=WILL)
    alone.run(1.0)
    alone.nodes["a"].kill()
    alone.nodes["a"].start()
    alone.run(2.0)
    assert not alone.wills
    alone.run(3.0)

    assert [("x", "a", 1, 1)] == alone.wills


def test_the_will_of_when_a_node_was_alone_is_published_by_the_second_one() -> None:
    """Nobody had to know of it before; then it is a keeper's business, too."""
    growing = Site(["a", "b"], 1, will_after=3.0)
    growing.start(1)
    connect(growing, "a", clean=True, will=WILL)
    connect(growing, "a", "y", clean=True, will=WILL).lost(is_will_due=False)
    assert not growing.nodes["a"].directory.replicator.own
    growing.nodes["b"].start()
    growing.run(3.0)
    growing.nodes["a"].kill()
    growing.run(8.0)

    assert [("x", "a", 1, 1)] == growing.wills


def test_a_clean_session_of_a_node_that_is_alone_and_back_has_its_will_published() -> None:
    """Once, by the node itself."""
    alone = site(["a"], will_after=3.0)
    connect(alone, "a", clean=True, will=WILL)
    alone.run(1.0)
    alone.nodes["a"].kill()
    alone.nodes["a"].start()
    alone.run(8.0)

    assert [("x", "a", 1, 1)] == alone.wills


def test_no_will_after_a_disconnect() -> None:
    """Neither here nor by a keeper."""
    all_nodes = site(will_after=3.0)
    connect(all_nodes, "b", will=WILL).lost(is_will_due=False)
    all_nodes.run(1.0)
    all_nodes.nodes["b"].kill()
    all_nodes.run(10.0)

    assert not all_nodes.wills


def test_a_node_that_was_cut_off_is_told_what_was_published() -> None:
    """It does not publish that will again when the connection is lost."""
    all_nodes = site(will_after=3.0)
    connection = connect(all_nodes, "b", will=WILL)
    all_nodes.run(1.0)
    all_nodes.isolate("b")
    all_nodes.run(8.0)
    assert len(all_nodes.wills) == 1
    all_nodes.heal()
    all_nodes.run(3.0)
    assert ["x"] == all_nodes.nodes["b"].host.forgotten
    connection.lost(is_will_due=True)

    assert len(all_nodes.wills) == 1
