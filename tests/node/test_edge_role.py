"""What the edge role does once a second for the delivery ledger."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.support.edge_bench import Client, EdgeBench
from tests.support.recorders import LedgerRecorder
from txbroker.edge.sessions.ledger_writer import STATED_AT_ONCE
from txbroker.node.edge_role import EdgeRole


class Ledger:
    """A ledger that is due until somebody has stated all."""

    def __init__(self) -> None:
        self.is_due = True

    def state(self) -> None:
        self.is_due = False


def test_what_holds_is_stated_when_it_is_due_and_to_its_end() -> None:
    """Each second anew, the rows would fill the disk; half of it, and an audit sees losses."""
    recorder = LedgerRecorder()
    bench = EdgeBench(ledger=recorder)
    bench.online("", offset=5)
    for number in range(STATED_AT_ONCE + 1):
        client = Client(bench, f"c{number}", clean=False)
        client.subscribe("x")
        bench.answer("", "x")
    bench.settle()
    ledger = Ledger()
    role = cast(
        Any,
        SimpleNamespace(
            edge=bench.edge,
            _node_base=SimpleNamespace(data_directory=SimpleNamespace(ledger=ledger)),
        ),
    )
    stated = []
    for _ in range(4):
        recorder.take()
        EdgeRole.record(role, ())
        stated.append((len(recorder.take()), ledger.is_due))

    assert [(STATED_AT_ONCE, True), (1, False), (0, False), (0, False)] == stated
