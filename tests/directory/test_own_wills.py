"""Wills of the clients that are connected here."""

from __future__ import annotations

import pytest

from tests.support.keeping import MemoryTable
from txbroker.directory import client_wills
from txbroker.directory.client_wills import OwnWills
from txbroker.mqtt.wire.packets import Will


def will(size: int) -> Will:
    return Will(topic="topic", payload=bytes(size), qos=0, retain=False)


def test_large_wills_have_room_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger would fill the memory with them; a small one always fits."""
    monkeypatch.setattr(client_wills, "MOST_BYTES", 100)
    monkeypatch.setattr(client_wills, "SMALL", 10)
    table = MemoryTable()
    wills = OwnWills(table, 1)
    first = wills.store("a", will(45))
    assert wills.has_room(will(45)) and not wills.has_room(will(46))
    wills.store("a", will(40))
    wills.store("b", will(45))
    assert wills.has_room(will(5)) and not wills.has_room(will(6))
    assert not OwnWills(table, 2).has_room(will(6))

    wills.forget("a", first)  # an earlier one
    assert not wills.has_room(will(6))
    wills.forget("a")
    wills.forget("a")
    assert wills.has_room(will(45)) and not wills.has_room(will(46))
