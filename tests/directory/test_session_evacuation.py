"""A node that goes for good gives its kept sessions to another one, in a site in memory."""

from __future__ import annotations

from tests.directory.scenarios import connect, site, subscribe
from tests.support.site import Site

IDS = [f"id{number}" for number in range(70)]


def with_sessions_at(name: str) -> Site:
    """A site in which that node has the sessions of `IDS`, their clients away."""
    made = site(roaming_wait=0.5)
    for client_id in IDS:
        connection = connect(made, name, client_id)
        subscribe(made, connection, f"piece of {client_id}")
        connection.lost(is_will_due=False)
    return made


def leave(made: Site, name: str, heir: str) -> list[str]:
    """Have the node leave; its answer, once there is one."""
    node = made.nodes[name]
    outcome: list[str] = []
    node.run(node.directory.evacuate(heir, lambda: True), outcome.append)
    return outcome


def test_all_sessions_are_at_the_heir_and_found() -> None:
    """Though the node and all that it kept is gone, also of others' entries."""
    made = with_sessions_at("d")
    connect(made, "b", "other")
    outcome = leave(made, "d", "a")
    made.run_until(lambda: bool(outcome))
    made.nodes["a"].directory.members.remove("d")
    made.nodes["d"].kill()
    made.run(5.0)

    assert [""] == outcome
    assert set(IDS) <= made.nodes["a"].host.kept.keys()
    for client_id in IDS[:10]:
        again = connect(made, "c", client_id)
        assert again.present and again.content == {f"piece of {client_id}"}
    assert connect(made, "c", "other").present
    assert connect(made, "c", "new").present is False


def test_a_node_whose_heir_is_away_says_what_is_left() -> None:
    """And has it still."""
    made = with_sessions_at("d")
    made.cut("a", "d")
    outcome = leave(made, "d", "a")
    made.run(30.0)

    reason = "cannot be given to node 'a'; it may have no room (`limits.sessions`)"
    assert [f"session 'id0' and 69 more {reason}"] == outcome
    assert set(IDS) == made.nodes["d"].host.kept.keys()


def test_a_node_that_stays_after_all_keeps_the_rest() -> None:
    """What has gone by then is at the heir."""
    made = with_sessions_at("d")
    node = made.nodes["d"]
    outcome: list[str] = []
    wanted = [True]
    node.run(node.directory.evacuate("a", lambda: wanted[0]), outcome.append)
    made.run_until(lambda: bool(made.nodes["a"].host.kept))
    wanted[0] = False
    made.run(20.0)

    assert [""] == outcome
    assert made.nodes["d"].host.kept
    for client_id in IDS:
        assert connect(made, "c", client_id).present
