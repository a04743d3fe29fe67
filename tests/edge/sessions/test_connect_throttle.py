"""Who comes in at once, and who waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.clock import Clock
from tests.support.connects import Patient
from txbroker.directory.effects import Procedure
from txbroker.edge.sessions.connect_procedure import LookUp
from txbroker.edge.sessions.connect_throttle import AT_ONCE, MOST_LEFT, PATIENCE, ConnectThrottle
from txbroker.runtime.fair_shares import CROWD


class Runner:
    """Ends procedures when it is told to."""

    def __init__(self) -> None:
        self.running: list[tuple[Any, Callable[[Any], object]]] = []

    def run(
        self, procedure: Procedure[Any], finished: Callable[[Any], object] = lambda _: None
    ) -> None:
        self.running.append((procedure, finished))

    def end(self, count: int = 1) -> None:
        for _ in range(count):
            name, finished = self.running.pop(0)
            finished(name)

    @property
    def names(self) -> list[Any]:
        return [name for name, _ in self.running]


class Bench:
    """Procedures are their names; `gone` do not wait any more."""

    def __init__(self) -> None:
        self.clock, self.runner = Clock(), Runner()
        self.doorway = ConnectThrottle(self.runner, self.clock)
        self.gone: set[Any] = set()
        self.found: list[Any] = []
        self.dropped: list[Any] = []
        self.looked_at = 0

    def come(self, *names: Any, source: str = "") -> None:
        for name in names:
            self._come(name, source)

    def pass_turns(self, count: int = 1_000) -> None:
        """Do what is due at once, in so many turns."""
        for _ in range(count):
            due = [alarm for alarm in self.clock.alarms if alarm.due <= self.clock.now()]
            for alarm in due:
                alarm.cancel()
                alarm.action()

    def _come(self, name: Any, source: str) -> None:
        look_up = LookUp(make=lambda: name, client=Waiter(self, name, source), is_clean=False)
        self.doorway.admit(look_up, self.found.append, lambda: self.dropped.append(name))


class Waiter(Patient):
    """A client of the bench."""

    def __init__(self, bench: Bench, name: Any, source: str) -> None:
        self._bench, self._name, self._source = bench, name, source

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        return self._name not in self._bench.gone

    def drop_if_gone(self) -> bool:
        self._bench.looked_at += 1
        self._bench.gone.update({"left"} & {self._name})
        return not self.is_open

    def host(self) -> str:
        return self._source


def test_few_are_looked_for_at_once_in_their_order() -> None:
    bench = Bench()
    bench.come(*range(AT_ONCE + 5))
    assert list(range(AT_ONCE)) == bench.runner.names
    bench.runner.end(3)
    assert [0, 1, 2] == bench.found
    assert list(range(3, AT_ONCE + 3)) == bench.runner.names
    bench.runner.end(AT_ONCE + 2)
    assert list(range(AT_ONCE + 5)) == bench.found
    bench.come("next")
    assert ["next"] == bench.runner.names and not bench.clock.alarms


def test_whoever_comes_from_elsewhere_waits_for_no_crowd() -> None:
    """Sources take turns; of one of them the first comes first."""
    bench = Bench()
    bench.come(*range(AT_ONCE + 5))
    bench.come("a", "b", source="other")
    bench.come("c", source="third")
    bench.runner.end(6)
    expected = [AT_ONCE, "a", "c", AT_ONCE + 1, "b", AT_ONCE + 2]
    assert expected == bench.runner.names[-6:]
    bench.runner.end(AT_ONCE)
    assert [AT_ONCE + 3, AT_ONCE + 4] == bench.runner.names[-2:]
    bench.runner.end(2)
    assert AT_ONCE + 8 == len(bench.found) and not bench.clock.alarms


def test_who_has_left_is_not_looked_for() -> None:
    """A storm of clients that leave at once holds up nobody who stays."""
    bench = Bench()
    bench.come(*range(AT_ONCE), *("gone",) * 1_000, *range(CROWD))
    bench.gone.add("gone")
    bench.runner.end()
    bench.pass_turns()
    assert [AT_ONCE - 1, 0] == bench.runner.names[-2:] and bench.looked_at == 1_000
    assert ["gone"] * 1_000 == bench.dropped
    bench = Bench()
    bench.come(*range(AT_ONCE), *("left",) * 1_000, *range(CROWD))
    bench.runner.end()
    bench.pass_turns()
    assert [AT_ONCE - 1, 0] == bench.runner.names[-2:] and len(bench.runner.names) == AT_ONCE


def test_a_crowd_that_has_left_is_dropped_in_many_turns() -> None:
    """The node was deaf for a tenth of a second."""
    bench = Bench()
    bench.come(*range(AT_ONCE), *("left",) * (3 * MOST_LEFT), *range(CROWD))
    bench.runner.end(5)
    assert len(bench.dropped) == MOST_LEFT
    bench.pass_turns(1)
    assert len(bench.dropped) == 2 * MOST_LEFT
    bench.come("later", source="other")
    assert len(bench.dropped) == 2 * MOST_LEFT
    bench.pass_turns()
    assert len(bench.dropped) == 3 * MOST_LEFT
    assert "later" in bench.runner.names and len(bench.runner.names) == AT_ONCE


def test_what_ends_at_once_is_no_deep_matter() -> None:
    bench = Bench()
    bench.come(*range(AT_ONCE + 5_000))
    bench.runner.run = lambda procedure, finished: finished(procedure)  # type: ignore
    bench.runner.end()
    assert [0, *range(AT_ONCE, AT_ONCE + 5_000)] == bench.found


def test_those_who_find_nobody_to_ask_hold_up_no_others() -> None:
    """As many more begin when none has ended for a while; the first ones' ends count no more."""
    bench = Bench()
    bench.come(*range(3 * AT_ONCE))
    bench.clock.advance(PATIENCE / 2)
    bench.runner.end()
    bench.clock.advance(PATIENCE * 0.9)
    assert AT_ONCE == len(bench.runner.names)
    bench.clock.advance(PATIENCE / 2)
    assert 2 * AT_ONCE == len(bench.runner.names)
    bench.runner.end(AT_ONCE)
    assert AT_ONCE == len(bench.runner.names)
    bench.runner.end(AT_ONCE)
    assert AT_ONCE - 1 == len(bench.runner.names)
