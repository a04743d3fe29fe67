"""Nothing goes on before what it waits for is as safe as promised; one sync serves many."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest

from tests.storage.test_log import Disk
from tests.support.clock import Clock
from txbroker.model.errors import StoreError
from txbroker.runtime import hooks
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.storage import committer as committer_module
from txbroker.storage import newest_segment
from txbroker.storage.commit_ports import CommitEvents, CommitPorts
from txbroker.storage.committer import MEMORY_BYTES, RETRY, Committer, Durability
from txbroker.storage.log import DiskFull, SegmentLog
from txbroker.storage.work_thread import WorkThread

T = TypeVar("T")

Done = Callable[[BaseException | None], None]


class Recording(SegmentLog):
    """A log that writes down what is done with it."""

    def __init__(self, folder: Path, events: list[str]) -> None:
        super().__init__(folder, segment_bytes=65536, on_trimmed=lambda *_: None)
        self.events = events

    def write(self, *, is_unread: bool = False, most: int = sys.maxsize) -> bool:
        """Write, and say so."""
        is_whole = super().write(is_unread=is_unread, most=most)
        self.events.append(f"{self.folder.name} written")
        return is_whole

    def sync(self) -> None:
        """Sync, and say so when it is over."""
        super().sync()
        self.events.append(f"{self.folder.name} synced")


class Bench:
    """A committer with two logs; its thread does a step when the test says so."""

    def __init__(
        self,
        folder: Path,
        durability: Durability,
        soon: Callable[[Callable[[], None]], object] = lambda action: action(),
    ) -> None:
        self.events: list[str] = []
        self.awaited: list[bool] = []
        self.clock = Clock()
        self.work: list[tuple[Callable[[], object], Done]] = []
        self.turn = FlushQueue(lambda action: None)
        self.committer = Committer(
            durability=durability,
            sync_interval=0.1,
            ports=CommitPorts(
                mark_dirty=self.turn.mark_dirty,
                in_thread=lambda work, done: self.work.append((work, done)),
                timers=self.clock,
                end_turn=self.turn.end,
                soon=soon,
            ),
            events=CommitEvents(
                on_full=lambda is_full, reason: self.events.append(
                    f"full {is_full} {bool(reason)}"
                ),
                on_failed=lambda error: self.events.append("failed"),
                on_awaited=self.awaited.append,
            ),
        )
        self.a, self.b = (Recording(folder / name, self.events) for name in "ab")
        self.committer.add(self.a)
        self.committer.add(self.b)

    def stage(self, log: SegmentLog, name: str = "", size: int = 10) -> None:
        """Append something; with a name, an action waits for it."""
        log.append(bytes(size), time=0)
        self.committer.touch(log)
        if name:
            self.wait(name)

    def wait(self, name: str) -> None:
        """An action that waits for all that is staged."""
        self.committer.when_durable(lambda: self.events.append(name))

    def end_turn(self) -> list[str]:
        """End a turn; what happened since the last look."""
        self.turn.end()
        return self.look()

    def sync(self) -> list[str]:
        """The thread does one thing; what happened since the last look."""
        work, done = self.work.pop(0)
        error: BaseException | None = None
        try:
            work()
        except StoreError as raised:
            error = raised
        done(error)
        return self.look()

    def later(self, seconds: float) -> list[str]:
        """Time passes; what happened since the last look."""
        self.clock.advance(seconds)
        return self.look()

    def look(self) -> list[str]:
        """What happened since the last look."""
        events = self.events[:]
        self.events.clear()
        return events


# -- sync


def test_answers_bring_more_before_the_next_sync(tmp_path: Path) -> None:
    """
    What an action stages waits a round of the loop, and is synced together with what comes then:
    a client that was answered would wait for two syncs.
    """
    later: list[Callable[[], None]] = []
    bench = Bench(tmp_path, Durability.SYNC, soon=later.append)
    bench.stage(bench.a)
    bench.committer.when_durable(lambda: bench.stage(bench.b, "the action's"))
    bench.end_turn()
    bench.sync()
    assert ([], 1) == (bench.work, len(later))

    bench.stage(bench.a, "the client's next")
    bench.end_turn()
    later.pop()()

    events = bench.sync()
    assert {"a synced", "b synced"} == set(events[:2])
    assert ["the action's", "the client's next"] == events[2:]


def test_a_sync_after_a_rest_begins_at_once(tmp_path: Path) -> None:
    """Who comes later than the rest does not wait for one."""
    later: list[Callable[[], None]] = []
    bench = Bench(tmp_path, Durability.SYNC, soon=later.append)
    bench.stage(bench.a, "one")
    bench.end_turn()
    bench.sync()
    later.pop()()
    bench.stage(bench.a, "two")
    bench.end_turn()

    assert "two" in bench.sync()


def test_sync_runs_actions_after_the_sync(tmp_path: Path) -> None:
    """In the order asked, over all logs."""
    bench = Bench(tmp_path, Durability.SYNC)
    bench.stage(bench.a, "1")
    bench.stage(bench.b, "2")
    bench.stage(bench.a, "3")

    assert ["a written", "b written"] == bench.end_turn()
    assert ["a synced", "b synced", "1", "2", "3"] == bench.sync()
    assert ([], 1) == (bench.work, bench.committer.syncs)


def test_the_first_log_is_written_and_synced_before_the_others(tmp_path: Path) -> None:
    """What it says of them a crash between two steps may leave, and not the other way round."""
    bench = Bench(tmp_path, Durability.SYNC)
    bench.committer.add(bench.b, is_first=True)
    bench.stage(bench.a, "1")
    bench.stage(bench.b, "2")

    assert ["b written", "a written"] == bench.end_turn()
    assert ["b synced", "a synced", "1", "2"] == bench.sync()


def test_one_sync_serves_all_that_arrived_meanwhile(tmp_path: Path) -> None:
    """The next begins when the one before is over, and covers only what is new."""
    bench = Bench(tmp_path, Durability.SYNC)
    bench.stage(bench.a, "1")
    bench.end_turn()
    for name in "234":
        bench.stage(bench.b, name)
        assert ["b written"] == bench.end_turn()
    assert len(bench.work) == 1
    assert ["a synced", "1"] == bench.sync()
    assert ["b synced", "2", "3", "4"] == bench.sync()
    assert ([], 2) == (bench.work, bench.committer.syncs)


def test_it_is_told_while_somebody_waits_for_a_sync(tmp_path: Path) -> None:
    """For whoever makes turns short then; a sync for which nobody waits is no reason."""
    bench = Bench(tmp_path, Durability.SYNC)
    bench.stage(bench.a)
    bench.end_turn()
    bench.later(0.1)
    assert (1, []) == (len(bench.work), bench.awaited)
    bench.stage(bench.a, "1")
    bench.end_turn()
    assert [True] == bench.awaited
    bench.sync()
    assert [True] == bench.awaited
    bench.sync()
    assert [True, False] == bench.awaited


def test_with_interval_nobody_waits_for_a_sync(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Durability.INTERVAL)
    bench.stage(bench.a, "1")
    bench.end_turn()
    bench.later(0.1)
    bench.sync()
    assert [] == bench.awaited


def test_the_next_sync_waits_for_what_comes_at_once(tmp_path: Path) -> None:
    """Those who are answered by one sync send more: that is in the next one, too."""
    later: list[Callable[[], None]] = []
    bench = Bench(tmp_path, Durability.SYNC, later.append)
    bench.stage(bench.a, "1")
    bench.end_turn()
    bench.stage(bench.a, "2")
    bench.end_turn()
    assert ["a synced", "1"] == bench.sync()
    assert ([], 1) == (bench.work, len(later))
    bench.stage(bench.b, "3")
    bench.end_turn()
    later.pop()()
    assert ["a synced", "b synced", "2", "3"] == bench.sync()
    assert ([], 1) == (bench.work, len(later))
    later.pop()()
    assert not bench.work
    bench.stage(bench.a, "4")
    bench.end_turn()
    bench.stage(bench.a, "5")
    bench.end_turn()
    assert ["a synced", "4"] == bench.sync()
    later.pop()()
    assert ["a synced", "5"] == bench.sync()


def test_a_sync_covers_nothing_that_is_staged_only(tmp_path: Path) -> None:
    """It may begin amid a turn that has not been written yet."""
    later: list[Callable[[], None]] = []
    bench = Bench(tmp_path, Durability.SYNC, later.append)
    for name in "12":
        bench.stage(bench.a, name)
        bench.end_turn()
    bench.sync()
    bench.stage(bench.a, "3")
    later.pop()()

    assert ["a synced", "2"] == [event for event in bench.sync() if event != "a written"]


def test_with_nothing_staged_an_action_runs_in_the_same_turn(tmp_path: Path) -> None:
    """But behind those that wait for a sync."""
    bench = Bench(tmp_path, Durability.SYNC)
    bench.wait("at once")
    assert ["at once"] == bench.end_turn()
    bench.stage(bench.a, "1")
    bench.end_turn()
    bench.wait("2")
    assert [] == bench.end_turn()
    bench.stage(bench.a, "3")
    bench.wait("4")
    bench.end_turn()
    assert ["a synced", "1", "2"] == bench.sync()
    assert ["a synced", "3", "4"] == bench.sync()


def test_an_action_may_stage_more(tmp_path: Path) -> None:
    """Which is written in the turn that ends after it, and synced next."""
    bench = Bench(tmp_path, Durability.SYNC)
    bench.stage(bench.a)
    bench.committer.when_durable(lambda: bench.stage(bench.b, "more"))
    bench.end_turn()
    assert ["a synced", "b written"] == bench.sync()
    assert ["b synced", "more"] == bench.sync()


def test_what_is_gathered_is_staged_before_the_write(tmp_path: Path) -> None:
    """Once, however often it was asked for; in the turn in which it was asked."""
    bench = Bench(tmp_path, Durability.SYNC)

    def gather() -> None:
        bench.events.append("gathered")
        bench.stage(bench.a)

    for name in "12":
        bench.committer.before_write(gather)
        bench.wait(name)
    assert ["gathered", "a written"] == bench.end_turn()
    assert ["a synced", "1", "2"] == bench.sync()
    bench.stage(bench.b)
    assert ["b written"] == bench.end_turn()


def test_a_log_that_is_removed_is_left_alone(tmp_path: Path) -> None:
    """What waits for it and for others goes on."""
    bench = Bench(tmp_path, Durability.SYNC)
    bench.stage(bench.a, "1")
    bench.end_turn()
    bench.stage(bench.b, "2")
    bench.end_turn()
    bench.committer.remove(bench.b)
    assert ["a synced", "1", "2"] == bench.sync()
    bench.stage(bench.b)
    bench.committer.remove(bench.b)
    bench.wait("3")
    assert ["3"] == bench.end_turn()


def test_who_waits_for_a_log_that_goes_before_the_next_sync_is_told(tmp_path: Path) -> None:
    """Nothing is left to sync, so no sync would ever answer."""
    later: list[Callable[[], None]] = []
    bench = Bench(tmp_path, Durability.SYNC, later.append)
    bench.stage(bench.a, "1")
    bench.end_turn()
    bench.stage(bench.b, "2")
    bench.end_turn()
    assert ["a synced", "1"] == bench.sync()
    bench.committer.remove(bench.b)
    bench.committer.check()
    assert ["2"] == bench.end_turn()
    later.pop()()
    assert ([], []) == (bench.look(), bench.work)


def test_a_sync_for_which_nobody_waits_is_put_off(tmp_path: Path) -> None:
    """Until somebody waits for one, or the interval is over."""
    bench = Bench(tmp_path, Durability.SYNC)
    bench.stage(bench.a)
    assert ["a written"] == bench.end_turn()
    assert [] == bench.work
    bench.stage(bench.b, "1")
    assert ["b written"] == bench.end_turn()
    bench.stage(bench.a)
    assert ["a written"] == bench.end_turn()
    assert ["a synced", "b synced", "1"] == bench.sync()
    assert [] == bench.work
    bench.later(0.1)
    assert ["a synced"] == bench.sync()
    bench.later(10)
    assert ([], [], []) == (bench.work, bench.look(), bench.clock.alarms)


@pytest.mark.parametrize("durability", Durability)
def test_what_may_be_put_off_is_gathered_over_turns(tmp_path: Path, durability: Durability) -> None:
    """It is written with what others stage, before it, or after the interval."""
    bench = Bench(tmp_path, durability)

    def gather() -> None:
        bench.events.append("gathered")
        bench.stage(bench.a)

    for _ in range(3):
        bench.committer.before_later_write(gather)
        assert [] == bench.end_turn()
    assert ["gathered", "a written"] == bench.later(0.1)
    bench.committer.before_later_write(gather)
    bench.stage(bench.b, "1")
    found = bench.end_turn() + bench.later(0.1)
    assert ["gathered", "b written", "a written"] == [one for one in found if one != "1"]


def test_what_was_put_off_is_there_for_readers_and_at_the_end(tmp_path: Path) -> None:
    """Whoever reads has it written; so does the end."""
    bench = Bench(tmp_path, Durability.SYNC)
    bench.committer.before_later_write(lambda: bench.stage(bench.a))
    bench.committer.write()
    assert ["a written"] == bench.look()
    bench.committer.before_later_write(lambda: bench.stage(bench.b))
    bench.committer.close()
    assert "b written" in bench.look()


# -- interval


def test_interval_runs_actions_when_written(tmp_path: Path) -> None:
    """And syncs now and then, when there is something to sync."""
    bench = Bench(tmp_path, Durability.INTERVAL)
    bench.stage(bench.a, "1")
    assert ["a written", "1"] == bench.end_turn()
    bench.later(0.05)
    bench.stage(bench.b, "2")
    assert ["b written", "2"] == bench.end_turn()
    assert [] == bench.work
    bench.later(0.06)
    bench.stage(bench.a, "3")
    assert ["a written", "3"] == bench.end_turn()
    assert ["a synced", "b synced"] == bench.sync()
    assert [] == bench.work
    bench.later(0.11)
    assert ["a synced"] == bench.sync()
    bench.later(10)
    assert ([], [], []) == (bench.work, bench.look(), bench.clock.alarms)


# -- memory


def test_memory_runs_actions_at_once_and_writes_later(tmp_path: Path) -> None:
    """After the interval, or when much is staged."""
    bench = Bench(tmp_path, Durability.MEMORY)
    bench.stage(bench.a, "1")
    assert ["1"] == bench.end_turn()
    assert ["a written"] == bench.later(0.1)
    bench.stage(bench.b, "2", 1000)
    assert ["2"] == bench.end_turn()
    bench.stage(bench.b, "3", MEMORY_BYTES)
    assert ["b written", "3"] == bench.end_turn()
    assert [] == bench.later(0.1)


def test_memory_syncs_finished_segments_only(tmp_path: Path) -> None:
    """So that a start after a power failure need not look at all of them."""
    bench = Bench(tmp_path, Durability.MEMORY)
    bench.stage(bench.a, "", 60_000)
    bench.end_turn()
    bench.later(0.1)
    assert [] == bench.work
    bench.stage(bench.a, "", 60_000)
    bench.stage(bench.b)
    bench.end_turn()
    assert ["a written", "b written"] == bench.later(0.1)
    assert ["a synced"] == bench.sync()
    assert [] == bench.work


# -- a full disk


@pytest.mark.parametrize("durability", [Durability.SYNC, Durability.INTERVAL])
def test_on_a_full_disk_all_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Durability
) -> None:
    """It is told once, tried again and again, and told when it is over."""
    bench = Bench(tmp_path, durability)
    disk = Disk(monkeypatch)
    bench.stage(bench.a, "1")
    assert ["full True True"] == bench.end_turn()
    bench.stage(bench.b, "2")
    bench.wait("3")
    assert ([], True) == (bench.end_turn(), bench.committer.is_full)
    assert [] == bench.later(RETRY * 5)
    disk.room = 1_000_000
    assert ["a written", "b written", "full False False"] == [
        event for event in bench.later(RETRY) if event not in "123"
    ]
    assert not bench.committer.is_full
    if durability is Durability.SYNC:
        assert ["a synced", "b synced", "1", "2", "3"] == bench.sync()
    assert bench.a.staged == bench.b.staged == 0


def test_in_memory_mode_actions_wait_for_a_full_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is staged would grow without end."""
    bench = Bench(tmp_path, Durability.MEMORY)
    disk = Disk(monkeypatch)
    bench.stage(bench.a, "1")
    assert ["1"] == bench.end_turn()
    assert ["full True True"] == bench.later(0.1)
    bench.stage(bench.a, "2")
    assert [] == bench.end_turn()
    disk.room = 1_000_000
    assert ["a written", "full False False", "2"] == bench.later(RETRY)


