"""A node that a session left is asked for it later, also where its taker is lost meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from tests.directory.scenarios import connect, id_kept_by, site
from tests.support.site import Site
from txbroker.directory.move_sweep import EVERY
from txbroker.directory.requests import AskPendingPublishes

SWEEPS = 4 * EVERY
"""Seconds in which every move is examined more than once."""


def lose_taker(whole: Site, *, goes_on: bool) -> list[bytes]:
    """
    The session moves from b to c, and on to d, which does not reach b; c is lost and forgotten.

    The result gets the moves of which b forgets what they left.
    """
    client_id = id_kept_by(whole, but_not="c")
    given = whole.nodes["b"]
    forgotten: list[bytes] = []

    def resolved(client_id: str, token: bytes) -> None:
        forgotten.append(token)

    given.host.resolved = resolved  # type: ignore[method-assign]
    connect(whole, "b", client_id).lost(is_will_due=False)
    whole.run(1.0)
    moving = whole.nodes["c"].connect(client_id)
    whole.run_until(lambda: given.directory.ownership.tombstone(client_id) is not None)
    given_to = given.directory.ownership.tombstone(client_id)
    assert given_to is not None and not given_to.confirmed
    if goes_on:
        # c has the session when b has answered, and asks b about publishes a tick later.
        whole.run_until(lambda: whole.holders(client_id) == ["c"])
    whole.cut("b", "c")
    whole.cut("b", "d")
    moving.lost(is_will_due=False)
    if goes_on:
        assert connect(whole, "d", client_id).present
    whole.nodes["c"].kill()
    whole.nodes["a"].directory.members.remove("c")
    return forgotten


def asked(whole: Site, source: str) -> list[Any]:
    return [
        request
        for name, target, request in whole.calls
        if (name, target) == (source, "b") and isinstance(request, AskPendingPublishes)
    ]


def test_what_a_move_left_stays_until_the_holder_has_asked() -> None:
    """The holder needs the ends of open publishes, and the records that it waits for."""
    whole = site()
    forgotten = lose_taker(whole, goes_on=True)
    whole.run(SWEEPS)
    before = list(forgotten)
    whole.heal()
    whole.run(5.0)

    assert [] == before
    assert asked(whole, "d") and {asked(whole, "d")[0].token} == set(forgotten)
    assert () == whole.nodes["b"].directory.ownership.tombstone_ids


@pytest.mark.parametrize("begins_anew", [False, True])
def test_what_a_move_left_goes_with_a_session_that_was_lost(begins_anew: bool) -> None:
    """A session that begins anew elsewhere does not ask for it."""
    whole = site()
    forgotten = lose_taker(whole, goes_on=False)
    whole.heal()
    whole.run(1.0)
    (client_id,) = whole.nodes["b"].directory.ownership.tombstone_ids
    if begins_anew:
        assert connect(whole, "d", client_id).present is False
    whole.run(SWEEPS)

    assert 1 == len(set(forgotten))
    assert () == whole.nodes["b"].directory.ownership.tombstone_ids
