"""The directory on gRPC: what a question and an answer wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
from structlog.testing import capture_logs

from tests.storage.test_committer import run_apart
from txbroker.directory.effects import Pause, SendRequest
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.reachability import LONGEST, REMEMBERED, SHORTEST, Reachability
from txbroker.directory.requests import (
    Answers,
    Claim,
    Discard,
    Lookup,
    NotHeld,
    Ping,
    Register,
    Registered,
    Request,
)
from txbroker.directory.rpc import directory_calls
from txbroker.directory.rpc import directory_convert as wire
from txbroker.directory.rpc.directory_calls import CLAIMS, OWN_TABLES, DirectoryCalls
from txbroker.directory.rpc.directory_service import DirectoryService
from txbroker.directory.rpc.request_server import RequestServer
from txbroker.runtime.structured_log import TELL_AGAIN


@attrs.define
class Disk:
    """The tables and the group commit of a node whose disk stalls."""

    is_safe: bool = False
    waiting: list[Callable[[], None]] = attrs.Factory(list)

    def are_safe(self, *beginnings: str) -> bool:
        assert beginnings == OWN_TABLES
        return self.is_safe

    def when_durable(self, action: Callable[[], None]) -> None:
        self.waiting.append(action)


@contextmanager
def no_hurry() -> Any:
    yield


def shell(disk: Disk) -> DirectoryService:
    """One whose directory has the same answer for all."""
    none: Any = SimpleNamespace(end=lambda: None, hurry=no_hurry)
    calls = DirectoryCalls(commit=disk, tables=disk, channels=none, tasks=none, now=lambda: 0.0)
    server = RequestServer(calls=calls, shares=none, tasks=none, flush_queue=none, counters=none)
    made = DirectoryService(
        calls, server, shares=none, tasks=none, flush_queue=none, now=lambda: 0.0
    )
    answer = {Lookup: Answers(answers=()), Discard: NotHeld()}
    directory: Any = SimpleNamespace(
        members=SimpleNamespace(name="me"),
        greatest=lambda client_id: 0,
        handle=lambda source, question: answer.get(type(question), NotHeld()),
    )
    made.wire(directory)
    made.start()
    return made


LOOKUP = Lookup(view=bytes(8), client_ids=("a",))
CLAIM = Claim(
    view=bytes(8), entry=DirectoryEntry(client_id="a", node="b", incarnation=1, persistent=True)
)
DISCARD = Discard(client_id="a", incarnation=1, through=1, age=0)


@pytest.mark.parametrize(
    ("request_", "is_safe", "is_answered"),
    [
        (LOOKUP, True, True),
        (LOOKUP, False, False),
        (CLAIM, True, True),
        (CLAIM, False, False),
        (DISCARD, True, False),
        (DISCARD, False, False),
    ],
)
def test_an_answer_waits_for_what_it_rests_on(
    request_: Request, is_safe: bool, is_answered: bool
) -> None:
    """Who has a session rests on the own tables, the end of one on all that was changed."""

    async def scenario() -> None:
        disk = Disk(is_safe)
        asked = wire.question("b", "me", request_)
        ended: list[bool] = []
        context: Any = SimpleNamespace(end_turn=lambda: ended.append(not disk.waiting))
        answer = asyncio.create_task(shell(disk).server.Ask(asked, context))
        for _ in range(5):
            await asyncio.sleep(0)
        assert ended == [True]  # others need not wait for the disk as well
        assert answer.done() is is_answered
        assert len(disk.waiting) == (not is_answered)
        for action in disk.waiting:
            action()
        assert (await answer).node == "me"

    run_apart(scenario())


@pytest.mark.parametrize("own_suffices", [False, True])
def test_a_lookup_at_two_keepers_needs_no_task(own_suffices: bool) -> None:
    """Each task costs a CONNECT two turns of the loop, which a storm makes long."""

    async def scenario() -> None:
        made, taken, asked = shell(Disk()), [], []

        async def call(name: str, request: Request) -> None:
            asked.append(name)

        def take(name: str, reply: Any) -> bool:
            taken.append((name, reply))
            return own_suffices

        made._calls.call = call  # type: ignore[method-assign]
        await made._ask(SendRequest(calls=(("b", LOOKUP), ("me", LOOKUP)), take=take))
        own = ("me", Answers(answers=()))
        assert taken == ([own] if own_suffices else [own, ("b", None)])
        assert asked == ([] if own_suffices else ["b"])

    run_apart(scenario())


def test_a_turn_sends_few_entries_of_many() -> None:
    """The batches of the others leave in turns of their own."""
    entry = CLAIM.entry
    batch = Register(view=b"", established=True, life=1, keeper_life=1, entries=(entry,) * 500)
    left = {f"n{number}": batch for number in range(9)}
    started: list[Any] = []
    turns: list[Any] = []
    made = shell(Disk())
    made._tasks = cast(
        Any, SimpleNamespace(start=lambda task: (started.append(task), task.close()))
    )
    made._flush_queue = cast(Any, SimpleNamespace(mark_next=turns.append))
    made._directory = cast(
        Any,
        SimpleNamespace(
            members=SimpleNamespace(peers=lambda: list(left), is_alone=True),
            admission=SimpleNamespace(due=list),
            replicator=SimpleNamespace(
                batch=lambda name, now: left.pop(name), advance=lambda: False
            ),
        ),
    )
    sent = []
    while left:
        made.flush()
        sent.append(len(started) - sum(sent))
        assert len(turns) == len(sent) - (not left)

    assert [2, 2, 2, 2, 1] == sent


def test_a_pause_ends_when_a_keeper_has_answered_or_its_time_is_over() -> None:
    async def scenario() -> None:
        made, is_so = shell(Disk()), False
        pausing = asyncio.create_task(made._pause(Pause(seconds=600.0, until=lambda: is_so)))
        await asyncio.sleep(0)
        for is_so in (False, True):
            made._end_pauses()
            made._end_pauses()
            await asyncio.sleep(0)
            assert (pausing.done(), len(made._pauses)) == (is_so, not is_so)
        await made._pause(Pause(seconds=0.001))
        assert {} == made._pauses

    run_apart(scenario())


def test_lookups_wait_for_the_answer_to_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then they go in one request, or after a while: a call for each turn held up all others."""

    async def scenario() -> None:
        asked: list[tuple[tuple[str, ...], asyncio.Future[None]]] = []
        loop = asyncio.get_running_loop()

        async def send(name: str, request: Lookup) -> Answers:
            over: asyncio.Future[None] = loop.create_future()
            asked.append((request.client_ids, over))
            await over
            return Answers(answers=tuple(NotHeld() for _ in request.client_ids))  # type: ignore

        def look_up(client_id: str) -> asyncio.Task[Any]:
            return asyncio.create_task(
                made._lookup("b", Lookup(view=bytes(8), client_ids=(client_id,)))
            )

        async def turns() -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        disk = Disk()
        tasks: Any = SimpleNamespace(start=asyncio.ensure_future)
        channels: Any = SimpleNamespace()
        made = DirectoryCalls(
            commit=disk, tables=disk, channels=channels, tasks=tasks, now=lambda: 0.0
        )
        made.send = send  # type: ignore[assignment,method-assign]
        monkeypatch.setattr(directory_calls, "LOOKUP_PAUSE", 600.0)
        answers = []
        for client_id in ("a", "b", "c"):
            answers.append(look_up(client_id))
            await turns()
        assert [("a",)] == [client_ids for client_ids, _ in asked]
        asked[0][1].set_result(None)
        await turns()
        assert [("a",), ("b", "c")] == [client_ids for client_ids, _ in asked]

        monkeypatch.setattr(directory_calls, "LOOKUP_PAUSE", 0.0)
        answers.append(look_up("d"))
        while len(asked) < 3:  # one that is not answered holds up nothing
            await asyncio.sleep(0)
        for _, over in asked[1:]:
            over.set_result(None)
        assert [1, 1, 1, 1] == [len(found.answers) for found in await asyncio.gather(*answers)]
        assert {} == made._lookups

    run_apart(scenario())