def test_a_sync_that_runs_while_the_disk_gets_full_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it covers goes on, the rest waits."""
    bench = Bench(tmp_path, Durability.SYNC)
    bench.stage(bench.a, "1")
    bench.end_turn()
    Disk(monkeypatch)
    bench.stage(bench.a, "2")
    assert ["full True True"] == bench.end_turn()
    assert ["a synced", "1"] == bench.sync()
    assert [] == bench.end_turn() + bench.later(1)


def test_what_went_on_before_the_disk_got_full_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for that. A loss of power on a full disk takes no more than on another one."""
    bench = Bench(tmp_path, Durability.INTERVAL)
    bench.stage(bench.a, "1")
    assert ["a written", "1"] == bench.end_turn()
    disk = Disk(monkeypatch)
    bench.stage(bench.b, "2")
    assert ["full True True"] == bench.end_turn()

    bench.later(RETRY)
    assert (1, True) == (len(bench.work), bench.committer.is_full)
    assert ["a synced"] == bench.sync()
    bench.later(RETRY * 5)
    assert [] == bench.work
    disk.room = 1_000_000
    assert ["b written", "full False False", "2"] == bench.later(RETRY)


# -- a broken disk


def test_after_a_failed_sync_nothing_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it tried again, not even at the end."""
    bench = Bench(tmp_path, Durability.SYNC)
    bench.stage(bench.a, "1")
    bench.end_turn()
    bench.stage(bench.b, "2")
    bench.end_turn()
    real = os.fdatasync

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    assert ["failed"] == bench.sync()
    monkeypatch.setattr(os, "fdatasync", real)
    bench.stage(bench.b, "3")
    bench.wait("4")
    bench.end_turn()
    bench.later(10)
    bench.committer.close()
    assert ([], []) == (bench.look(), bench.work)


def test_after_a_failed_write_nothing_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not what a sync that runs would have allowed."""
    bench = Bench(tmp_path, Durability.SYNC)
    bench.stage(bench.a, "1")
    bench.end_turn()
    Disk(monkeypatch, errno.EIO)
    bench.stage(bench.a, "2")
    assert ["failed"] == bench.end_turn()
    assert "1" not in bench.sync()
    bench.wait("3")
    assert [] == bench.end_turn()


