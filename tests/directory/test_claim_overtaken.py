"""A clean session begins elsewhere while a kept one is claimed: it counts above the claim."""

from __future__ import annotations

from typing import Any

import pytest

from tests.directory.test_site import connect
from tests.support.site import Node, Site
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.requests import Claim

CLEAN = DirectoryEntry(client_id="x", node="b", incarnation=1, persistent=False, replaces=5)


@pytest.mark.parametrize("is_fresh", [False, True])
def test_session_that_ends_as_it_begins_is_not_opened(is_fresh: bool) -> None:
    """The node keeps the clean session's entry. The search goes on, and claims above that one."""
    three = Site("abc", 1, is_fresh=is_fresh)
    three.start(3)
    three.run(3.0)
    entries = three.nodes["a"].directory.replica.entries
    send = three.send

    def overtaken(source: Node, target: str, request: Any, answered: Any) -> None:
        if isinstance(request, Claim) and request.entry.incarnation < CLEAN.replaces:
            three.after(0.0, lambda: entries.store(CLEAN))
        send(source, target, request, answered)

    three.send = overtaken  # type: ignore[method-assign]
    connection = connect(three, "a")
    three.run(5.0)

    assert (False, True) == (connection.present, connection.is_open)
    assert ["a"] == three.holders("x")
