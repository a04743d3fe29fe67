"""The directory on gRPC: what a question and an answer wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from tests.store.test_committer import run_apart
from txbroker.control import directory_wire as wire
from txbroker.control.directory import DirectoryShell
from txbroker.directory.entry import Entry
from txbroker.directory.requests import Answers, Claim, Discard, Lookup, NotHeld, Request


@attrs.define
class Disk:
    """The tables and the group commit of a node whose disk stalls."""

    is_safe: bool = False
    waiting: list[Callable[[], None]] = attrs.Factory(list)

    def when_durable(self, action: Callable[[], None]) -> None:
        self.waiting.append(action)


@contextmanager
def no_hurry() -> Any:
    yield


def shell(disk: Disk) -> DirectoryShell:
    """One whose directory has the same answer for all."""
    none: Any = SimpleNamespace(end=lambda: None, hurry=no_hurry)
    made = DirectoryShell(
        commit=disk,
        tables=disk,
        shares=none,
        channels=none,
        tasks=none,
        turn=none,
        counters=none,
        now=lambda: 0.0,
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
CLAIM = Claim(view=bytes(8), entry=Entry(client_id="a", node="b", incarnation=1, persistent=True))
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
    """Who a session belongs to rests on tables alone, the end of one on all that was changed."""

    async def scenario() -> None:
        disk = Disk(is_safe)
        asked = wire.question("b", "me", request_)
        answer = asyncio.create_task(shell(disk).Ask(asked, None))
        for _ in range(5):
            await asyncio.sleep(0)
        assert answer.done() is is_answered
        assert len(disk.waiting) == (not is_answered)
        for action in disk.waiting:
            action()
        assert (await answer).node == "me"

    run_apart(scenario())
