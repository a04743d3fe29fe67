"""What is done again and again."""

from __future__ import annotations

import json

import pytest
from twisted.internet.task import Clock

from txbroker.alarms import Periodic
from txbroker.errors import StoreError
from txbroker.telemetry import configure


def test_an_error_puts_it_off_until_the_next_time(capfd: pytest.CaptureFixture[str]) -> None:
    """A node without a file to open now would do nothing of the kind ever again."""
    outcomes: list[Exception | None] = [None, StoreError("no file"), KeyError("x"), None, None]
    done: list[float] = []
    clock = Clock()

    def work() -> None:
        outcome = outcomes[len(done)]
        done.append(clock.seconds())
        if outcome is not None:
            raise outcome

    configure("here")
    periodic = Periodic(clock, work)
    periodic.start(10.0)
    clock.pump([10.0, 10.0, 10.0])
    assert [0.0, 10.0, 20.0, 30.0] == done
    periodic.stop()
    clock.advance(100.0)
    assert 4 == len(done)

    events = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert ["work.put_off", "timer.failed"] == [event["event"] for event in events]
    assert "no file" == events[0]["reason"] and "KeyError" in events[1]["traceback"]
