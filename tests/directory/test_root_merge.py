"""A root that lost its disk begins sessions for clients that have older ones at other sites."""

from __future__ import annotations

import attrs
import pytest

from tests.directory.scenarios import connect, site, subscribe
from tests.support.crash_store import Store
from tests.support.site import Site
from txbroker.directory import root_merge

SITES = {"a": "office", "b": "south", "c": "south", "d": "north"}
"""Sites of nodes; `a` is the root."""


def lose_root(all_nodes: Site) -> None:
    """It is back with an empty disk, and nobody can reach it."""
    root = all_nodes.nodes["a"]
    root.kill()
    root.store = Store()
    for other in "bcd":
        all_nodes.cut("a", other)
    root.start()


def unasked(all_nodes: Site) -> int:
    return len(all_nodes.nodes["a"].directory.ownership.unasked())


@pytest.mark.parametrize("is_restarted", [False, True])
def test_session_that_a_new_root_begins_takes_in_the_older_one(is_restarted: bool) -> None:
    """Also where the root starts again before any other node is back, as it takes a new epoch."""
    all_nodes = site(sites=SITES)
    subscribe(all_nodes, connect(all_nodes, "b"), "older")
    lose_root(all_nodes)
    new = connect(all_nodes, "a")
    assert new.present is False
    subscribe(all_nodes, new, "newer")
    if is_restarted:
        all_nodes.run(1.0)
        all_nodes.nodes["a"].kill()
        all_nodes.nodes["a"].start()
    all_nodes.heal()
    all_nodes.run(8.0)

    assert ["a"] == all_nodes.holders("x")
    assert {"older", "newer"} == all_nodes.nodes["a"].host.kept["x"]
    assert 0 == unasked(all_nodes)


def test_site_that_comes_back_later_is_asked() -> None:
    """Another site has been back before, and knew nobody of the client."""
    all_nodes = site(sites=SITES)
    subscribe(all_nodes, connect(all_nodes, "b"), "older")
    lose_root(all_nodes)
    for name in "bc":
        all_nodes.nodes[name].kill()
    subscribe(all_nodes, connect(all_nodes, "a"), "newer")
    all_nodes.heal()
    all_nodes.run(5.0)
    assert "north" in all_nodes.nodes["a"].directory.members.sites()
    for name in "bc":
        all_nodes.nodes[name].start()
    all_nodes.run(8.0)

    assert ["a"] == all_nodes.holders("x")
    assert {"older", "newer"} == all_nodes.nodes["a"].host.kept["x"]


def test_some_sessions_at_a_time_are_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root may have very many sessions when the first other site joins; each is asked about."""
    monkeypatch.setattr(root_merge, "AT_ONCE", 3)
    all_nodes = site(sites=SITES)
    names = [f"id{number}" for number in range(20)]
    for name in names:
        subscribe(all_nodes, connect(all_nodes, "b", name), "older")
    lose_root(all_nodes)
    for name in names:
        subscribe(all_nodes, connect(all_nodes, "a", name), "newer")
    all_nodes.heal()
    most = 0
    for _ in range(200):
        all_nodes.run(0.2)
        most = max(most, unasked(all_nodes))

    kept = all_nodes.nodes["a"].host.kept
    assert {frozenset(kept[name]) for name in names} == {frozenset(("older", "newer"))}
    assert 0 < most <= 2 * 3


def test_member_that_changes_its_site_again_and_again_fills_no_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sites that have members are remembered; also a site that goes while it is asked leaves."""
    monkeypatch.setattr(root_merge, "LIMIT", 5)
    monkeypatch.setattr(root_merge, "AT_ONCE", 1)
    all_nodes = site(sites=SITES)
    for number in range(3):
        subscribe(all_nodes, connect(all_nodes, "a", f"id{number}"), "p")
    root = all_nodes.nodes["a"].directory
    (moving,) = (member for member in root.members.all if member.name == "d")
    for number in range(20):
        moving = attrs.evolve(moving, site=f"site{number}", version=moving.version + 1)
        root.members.merge([moving])
        for _ in range(1 if number % 2 else 9):
            root.root_merge.tick()
            for client_id in root.ownership.unasked():
                owned = attrs.evolve(root.ownership.held[client_id], unasked=())
                root.ownership.store(client_id, owned)

    merge, stored = root.root_merge, dict(all_nodes.nodes["a"].store.table("sites").items())
    assert 5 == len(merge) == len(stored)
    assert {"office", "south", "site18"} <= merge._met.keys()
    root.root_merge.tick()
    assert ["site19"] == list(merge._left)


def test_sites_that_a_root_has_met_are_not_asked_again() -> None:
    """After a start, and where an earlier version has written the folder."""
    all_nodes = site(sites=SITES)
    connect(all_nodes, "a")
    root = all_nodes.nodes["a"]
    for is_old in (False, True):
        root.kill()
        if is_old:
            for key, _ in list(root.store.table("sites").items()):
                root.store.table("sites").delete(key)
        root.start()
        for _ in range(20):
            all_nodes.run(0.2)
            assert 0 == unasked(all_nodes)
