"""A node that is all there is begins a session at once, as the steps would have had it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.edge_bench import EdgeBench
from tests.support.roaming import Alone
from txbroker.directory.arrival import Arrivals, Arrived
from txbroker.directory.directory import Directory
from txbroker.directory.entry import Entry
from txbroker.directory.holdings import Tombstone
from txbroker.directory.members import Member
from txbroker.directory.requests import OtherView, Taken
from txbroker.directory.steps import Ask, Procedure

STEPS = 40
"""After so many it has not begun."""


def entry(node: str, incarnation: int, *, persistent: bool = True) -> Entry:
    """An entry for the id that the tests are about."""
    replaces = 0 if persistent else incarnation
    return Entry(
        client_id="c",
        node=node,
        incarnation=incarnation,
        persistent=persistent,
        replaces=replaces,
    )


def member(name: str, site: str = "") -> Member:
    return Member(name=name, grpc="127.0.0.1:9", site=site, version=1)


def clean(directory: Directory) -> None:
    directory.registrar.set(entry(directory.members.name, 3, persistent=False))


def ended(directory: Directory) -> None:
    directory.keeper.entries.put(entry(directory.members.name, 5))
    directory.keeper.entries.end("c", directory.members.name, 5)


def removed(directory: Directory) -> None:
    """A node that is gone by command had a clean session of the id, above one that was here."""
    directory.members.merge([member("other")])
    directory.keeper.entries.put(entry(directory.members.name, 2))
    directory.keeper.entries.put(entry("other", 4, persistent=False))
    directory.members.remove("other")


def kept_elsewhere(directory: Directory) -> None:
    directory.members.merge([member("other")])
    directory.keeper.entries.put(entry("other", 4))
    directory.members.remove("other")


def unopened(directory: Directory) -> None:
    directory.keeper.entries.put(entry(directory.members.name, 5))


def another_site(directory: Directory) -> None:
    directory.members.merge([member("far", "south")])


def another_node(directory: Directory) -> None:
    directory.members.merge([member("other")])


def busy(directory: Directory) -> None:
    directory.arrivals.busy.add("c")


def arriving(directory: Directory) -> None:
    taken = Taken(incarnation=4, token=b"token", state=b"")
    directory.holdings.arrive("c", "other", taken)


def gone(directory: Directory) -> None:
    directory.holdings._bury("c", (Tombstone(node="other", token=b"token", incarnation=4),))


def full(directory: Directory) -> None:
    directory.keeper.entries._limit = 0


def node(prepare: Callable[[Directory], None]) -> Directory:
    """It is alone, and knows of the id what `prepare` makes it know."""
    bench = EdgeBench()
    directory = Alone(bench.edge, bench.clock.now).directory
    prepare(directory)
    return directory


def run(directory: Directory) -> tuple[object, int]:
    """What the CONNECT comes to, None where that takes too long; and how many steps there were."""
    procedure: Procedure[Any] = directory.arrive("c", lambda: True)
    for count in range(STEPS):
        try:
            step = next(procedure)
        except StopIteration as stop:
            return stop.value, count
        for name, request in step.calls if isinstance(step, Ask) else ():
            answer = None
            if name == directory.members.name:
                answer = directory.handle(name, request)
            if step.take(name, None if isinstance(answer, OtherView) else answer):
                break
    return None, STEPS


def known(directory: Directory) -> tuple[object, ...]:
    """What it knows and keeps."""
    entries, holdings = directory.keeper.entries, directory.holdings
    return (
        dict(entries._table.items()),
        dict(holdings._held_table.items()),
        directory.registrar.own,
        entries.get("c"),
        entries.generation("c"),
        entries.losers(),
    )


@pytest.mark.parametrize("prepare", [lambda _: None, clean, ended, removed, kept_elsewhere])
def test_it_asks_nobody_and_knows_the_same(
    prepare: Callable[[Directory], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step is needed; with them, all would be as it is."""
    at_once = node(prepare)
    outcome, count = run(at_once)
    monkeypatch.setattr(Arrivals, "_begin_alone", lambda self, search: None)
    with_steps = node(prepare)

    assert (Arrived(present=False), 0) == (outcome, count)
    assert outcome == run(with_steps)[0]
    assert known(with_steps) == known(at_once)


@pytest.mark.parametrize(
    "prepare",
    [unopened, another_site, another_node, busy, arriving, gone, full],
    ids=lambda f: f.__name__,
)
def test_it_takes_the_steps_where_somebody_may_know_more(
    prepare: Callable[[Directory], None],
) -> None:
    """Another node, or something that is under way here, or too much is kept."""
    directory = node(prepare)
    procedure = directory.arrive("c", lambda: True)
    next(procedure)
    procedure.close()

    assert "c" not in directory.holdings.held


def test_it_begins_nothing_for_a_client_that_is_gone() -> None:
    """Nobody would be told."""
    directory = node(lambda _: None)
    with pytest.raises(StopIteration):
        next(directory.arrive("c", lambda: False))

    assert "c" not in directory.holdings.held


def test_an_entry_that_says_what_is_known_is_not_written_again() -> None:
    """Each session says so more than once as it begins."""
    directory = node(unopened)
    table = directory.keeper.entries._table
    before = dict(table.items())
    table.values.clear()  # type: ignore[attr-defined]
    verdict = directory.keeper.entries.put(entry(directory.members.name, 5))
    again = dict(table.items())
    directory.keeper.entries.put(entry(directory.members.name, 6))

    assert (None, {}) == (verdict, again)
    assert before.keys() == dict(table.items()).keys()
