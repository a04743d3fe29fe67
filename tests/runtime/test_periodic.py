"""What is done again and again."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from twisted.internet.task import Clock

from txbroker.model.errors import StoreError
from txbroker.runtime.periodic import BEAT, PeriodicTasks
from txbroker.runtime.structured_log import configure


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
    heart = PeriodicTasks(clock)
    heart.every(1.0, work)
    heart.start()
    clock.pump([BEAT] * 3)
    assert [0.0, 1.0, 2.0, 3.0] == done
    heart.stop()
    clock.advance(100.0)
    assert 4 == len(done)

    events = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert ["work.deferred", "timer.failed"] == [event["event"] for event in events]
    assert "no file" == events[0]["reason"] and "KeyError" in events[1]["traceback"]


def test_all_that_is_due_is_done_at_one_moment() -> None:
    """In the order in which it was said; nothing wakes the node in between."""
    done: list[tuple[float, str]] = []
    clock = Clock()
    heart = PeriodicTasks(clock)
    for beats, name in ((2, "a"), (1, "b"), (4, "c")):
        heart.every(beats * BEAT, lambda name=name: done.append((clock.seconds() / BEAT, name)))
    heart.start()
    clock.pump([BEAT] * 4)

    assert ["abc", "b", "ab", "b", "abc"] == [
        "".join(name for at, name in done if at == beat) for beat in range(5)
    ]
    assert 1 == len(clock.getDelayedCalls())


STEPPED = """
import time

real, ahead = time.time, 0.0
time.time = lambda: real() + ahead

from twisted.internet import asyncioreactor
asyncioreactor.install()
from twisted.internet import reactor
from txbroker.runtime.periodic import use_monotonic_clock

order = []
reactor.callLater(9.0, order.append, "cancelled").cancel()
reactor.callLater(0.2, order.append, "before")
use_monotonic_clock(reactor)
use_monotonic_clock(reactor)
reactor.callLater(0.1, order.append, "after")
begun = time.monotonic()
reactor.callLater(0.3, reactor.stop)
ahead = {step}
reactor.run()
assert order == ["after", "before"], order
assert 0.3 <= time.monotonic() - begun < 30.0, time.monotonic() - begun
assert reactor.seconds() <= time.monotonic()
"""


@pytest.mark.parametrize("step", [-60, 120])
def test_reactor_does_not_know_the_time_of_day(step: int) -> None:
    """Calls that were due before come in their time, too, a cancelled one among them."""
    command = [sys.executable, "-c", STEPPED.format(step=step)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60.0)

    assert (0, "") == (done.returncode, done.stderr)
