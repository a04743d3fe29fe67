"""Claims of kept sessions that do not stand: a clean session or a late end counts above them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.directory.scenarios import connect, id_kept_by, site
from tests.support.site import Node, Site
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.requests import Claim, Lookup

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


def test_claim_that_was_denied_is_not_repeated() -> None:
    """The keepers ask between two claims. What is denied again ends no session that began since."""
    four = site()
    client_id = id_kept_by(four, but_not="a")
    books = [four.nodes[name].directory.replica.entries for name in "bcd"]
    send, claimed = four.send, []

    def unheard(source: Node, target: str, request: Any, answered: Any) -> None:
        if isinstance(request, Claim):
            claimed.append(request.entry)
            if request.entry is claimed[0]:
                send(source, target, request, lambda reply: None)
                return
        elif isinstance(request, Lookup) and claimed:
            for book in books:
                book.deny(claimed[0])
        send(source, target, request, answered)

    four.send = unheard  # type: ignore[method-assign]
    connection = connect(four, "a", client_id)
    for book in books:
        book.deny(claimed[0])
    known = [book.get(client_id) for book in books]

    assert (False, [claimed[-1]] * 3) == (connection.present, known)


def test_claim_counts_above_an_end_that_may_be_sent_again() -> None:
    """The keepers have forgotten the earlier claim, and answer that no session was ever there."""
    three = Site("abc", 1)
    three.start(3)
    three.run(3.0)
    three.isolate("a")
    replicator = three.nodes["a"].directory.replicator
    replicator.withdraw("x", 4)
    three.run(0.5)
    three.heal()
    connect(three, "a")

    assert {5} == {
        owned.incarnation for owned in three.nodes["a"].directory.ownership.held.values()
    }