def test_a_keeper_that_owes_many_answers_gets_no_more_claims() -> None:
    """Claims decided by others left 1,500 calls behind, and those of a CONNECT came after them."""

    async def scenario() -> None:
        sent: list[asyncio.Future[NotHeld]] = []

        async def send(name: str, request: Request) -> NotHeld:
            sent.append(asyncio.get_running_loop().create_future())
            return await sent[-1]

        async def claim(count: int) -> list[asyncio.Task[Any]]:
            made = [asyncio.create_task(calls.call("b", CLAIM)) for _ in range(count)]
            await asyncio.sleep(0)
            return made

        disk, none = Disk(), cast(Any, None)
        calls = DirectoryCalls(commit=disk, tables=disk, channels=none, tasks=none, now=lambda: 0.0)
        calls.wire(cast(Any, SimpleNamespace(members=SimpleNamespace(name="me"))))
        calls.send = send  # type: ignore[method-assign]
        asked = await claim(CLAIMS + 1)
        assert len(sent) == CLAIMS
        assert await asked.pop() is None
        for one in sent:
            one.set_result(NotHeld())
        assert await asyncio.gather(*asked) == [NotHeld()] * CLAIMS
        assert not calls._claims
        (again,) = await claim(1)
        sent[-1].set_result(NotHeld())
        assert await again == NotHeld()

    run_apart(scenario())


