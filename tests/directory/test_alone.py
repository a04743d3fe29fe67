"""A node that is all there is begins a session at once, as the steps would have had it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.edge_bench import EdgeBench
from tests.support.roaming import Alone
from txbroker.directory.directory import Directory
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.members import Member
from txbroker.directory.requests import Taken
from txbroker.directory.session_ownership import Tombstone
from txbroker.directory.session_takeover import SessionFound, SessionTakeovers


def entry(node: str, incarnation: int, *, persistent: bool = True) -> DirectoryEntry:
    """An entry for the id that the tests are about."""
    replaces = 0 if persistent else incarnation
    return DirectoryEntry(
        client_id="c",
        node=node,
        incarnation=incarnation,
        persistent=persistent,
        replaces=replaces,
    )


def member(name: str, site: str = "") -> Member:
    return Member(name=name, grpc="127.0.0.1:9", site=site, version=1)


def clean(directory: Directory) -> None:
    directory.replicator.set(entry(directory.members.name, 3, persistent=False))


def ended(directory: Directory) -> None:
    directory.replica.entries.store(entry(directory.members.name, 5))
    directory.replica.entries.end("c", directory.members.name, 5)


def removed(directory: Directory) -> None:
    """A node that is gone by command had a clean session of the id, above one that was here."""
    directory.members.merge([member("other")])
    directory.replica.entries.store(entry(directory.members.name, 2))
    directory.replica.entries.store(entry("other", 4, persistent=False))
    directory.members.remove("other")


def kept_elsewhere(directory: Directory) -> None:
    directory.members.merge([member("other")])
    directory.replica.entries.store(entry("other", 4))
    directory.members.remove("other")


def lost_elsewhere(directory: Directory) -> None:
    """The node that had the session was removed more than a moment ago."""
    kept_elsewhere(directory)
    directory.replica.entries.forget_node("other")


def unopened(directory: Directory) -> None:
    directory.replica.entries.store(entry(directory.members.name, 5))


def another_site(directory: Directory) -> None:
    directory.members.merge([member("far", "south")])


def another_node(directory: Directory) -> None:
    directory.members.merge([member("other")])


def busy(directory: Directory) -> None:
    directory.takeovers.busy["c"] = False


def arriving(directory: Directory) -> None:
    taken = Taken(incarnation=4, token=b"token", state=b"")
    directory.ownership.store_copy("c", "other", taken)


def gone(directory: Directory) -> None:
    directory.ownership._bury("c", (Tombstone(node="other", token=b"token", incarnation=4),))


def full(directory: Directory) -> None:
    directory.replica.entries._limit = 0


def node(prepare: Callable[[Directory], None]) -> Alone:
    """It is alone, and knows of the id what `prepare` makes it know."""
    bench = EdgeBench()
    alone = Alone(bench.edge, bench.clock.now)
    prepare(alone.directory)
    return alone


def known(directory: Directory) -> tuple[object, ...]:
    """What it knows and keeps."""
    entries, ownership = directory.replica.entries, directory.ownership
    return (
        dict(entries._table.items()),
        dict(ownership._held_table.items()),
        directory.replicator.own,
        entries.get("c"),
        entries.generation("c"),
        entries.losers(),
    )


@pytest.mark.parametrize("prepare", [lambda _: None, clean, ended, removed, lost_elsewhere])
def test_it_asks_nobody_and_knows_the_same(
    prepare: Callable[[Directory], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step is needed; with them, all would be as it is."""
    at_once, with_steps = node(prepare), node(prepare)
    with pytest.raises(StopIteration) as outcome:
        next(at_once.directory.take_over("c", lambda: True))
    monkeypatch.setattr(SessionTakeovers, "_claim_alone", lambda self, search: None)
    outcomes: list[object] = []
    with_steps.run(with_steps.directory.take_over("c", lambda: True), outcomes.append)

    assert SessionFound(present=False) == outcome.value.value
    assert [SessionFound(present=False)] == outcomes
    assert known(with_steps.directory) == known(at_once.directory)


@pytest.mark.parametrize(
    "prepare",
    [kept_elsewhere, unopened, another_site, another_node, busy, arriving, gone, full],
    ids=lambda f: f.__name__,
)
def test_it_takes_the_steps_where_somebody_may_know_more(
    prepare: Callable[[Directory], None],
) -> None:
    """Another node, or something that is under way here, or too much is kept."""
    directory = node(prepare).directory
    procedure = directory.take_over("c", lambda: True)
    next(procedure)
    procedure.close()

    assert "c" not in directory.ownership.held


def test_it_begins_nothing_for_a_client_that_is_gone() -> None:
    """Nobody would be told."""
    directory = node(lambda _: None).directory
    with pytest.raises(StopIteration):
        next(directory.take_over("c", lambda: False))

    assert "c" not in directory.ownership.held
