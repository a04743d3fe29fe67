"""What the cores report is logged, but not a line for each of thousands of a client's filters."""

from __future__ import annotations

from typing import Any

import pytest

from txbroker.node import edge_role
from txbroker.node.edge_role import EventLog
from txbroker.runtime.structured_log import AT_ONCE


class Lines:
    """A log."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, name: str, **fields: Any) -> None:
        """One line."""
        self.lines.append((name, fields))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What is logged."""
    log = Lines()
    monkeypatch.setattr(edge_role, "log", log)
    return log.lines


@pytest.mark.parametrize("name", sorted(edge_role.KINDS))
def test_few_lines_of_a_kind_are_logged(name: str, lines: list[tuple[str, dict[str, Any]]]) -> None:
    field = edge_role.KINDS[name]
    for kind in (f"{name} one", f"{name} two"):
        for number in range(AT_ONCE + 5):
            EventLog().event(name, **{field: kind, "filter": f"{number}"})
    assert len(lines) == 2 * AT_ONCE
    assert lines[0] == (name, {field: f"{name} one", "filter": "0"})


def test_all_lines_of_others_are_logged(lines: list[tuple[str, dict[str, Any]]]) -> None:
    for _ in range(AT_ONCE + 5):
        EventLog().event("zone.reachable", zone="x")
    assert len(lines) == AT_ONCE + 5