def test_an_entry_that_cannot_be_written_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody who waits would ever be told: an error of the program is not taken for a full disk."""
    ends: list[str] = []
    monkeypatch.setattr(hooks, "_ends", [lambda: ends.append("ended")])
    bench = Bench(tmp_path, Durability.SYNC)
    bench.stage(bench.a, "1")

    def broken(*_: object, **__: object) -> bool:
        raise ValueError("broken for a test")

    with monkeypatch.context() as patch:
        patch.setattr(Recording, "write", broken)
        assert [] == bench.end_turn()
    assert ["ended"] == ends
    bench.wait("2")
    assert ([], []) == (bench.end_turn(), bench.work)


# -- the end


@pytest.mark.parametrize("durability", Durability)
def test_closing_syncs_all_and_runs_what_waits(tmp_path: Path, durability: Durability) -> None:
    """Whatever was under way; what the thread says afterwards changes nothing."""
    bench = Bench(tmp_path, durability)
    bench.stage(bench.a, "1")
    bench.end_turn()
    bench.stage(bench.b, "2")
    bench.end_turn()
    bench.stage(bench.a, "3")
    bench.committer.close()
    events = bench.look()

    waited = ["1", "2", "3"] if durability is Durability.SYNC else ["3"]
    assert waited == [event for event in events if event in "123"]
    assert events.index("3") > events.index("b synced") > events.index("a synced")
    assert bench.a.synced == bench.a.written == 2
    if bench.work:
        assert not {"1", "2", "3"} & set(bench.sync())
    bench.stage(bench.a, "4")
    assert [] == bench.end_turn() + bench.later(1)


def test_closing_on_a_full_disk_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not written was not acknowledged."""
    bench = Bench(tmp_path, Durability.SYNC)
    Disk(monkeypatch)
    bench.stage(bench.a, "1")
    with pytest.raises(DiskFull):
        bench.committer.close()
    assert [] == bench.look()


