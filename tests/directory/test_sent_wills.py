"""Wills that were published for nodes that were away."""

from __future__ import annotations

import pytest

from tests.support.keeping import MemoryTable
from txbroker.directory import client_wills
from txbroker.directory.client_wills import SentWills
from txbroker.directory.requests import WillSent


def test_beyond_the_limit_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory and on the disk."""
    monkeypatch.setattr(client_wills, "SENT_LIMIT", 2)
    table = MemoryTable()
    sent = SentWills(table)
    for number, client_id in enumerate(("x", "y", "z"), 1):
        sent.add("a", WillSent(client_id=client_id, life=1, number=number))

    assert ["y", "z"] == [will.client_id for will in sent.of("a")]
    assert ["y", "z"] == [will.client_id for will in SentWills(table).of("a")]
