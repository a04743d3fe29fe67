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
