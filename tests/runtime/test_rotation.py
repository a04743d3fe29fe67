"""Queues of several sources that take turns."""

from __future__ import annotations

import pytest

from txbroker.runtime.rotation import Rotation


def test_sources_take_turns() -> None:
    """Whoever comes late of another source comes before the rest of a crowd, each in its order."""
    rotation: Rotation[str, str] = Rotation()
    for one in ("a1", "a2", "a3"):
        rotation.add("a", one)
    first = rotation.next()
    rotation.add("b", "b1")
    assert 3 == len(rotation)
    assert ["a1", "a2", "b1", "a3"] == [first, *(rotation.next() for _ in range(len(rotation)))]
    assert not rotation
    with pytest.raises(KeyError):
        rotation.next()


def test_the_newest_of_the_largest_crowd_is_dropped() -> None:
    rotation: Rotation[str, str] = Rotation()
    for one in ("a1", "b1", "b2", "b3", "c1"):
        rotation.add(one[0], one)
    assert ["b3", "b2"] == [rotation.drop_newest(), rotation.drop_newest()]
    assert 3 == len(rotation)
    assert {"a1", "b1", "c1"} == {rotation.next() for _ in range(3)}
    rotation.add("a", "a2")
    assert "a2" == rotation.drop_newest()
    assert not rotation
    with pytest.raises(ValueError):
        rotation.drop_newest()
