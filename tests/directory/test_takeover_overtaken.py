"""A move that is under way when its client begins a clean session at the same node is void."""

from __future__ import annotations

from typing import Any

import pytest

from tests.directory.scenarios import connect, id_kept_by
from tests.support.site import Node, Site
from txbroker.directory.requests import Supersede, Take

SLOW = 0.9
"""Seconds until the answer comes with the session: below a call's time."""

A_WHILE = 60.0
"""Seconds: more than a pending discard takes."""


@pytest.mark.parametrize("stays", [True, False])
def test_session_that_comes_after_a_clean_one_began_does_not_stay(stays: bool) -> None:
    """The clean session waited for the other search as long as it may, and was answered."""
    four = Site("abcd", 1, roaming_wait=0.3)
    four.start(4)
    four.run(3.0)
    client_id = id_kept_by(four, but_not="b")
    connect(four, "b", client_id).lost(is_will_due=False)
    four.run(1.0)
    send = four.send

    def slow(source: Node, target: str, request: Any, answered: Any) -> None:
        if isinstance(request, Supersede) and four.now < until:
            return  # the holder is too busy to hear of the clean session
        wait = SLOW if isinstance(request, Take) else 0.0
        send(source, target, request, lambda reply: four.after(wait, lambda: answered(reply)))

    until = four.now + 3.0
    four.send = slow  # type: ignore[method-assign]
    left = four.nodes["a"].connect(client_id)
    four.run(0.15)
    left.lost(is_will_due=False)
    clean = connect(four, "a", client_id, clean=True)
    assert clean.present is False
    if not stays:
        clean.lost(is_will_due=False)
    four.run(A_WHILE)

    assert [] == four.holders(client_id)
    assert clean.is_open == stays