# -- a sync that somebody asks for


def asked(bench: Bench) -> bool:
    """Somebody wants all of the first log synced."""
    return bench.committer.sync_soon([bench.a], lambda: bench.events.append("safe"))


@pytest.mark.parametrize("durability", Durability)
def test_a_sync_comes_when_it_is_asked_for(tmp_path: Path, durability: Durability) -> None:
    """Of what is staged, also where nobody waited for it, and what was put off is staged first."""
    bench = Bench(tmp_path, durability)
    bench.committer.before_later_write(lambda: bench.stage(bench.a))

    assert asked(bench)

    assert ["a written"] == bench.look()
    assert ["a synced", "safe"] == bench.sync()
    assert bench.a.synced == bench.a.written == 1
    assert asked(bench)
    assert ["safe"] == bench.look()  # nothing is left to be synced
    assert [] == bench.work


@pytest.mark.parametrize("durability", [Durability.INTERVAL, Durability.MEMORY])
def test_what_was_written_long_ago_is_synced_too(tmp_path: Path, durability: Durability) -> None:
    bench = Bench(tmp_path, durability)
    bench.stage(bench.a, "1", MEMORY_BYTES)
    assert {"a written", "1"} == set(bench.end_turn())
    bench.committer.write()

    assert asked(bench)

    assert ["a synced", "safe"] == bench.sync()