def test_members_that_wait_are_told_once_and_again_in_a_while() -> None:
    """A line a second for a node that is down for the night would hide all others."""
    made, now = shell(Disk()), 0.0
    made._now = lambda: now
    admission = SimpleNamespace(waiting=0)
    made._directory.admission = admission  # type: ignore[assignment]
    made._directory.members.left_out = 0

    def told(seconds: int, waiting: int) -> list[int]:
        nonlocal now
        admission.waiting = waiting
        with capture_logs() as logged:
            for _ in range(seconds):
                made._log_waiting()
                now += 1.0
        return [one["count"] for one in logged if one["event"] == "members.unreachable"]

    assert [] == told(2, 0)
    assert [4] == told(int(TELL_AGAIN), 4)
    assert [3] == told(int(TELL_AGAIN), 3)
    assert [] == told(2, 0)
    assert [1] == told(2, 1)


def test_a_call_for_a_client_is_not_awaited_longer_for_a_slow_member() -> None:
    """A CONNECT's bound counts on it; a registration and a ping have time."""
    disk, none = Disk(), cast(Any, None)
    calls = DirectoryCalls(commit=disk, tables=disk, channels=none, tasks=none, now=lambda: 0.0)
    now = 5.0
    reach = Reachability(lambda: now)
    reach.answered("b", 0.0)
    names = [f"n{number}" for number in range(50)]
    members = SimpleNamespace(places=SimpleNamespace(names=names))
    calls.wire(cast(Any, SimpleNamespace(reach=reach, members=members)))
    batch = Register(view=b"", established=True, life=1, keeper_life=1)

    assert [SHORTEST] * 3 == [calls._timeout("b", one) for one in (LOOKUP, CLAIM, DISCARD)]
    assert [LONGEST] * 2 == [calls._timeout("b", one) for one in (batch, Ping())]
    assert SHORTEST < calls._timeout("c", Ping())
    now += REMEMBERED
    assert SHORTEST == calls._timeout("b", Ping())


def test_a_late_batch_counts_when_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then its keeper is late, which proves nothing of its absence."""

    async def scenario() -> None:
        events: list[str] = []
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def send(name: str, batch: Register) -> Registered:
            await answer
            return Registered(life=1, settled=True)

        made = shell(Disk())
        monkeypatch.setattr(made._calls, "send", send)
        made._flush_queue = cast(Any, SimpleNamespace(mark_dirty=lambda one: None))
        directory: Any = made._directory
        directory.reach = SimpleNamespace(patience=lambda name: 0.001)
        directory.replicator = SimpleNamespace(
            late=lambda *_: events.append("late"), answered=lambda *_: events.append("answered")
        )
        directory.conflicts = SimpleNamespace(on_registered=lambda *_: None)
        batch = Register(view=b"", established=True, life=1, keeper_life=1)
        registering = asyncio.create_task(made._register("b", batch))
        while not events:
            await asyncio.sleep(0.001)
        answer.set_result(None)
        await registering
        assert events == ["late", "answered"]

    run_apart(scenario())
