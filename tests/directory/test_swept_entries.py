"""What a keeper was told is swept: a lost end leaves no entry for longer than a minute."""

from __future__ import annotations

import pytest

from tests.directory.test_site import connect
from tests.support.site import Site
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.requests import Supersede

A_MINUTE = 65.0
"""Seconds: two looks and the answer."""


def entry_of(node: str, incarnation: int) -> DirectoryEntry:
    return DirectoryEntry(client_id="x", node=node, incarnation=incarnation, persistent=True)


def three() -> Site:
    site = Site("abc", 1)
    site.start(3)
    site.run(3.0)
    return site


@pytest.mark.parametrize("keeper", ["b", "c"])
def test_entry_whose_end_was_lost_is_found_within_a_minute(keeper: str) -> None:
    """At another node, or at the node that had the session."""
    site = three()
    entries = site.nodes[keeper].directory.replica.entries
    entries.store(entry_of("b", 5))
    site.run(A_MINUTE)

    assert entries.get("x") is None


def test_entry_of_a_session_stays() -> None:
    """However often its node is asked."""
    site = three()
    connect(site, "b")
    site.run(3 * A_MINUTE)

    keepers = [node.directory.replica.entries for node in site.nodes.values()]
    assert [entry_of("b", 1)] * 3 == [entries.get("x") for entries in keepers]
    assert not any(entries.nodes_of_hearsay() for entries in keepers)


def test_session_that_moved_is_not_denied_before_the_move_is_known() -> None:
    """The keeper would know of no session at all, and a clean one would begin beside it."""
    directory = three().nodes["b"].directory
    directory.replicator.gone["x"] = entry_of("c", 3)
    moved = directory.conflicts.superseded(Supersede(entries=(entry_of("b", 2),)))
    ended = directory.conflicts.superseded(Supersede(entries=(entry_of("b", 4),)))

    assert (("x",), ()) == (moved.client_ids, moved.denied)
    assert (("x",), ("x",)) == (ended.client_ids, ended.denied)