def test_a_sync_that_is_asked_for_waits_for_the_running_one(tmp_path: Path) -> None:
    """What was staged after that began is not in it."""
    bench = Bench(tmp_path, Durability.SYNC)
    bench.stage(bench.a, "1")
    bench.end_turn()
    bench.stage(bench.a)

    assert asked(bench)

    assert ["a written"] == bench.look()
    assert ["a synced", "1"] == bench.sync()
    assert ["a synced", "safe"] == bench.sync()


def test_who_waits_with_a_running_sync_is_answered_by_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Durability.SYNC)
    bench.stage(bench.b, "1")
    bench.end_turn()

    assert asked(bench)

    assert ["b synced", "1", "safe"] == bench.sync()


def test_no_sync_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, Durability.SYNC)
    bench.stage(bench.a)

    def fail(*_: object, **__: object) -> None:
        raise DiskFull("no room")

    monkeypatch.setattr(Recording, "write", fail)
    assert not asked(bench)
    assert bench.committer.is_full
    assert not asked(bench)
    monkeypatch.undo()
    bench.later(RETRY)
    assert asked(bench)
    bench.look()
    assert ["a synced", "safe"] == bench.sync()[-2:]


# -- with a real thread


def run_apart(scenario: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own, beside that of the tests."""
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(asyncio.run, scenario).result()


def test_a_thread_syncs_while_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fdatasync has returned before the action runs; `drain` waits for all."""
    order: list[str] = []
    real = os.fdatasync

    def recorded(fd: int) -> None:
        real(fd)
        order.append("synced")

    monkeypatch.setattr(os, "fdatasync", recorded)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        thread = WorkThread(loop)
        flush_queue = FlushQueue(loop.call_soon)
        log = SegmentLog(tmp_path / "log", on_trimmed=lambda *_: None)
        committer = Committer(
            durability=Durability.SYNC,
            sync_interval=0.1,
            ports=CommitPorts(
                mark_dirty=flush_queue.mark_dirty,
                in_thread=thread.run,
                timers=Clock(),
                end_turn=flush_queue.end,
            ),
            events=CommitEvents(
                on_full=lambda *_: None,
                on_failed=lambda _: None,
            ),
        )
        committer.add(log)
        for i in range(50):
            log.append(b"x", time=i)
            committer.touch(log)
            committer.when_durable(lambda i=i: order.append(f"{i} {log.synced > i}"))
            if i % 3:
                await asyncio.sleep(0)
        await committer.drain()
        committer.close()
        thread.close()

    run_apart(scenario())
    actions = [event for event in order if event != "synced"]
    assert [f"{i} True" for i in range(50)] == actions
    assert order[0] == "synced"


@pytest.mark.parametrize("durability", Durability)
def test_what_changes_hands_is_synced(tmp_path: Path, durability: Durability) -> None:
    """With `memory` and `interval`, too, where nobody else waits for that."""

    async def scenario() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        bench = Bench(tmp_path, durability)
        bench.stage(bench.a)
        drained = loop.create_task(bench.committer.drain())
        while not drained.done():
            bench.end_turn()
            while bench.work:
                bench.sync()
            await asyncio.sleep(0)
        return bench.a.written, bench.a.synced

    assert (1, 1) == run_apart(asyncio.wait_for(scenario(), 10))


def test_errors_of_the_thread_reach_the_loop() -> None:
    """And the thread goes on with what comes next; results after the loop's end are lost."""

    async def scenario() -> list[str]:
        thread = WorkThread(asyncio.get_running_loop())
        results: asyncio.Queue[str] = asyncio.Queue()

        def fail() -> None:
            raise StoreError("broken")

        thread.run(fail, lambda error: results.put_nowait(repr(error)))
        thread.run(lambda: None, lambda error: results.put_nowait(repr(error)))
        found = [await results.get(), await results.get()]
        thread.close()
        return found

    assert ["StoreError('broken')", "None"] == run_apart(scenario())


def test_nobody_waits_for_the_line_of_the_newest_segment(tmp_path: Path) -> None:
    """Its rename takes milliseconds; a clean end writes what is left of it."""
    bench = Bench(tmp_path, Durability.SYNC)
    bench.stage(bench.a, "1")
    bench.end_turn()
    work, done = bench.work.pop()
    note: Any = work()
    done(None)
    assert ["a synced", "1"] == bench.look()
    assert 0 == newest_segment.read(bench.a.folder)
    note()
    assert 1 == newest_segment.read(bench.a.folder)
    bench.stage(bench.b)
    bench.committer.close()
    assert 1 == newest_segment.read(bench.b.folder)


def test_a_deleted_log_leaves_no_line(tmp_path: Path) -> None:
    """Another log may begin in its folder, and would miss a segment by that line."""
    log = SegmentLog(tmp_path / "log", on_trimmed=lambda *_: None)
    log.append(b"x", time=0)
    log.write()
    log.sync()
    log.discard()
    log.note_newest()
    assert 0 == newest_segment.read(log.folder)


def test_more_work_of_the_thread_is_awaited_by_nobody() -> None:
    """It runs when the one who waits has been told."""

    async def scenario() -> list[str]:
        told, more = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        thread, held, order = WorkThread(loop), threading.Event(), list[str]()

        def later() -> None:
            held.wait(30)
            order.append("more")
            loop.call_soon_threadsafe(more.set)

        thread.run(lambda: later, lambda error: told.set())
        await told.wait()
        order.append("told")
        held.set()
        await more.wait()
        thread.close()
        return order

    assert ["told", "more"] == run_apart(asyncio.wait_for(scenario(), 30))


def test_it_is_laden_while_somebody_waits_for_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits, waits for all that was written before: then nobody's records give way."""
    monkeypatch.setattr(committer_module, "LADEN", 2_000)
    bench = Bench(tmp_path, Durability.SYNC)
    bench.stage(bench.a, size=3_000)
    bench.end_turn()
    assert not bench.committer.is_laden(10)
    bench.wait("waits")
    assert bench.committer.is_laden(10)
    bench.end_turn()
    assert bench.committer.is_laden(10)
    bench.sync()
    assert not bench.committer.is_laden(10)
    bench.stage(bench.a, "for little", size=10)
    assert not bench.committer.is_laden(10)


def test_what_is_to_come_makes_it_laden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One record may be more than anybody is to wait for, and so may what a turn stages."""
    monkeypatch.setattr(committer_module, "LADEN", 2_000)
    bench = Bench(tmp_path, Durability.SYNC)
    assert not bench.committer.is_laden(3_000)
    bench.stage(bench.a, "waits")
    assert not bench.committer.is_laden(1_500)
    assert bench.committer.is_laden(3_000)
    bench.stage(bench.a, size=1_500)
    assert bench.committer.is_laden(1_500)


def test_whoever_has_waited_counts_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends more when it is answered, and would wait for what came in between."""
    monkeypatch.setattr(committer_module, "LADEN", 2_000)
    bench = Bench(tmp_path, Durability.SYNC)
    bench.stage(bench.a, "waits")
    bench.end_turn()
    bench.sync()

    assert bench.committer.is_laden(3_000)
    bench.later(2 * committer_module.AGAIN)
    assert not bench.committer.is_laden(3_000)


def test_nobody_yields_where_nobody_waits(tmp_path: Path) -> None:
    """Much that nobody awaits goes at once then."""
    bench = Bench(tmp_path, Durability.SYNC)
    bench.stage(bench.a)
    assert not bench.committer.yield_to_waiters(lambda: None)
    bench.wait("waits")
    assert bench.committer.yield_to_waiters(lambda: None)


def test_who_yields_goes_on_behind_those_who_waited(tmp_path: Path) -> None:
    """One sync later, also where nobody waits for that one or nothing is to be synced."""
    bench = Bench(tmp_path, Durability.SYNC)

    def go_on() -> None:
        bench.events.append("goes on")

    bench.stage(bench.a, "waits")
    assert bench.committer.yield_to_waiters(go_on)
    bench.end_turn()
    told = [event for event in bench.sync() if event in ("waits", "goes on")]
    assert ["waits", "goes on"] == told
    bench.stage(bench.b)
    assert bench.committer.yield_to_waiters(go_on)
    bench.end_turn()
    assert "goes on" in bench.sync()
    assert bench.committer.yield_to_waiters(go_on)
    assert ["goes on"] == bench.end_turn()


def test_much_is_written_in_turns(tmp_path: Path) -> None:
    """
    Others have their turn in between; whoever waits goes on when what it waits for is written, and
    what others stage meanwhile is not.
    """
    later: list[Callable[[], None]] = []
    bench = Bench(tmp_path, Durability.INTERVAL, soon=later.append)
    bench.stage(bench.a, "first", size=2 * committer_module.SLICE)
    assert "first" not in bench.end_turn()
    bench.stage(bench.a, "second", size=4 * committer_module.SLICE)
    seen: list[str] = []
    turns = 0
    while later:
        later.pop(0)()
        turns += 1
        events = [event for event in bench.look() if event in ("first", "second")]
        if events:
            seen.append(f"{events} of {bench.a.written}")

    assert ["['first'] of 1", "['second'] of 2"] == seen
    assert turns > 2


@pytest.mark.parametrize("durability", list(Durability))
def test_the_end_comes_amid_much(tmp_path: Path, durability: Durability) -> None:
    """Then all of it is written, and whoever waits is told."""
    bench = Bench(tmp_path, durability, soon=lambda action: None)
    bench.stage(bench.a, "one", size=3 * committer_module.SLICE)
    bench.end_turn()
    bench.committer.close()

    assert bench.look()[-1] == "one" or durability is Durability.MEMORY
    assert (1, 1) == (bench.a.written, bench.a.synced)


def test_what_is_staged_waits_for_a_sync_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would stop who brings more in each turn than is written."""
    monkeypatch.setattr(committer_module, "MOST_BEHIND", 4 * committer_module.SLICE)
    bench = Bench(tmp_path, Durability.SYNC, soon=lambda action: None)
    behind: list[bool] = []
    events = attrs.evolve(
        bench.committer._events, on_behind=lambda is_behind, _: behind.append(is_behind)
    )
    monkeypatch.setattr(bench.committer, "_events", events)
    bench.stage(bench.a, size=6 * committer_module.SLICE)
    bench.end_turn()

    assert [True] == behind
