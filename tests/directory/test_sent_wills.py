"""Wills that were published for nodes that were away."""

from __future__ import annotations

import pytest

from tests.support.keeping import MemoryTable
from txbroker.directory import sent_wills
from txbroker.directory.requests import WillSent
from txbroker.directory.sent_wills import CHUNK, SentWills


def test_beyond_the_limit_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory and on the disk."""
    monkeypatch.setattr(sent_wills, "SENT_LIMIT", 2)
    table = MemoryTable()
    sent = SentWills(table)
    for number, client_id in enumerate(("x", "y", "z"), 1):
        sent.add("a", WillSent(client_id=client_id, life=1, number=number))

    assert ["y", "z"] == [will.client_id for will in sent.of("a")]
    assert ["y", "z"] == [will.client_id for will in SentWills(table).of("a")]


def test_a_look_costs_what_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory looks each second, for each node that is away."""
    sent = SentWills(MemoryTable())
    wills = [WillSent(client_id=f"c{number}", life=1, number=number) for number in range(3 * CHUNK)]
    for will in wills:
        sent.add(f"n{will.number % 2}", will)
    monkeypatch.setattr(sent, "_order", None)

    assert ("n0", "n1") == sent.nodes()
    assert wills[: 2 * CHUNK : 2] == list(sent.of("n0"))


def test_a_node_that_was_notified_of_all_is_asked_no_more() -> None:
    """Of a will that another one followed meanwhile it was not notified."""
    sent = SentWills(MemoryTable())
    first, second = (WillSent(client_id="x", life=1, number=number) for number in (1, 2))
    sent.add("a", first)
    sent.add("a", second)
    sent.acknowledge("a", [first])
    assert (second,) == sent.of("a")
    sent.acknowledge("a", [second])
    sent.acknowledge("b", [second])

    assert () == sent.nodes() and not len(sent)
