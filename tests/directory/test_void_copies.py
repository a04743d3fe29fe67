"""Copies that no node opens: what the keepers kept for their sake ends with them."""

from __future__ import annotations

import pytest

from tests.directory.scenarios import connect, site
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.requests import Taken


@pytest.mark.parametrize("is_overtaken", [False, True])
def test_entry_that_a_void_copy_kept_ends_with_it(is_overtaken: bool) -> None:
    """
    A list names the ids of copies that are on their way, and lets stand what the keeper knows.

    A keeper that was cut off may know an earlier session of the node, whose end it never heard.
    """
    whole = site("abc")
    book, taker = whole.nodes["c"].directory.replica.entries, whole.nodes["b"].directory
    earlier = DirectoryEntry(client_id="x", node="b", incarnation=2, persistent=True)
    book.store(earlier)
    whole.cut("a", "b")
    copy = Taken(incarnation=4, token=b"not given", state=b"[]")
    taker.ownership.store_copy("x", "a", copy)
    taker.replicator._peers["c"].start_over()
    whole.run(2.0)
    assert earlier == book.get("x")
    if is_overtaken:
        connect(whole, "b", clean=True).lost(is_will_due=False)
    whole.heal()
    whole.run(10.0)

    assert book.get("x") is None
    assert not taker.ownership.arriving
