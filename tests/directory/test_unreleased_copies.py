"""A copy that its holder may not have released is opened by nobody, whatever began beside it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.directory.scenarios import connect, site, subscribe
from tests.support.site import Node, Site
from txbroker.directory.requests import Busy, Discard, Release, Released

FREEZE = 12.0
"""Seconds: more than a holder waits for one that has a copy."""


def begun_beside_a_copy(*, is_released: bool) -> Site:
    """
    `b` has the session, and cannot be asked whether `c` may open its copy.

    So the client began a new one at `c`, with a piece of its own, and left.
    """
    whole = site(is_fresh=True, roaming_wait=0.5)
    connection = connect(whole, "b")
    subscribe(whole, connection, "old")
    connection.lost(is_will_due=False)
    send = whole.send

    def lose(source: Node, target: str, request: Any, answered: Any) -> None:
        if isinstance(request, Release):
            if is_released:
                reply = whole.nodes[target].directory.handle(source.name, request)
                assert isinstance(reply, Released)
                whole.nodes[target].store.end_turn()
            whole.isolate("b")
        send(source, target, request, answered)

    whole.send = lose  # type: ignore[method-assign]
    begun = connect(whole, "c")
    whole.send = send  # type: ignore[method-assign]
    assert begun.present is False and "x" in whole.nodes["c"].directory.ownership.arriving
    subscribe(whole, begun, "new")
    begun.lost(is_will_due=False)
    whole.run(1.0)
    return whole


@pytest.mark.parametrize("is_released", [False, True])
def test_session_begun_beside_a_copy_moves_without_it(is_released: bool) -> None:
    """What waits in the session would come twice: from the copy, and where the session still is."""
    whole = begun_beside_a_copy(is_released=is_released)
    moved = connect(whole, "d")
    content = set(moved.content)
    whole.run(FREEZE)
    here = connect(whole, "b") if not is_released else None
    whole.run(1.0)
    whole.heal()
    whole.run(30.0)
    last = connect(whole, "d")

    assert (True, {"new"}) == (moved.present, content)
    assert here is None or here.content == {"old"}
    assert {"old", "new"} == last.content
    assert ["d"] == whole.holders("x")


def test_copy_that_was_released_counts_above_the_session_that_began_beside_it() -> None:
    """The taker of that session has not asked for it yet; a start would drop the copy."""
    whole = begun_beside_a_copy(is_released=True)
    assert connect(whole, "d").present
    whole.nodes["c"].directory.ownership.check()
    gone = whole.nodes["c"].directory.ownership.tombstone("x")
    whole.heal()
    whole.cut("c", "d")
    whole.run_until(lambda: whole.holders("x") == ["c", "d"])
    whole.nodes["c"].kill(3)
    whole.nodes["c"].start()
    again = whole.holders("x")
    whole.heal()
    whole.run(30.0)

    assert gone is not None and not gone.confirmed
    assert ["c", "d"] == again
    assert {"old", "new"} == connect(whole, "d").content


def test_late_discard_opens_no_copy() -> None:
    """The session that began beside the copy is newer, and would be kept with it."""
    whole = begun_beside_a_copy(is_released=False)
    taker = whole.nodes["c"]
    incarnation = taker.directory.ownership.held["x"].incarnation
    late = Discard(client_id="x", incarnation=incarnation, age=60_000)
    reply = taker.directory.handle("d", late)

    assert (Busy(), {"new"}) == (reply, taker.host.kept["x"])


@pytest.mark.parametrize("is_released", [False, True])
def test_clean_session_ends_both(is_released: bool) -> None:
    """The copy, too, whose holder cannot be asked yet."""
    whole = begun_beside_a_copy(is_released=is_released)
    clean = connect(whole, "d", clean=True)
    clean.lost(is_will_due=False)
    whole.run(FREEZE)
    whole.heal()
    whole.run(60.0)

    assert clean.present is False
    assert [] == whole.holders("x")
    assert not any(node.directory.ownership.arriving for node in whole.nodes.values())
