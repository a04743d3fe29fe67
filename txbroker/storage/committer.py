"""
SHELL: the group commit: when logs are written and synced, and who may go on after it.

Whoever stages something in a log touches it here and asks for a call when it is durable. At the end
of the turn all that was staged is written, of very much a slice in each turn; then, by
`Durability`, one sync in a thread serves all that arrived since the one before. Actions run on the
loop, in the order in which they were asked for, never before what they wait for is as safe as the
node promises. A sync for which nobody waits is put off, as one costs more than all else that is
done for a message.

Measured with and without a sync, beside peers: docs/decisions/acknowledged.md.
"""

from __future__ import annotations

import asyncio
import enum
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from txbroker.model.errors import StoreError
from txbroker.model.timers import Cancellable, Timers
from txbroker.runtime import hooks
from txbroker.storage.files import DiskFull
from txbroker.storage.log import SegmentLog
from txbroker.storage.work_thread import one_by_one

RETRY = 0.2
"""Seconds between attempts to write to a full disk."""

MEMORY_BYTES = 1024 * 1024
"""With `memory`, logs are written when this much is staged, at the latest."""

SLICE = 2 * 1024 * 1024
"""
Bytes of each log that are written in one turn: the system may take 30 ms for a record of 16 MB, in
which nobody else was served.
"""

MOST_BEHIND = 64 * 1024 * 1024
ENTRY = 256
"""
Bytes that may wait for a sync, each entry counting for some more than its own: what waits is in
memory until it is acknowledged, and a disk that stalled for 8 s took a node from 80 to 900 MB.
"""

LADEN = 8 * 1024 * 1024
"""
Bytes that may wait for a sync, where somebody waits for it, too, before whatever nobody waits for
gives way: a flood of QoS 0 made each sync one of 64 MiB, behind which all else was late.
"""

AGAIN = 0.1
"""
Seconds for which whoever has waited counts as one that waits: its next publish came behind records
of 16 MB that were written while it took breath.
"""

_Action = Callable[[], None]


class Durability(enum.Enum):
    """What holds when an action runs: synced; written; staged, and written soon."""

    SYNC = "sync"
    INTERVAL = "interval"
    MEMORY = "memory"


class _Group(NamedTuple):
    """Who waits until logs are written up to these entries, and not for what is staged later."""

    actions: deque[_Action]
    through: dict[SegmentLog, int]


class Committer:
    """
    The group commit of one node; `flush` is called at the end of a turn.

    `is_full`: the disk has no room, nothing is written and all actions wait. `syncs` counts.
    """

    def __init__(
        self,
        *,
        durability: Durability,
        sync_interval: float,
        mark_dirty: Callable[[Committer], None],
        in_thread: Callable[[_Action, Callable[[BaseException | None], None]], None],
        timers: Timers,
        end_turn: _Action,
        on_full: Callable[[bool, str], None],
        on_failed: Callable[[StoreError], None],
        on_written: _Action = lambda: None,
        on_behind: Callable[[bool, str], None] = lambda *_: None,
        on_awaited: Callable[[bool], None] = lambda _: None,
        soon: Callable[[_Action], object] = lambda action: action(),
        together: Callable[[Sequence[_Action]], None] = one_by_one,
    ) -> None:
        """
        `together` does several works in the thread, and returns when all have ended.
        `soon` runs an action when what has come by now was read. `on_full` is told when the disk
        got full, with the reason, and when it is no more; `on_written` that something was written;
        `on_behind` when too much waits for a sync, with what that is, and when it is little again;
        `on_awaited` when somebody waits for a sync, and when nobody does any more;
        `on_failed` that the disk cannot be trusted any more: no action will ever run again.
        """
        self.is_full = False
        self.syncs = 0
        self._is_memory = durability is Durability.MEMORY
        self._is_interval = durability is Durability.INTERVAL
        self._sync_interval = sync_interval
        self._mark_dirty = mark_dirty
        self._in_thread = in_thread
        self._together = together
        self._timers = timers
        self._end_turn = end_turn
        self._on_full = on_full
        self._on_failed = on_failed
        self._on_written = on_written
        self._on_behind = on_behind
        self._on_awaited = on_awaited
        self._is_awaited = False
        self._is_sync = durability is Durability.SYNC  # with others nobody waits for one
        self._is_behind = False
        self._behind = 0  # bytes that the next sync covers
        self._behind_running = 0
        self._waited_until = float("-inf")
        self._soon = soon
        self._logs: dict[SegmentLog, None] = {}
        self._first: SegmentLog | None = None
        self._before_write: dict[_Action, None] = {}
        self._put_off: dict[_Action, None] = {}
        self._staged: dict[SegmentLog, None] = {}
        self._unsynced: dict[SegmentLog, None] = {}  # written after the running sync began
        self._waiting: deque[_Action] = deque()  # for what is staged
        self._group: _Group | None = None  # that is being written
        self._is_going_on = False
        self._next: deque[_Action] = deque()  # for the sync after the running one
        self._running: deque[_Action] | None = None
        self._ready: deque[_Action] = deque()
        self._alarm: Cancellable | None = None
        self._is_ended = False

    # -- from those who have something to keep

    def add(self, log: SegmentLog, *, is_first: bool = False) -> None:
        """
        Take part in the commit. One log may be written and synced before the others of a turn: a
        kill between two writes leaves what it says of them, not what they say of it.
        """
        self._logs[log] = None
        if is_first:
            self._first = log

    def remove(self, log: SegmentLog) -> None:
        """Leave it, with what is staged or not synced: for a log that is deleted."""
        for logs in (self._logs, self._staged, self._unsynced):
            logs.pop(log, None)

    def touch(self, log: SegmentLog) -> None:
        """Something was staged in `log`: write it at the end of the turn."""
        self._staged[log] = None
        self._mark_dirty(self)

    def before_write(self, action: _Action) -> None:
        """Call `action` once, at the end of the turn, before logs are written; it may stage."""
        self._before_write[action] = None
        self._mark_dirty(self)

    def before_later_write(self, action: _Action) -> None:
        """
        Call `action` once, before anything is written, after `sync_interval` seconds at the latest.

        For what nobody waits for.
        """
        self._put_off[action] = None
        if self._alarm is None and not self._is_ended:
            self._set_alarm(self._sync_interval, self._catch_up)

    def when_durable(self, action: _Action) -> None:
        """Run `action` when all that was staged so far is durable, at the earliest at the flush."""
        self._waiting.append(action)
        self._mark_dirty(self)

    def is_laden(self, more: int) -> bool:
        """
        True if those who wait for a sync would wait for much, with so many bytes more than what is
        staged and written; with other than `sync` nobody waits.
        """
        group = self._group is not None and self._group.actions
        has_waiting = bool(self._running or self._next or group or self._waiting)
        if not self._is_sync or not (has_waiting or self._timers.now() < self._waited_until):
            return False
        return self._unsafe + more > LADEN

    # -- from the node

    def flush(self) -> None:
        """The end of a turn: write, run what may run, begin a sync."""
        if self._is_ended:
            return
        self._run_ready()
        if self.is_full:
            return  # the alarm tries again; what was staged meanwhile waits too
        self._gather()
        if self._is_memory:
            self._flush_memory()
        else:
            self._write_group()
        self._run_ready()
        self._look_who_waits()

    def write(self) -> None:
        """Write what is staged now, as somebody wants to read it; `memory` would take its time."""
        if not self._is_ended and not self.is_full:
            self._gather()
            self._write()

    def sync_soon(self, logs: Iterable[SegmentLog], action: _Action) -> bool:
        """
        Run `action` when what these logs have now is synced, whatever `durability` says.

        False: it never will be called, as nothing can be written now.
        """
        if self._is_ended or self.is_full:
            return False
        self._gather()
        if not self._write():
            return False
        # With `memory` most is written and never asked for again.
        self._unsynced.update(dict.fromkeys(log for log in logs if log.synced < log.written))
        if self._unsynced:
            self._next.append(action)
            self._sync()
        elif self._running is not None:
            self._running.append(action)
        else:
            action()
        return True

    async def drain(self) -> None:
        """
        Return when all that was staged so far is synced, whatever `durability` says, and all that
        waited for it has been told: for what changes hands, as its other copy is deleted then.
        """
        done = asyncio.Event()
        self.when_durable(done.set)
        await done.wait()
        if not self._is_sync:
            done.clear()
            while not self.sync_soon(self._logs, done.set):
                await asyncio.sleep(RETRY)
            await done.wait()

    def close(self) -> None:
        """
        Write and sync all logs now and run what waits for it; nothing happens after that.

        Raises `StoreError`; then no more actions ran.
        """
        if self._is_ended:
            return
        self._run_ready()
        self._gather()
        self._is_ended = True
        if self._alarm is not None:
            self._alarm.cancel()
        for log in self._logs:
            log.write()
        for log in self._logs:
            log.sync()
        begun = () if self._group is None else self._group.actions
        for actions in (self._running or (), self._next, begun, self._waiting):
            self._ready.extend(actions)
        self._run_ready()

    # -- internal

    def _gather(self) -> None:
        while self._before_write or self._put_off:
            actions = {**self._put_off, **self._before_write}
            self._put_off, self._before_write = {}, {}
            for action in actions:
                hooks.run(action)

    def _write_group(self) -> None:
        """Write a slice of what is staged; who waits for no more than that may go on."""
        is_whole = self._write(most=SLICE)
        if self.is_full or self._is_ended:
            return
        if not is_whole and self._group is None:
            through = {log: log.next - 1 for log in self._staged}
            self._group = _Group(self._waiting, through)
            self._waiting = deque()
        group = self._group
        if group is not None and (is_whole or self._is_written(group)):
            self._group = None
            self._pass_on(group.actions)
        if is_whole:
            actions, self._waiting = self._waiting, deque()
            self._pass_on(actions)
        elif not self._is_going_on:
            self._is_going_on = True
            self._soon(self._go_on)

    def _is_written(self, group: _Group) -> bool:
        """True if none of its logs has something staged that it waits for."""
        through = group.through.items()
        return all(log not in self._staged or log.written >= last for log, last in through)

    def _go_on(self) -> None:
        """Another turn: write more."""
        self._is_going_on = False
        self.flush()
        self._end_turn()

    def _write(self, *, is_unread: bool = False, most: int = sys.maxsize) -> bool:
        """Write what is staged, so many bytes of each log; True if that is all."""
        staged = list(self._staged)
        if self._first in self._staged:
            staged.sort(key=lambda log: log is not self._first)
        try:
            for log in staged:
                behind = log.staged + ENTRY * log.staged_entries
                is_whole = log.write(is_unread=is_unread, most=most)
                self._behind += behind - log.staged - ENTRY * log.staged_entries
                if is_whole or log.synced < log.written:
                    self._unsynced[log] = None
                if not is_whole:
                    break  # the others may say something of it
                del self._staged[log]
        except DiskFull as error:
            if not self.is_full:
                self.is_full = True
                self._on_full(True, str(error))
            self._set_alarm(RETRY, self._retry)
            return False
        except StoreError as error:
            self._fail(error)
            return False
        except Exception as error:  # what a log holds cannot be written: nobody would ever hear
            self._is_ended = True
            hooks.fail(error)
            return False
        if staged:
            self._look_behind()
            self._on_written()
        return not self._staged

    @property
    def _unsafe(self) -> int:
        """Bytes that are staged, or written and not synced."""
        staged = sum(log.staged for log in self._staged)
        return staged + self._behind + self._behind_running

    def _look_behind(self) -> None:
        """Tell when too much waits for a sync, and when half of that is left."""
        waiting = self._unsafe
        most = MOST_BEHIND // 2 if self._is_behind else MOST_BEHIND
        if self._is_sync and (waiting > most) != self._is_behind:
            self._is_behind = waiting > most
            self._on_behind(self._is_behind, f"{waiting >> 20} MiB wait for a sync")

    def _retry(self) -> None:
        self._alarm = None
        if self._write():
            self.is_full = False
            self._on_full(False, "")
            self._mark_dirty(self)
        self._end_turn()

    def _pass_on(self, actions: deque[_Action]) -> None:
        """What they wait for is written: let them run, or wait for the sync that covers it."""
        if self._is_interval:
            self._ready.extend(actions)
            self._sync_in_time()
        elif self._unsynced:
            self._next.extend(actions)
            self._sync_in_time()
        elif self._running is not None:
            self._running.extend(actions)  # written before that sync began
        else:
            self._ready.extend(actions)

    def _flush_memory(self) -> None:
        self._ready.extend(self._waiting)
        self._waiting.clear()
        if sum(log.staged for log in self._staged) >= MEMORY_BYTES:
            self._write(is_unread=True)
        if self._staged and self._alarm is None:
            self._set_alarm(self._sync_interval, self._catch_up)

    def _set_alarm(self, delay: float, action: _Action) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._timers.call_later(delay, action)

    def _catch_up(self) -> None:
        """Write and sync what was put off."""
        self._alarm = None
        self._gather()
        if self._write(most=SLICE):
            if self._is_memory:
                # Finished segments are synced, so that a start need not scan more than one or two.
                self._unsynced = {log: None for log in self._unsynced if log.is_rotated}
            self._sync()
        elif not (self.is_full or self._is_ended):
            self._set_alarm(0.0, self._catch_up)
        self._end_turn()

    def _sync_in_time(self) -> None:
        """Begin a sync where somebody waits for it, or have one come."""
        if self._next:
            self._sync()
        elif self._unsynced and self._alarm is None:
            self._set_alarm(self._sync_interval, self._catch_up)

    def _sync(self) -> None:
        """Begin a sync of all that was written, if none is running and there is any."""
        if self._running is not None or not self._unsynced or self._is_ended:
            return
        logs, self._unsynced = list(self._unsynced), {}
        self._running, self._next = self._next, deque()
        self._behind_running, self._behind = self._behind, 0

        def work() -> None:
            if self._first in logs:
                self._first.sync()
            self._together([log.sync for log in logs if log is not self._first])

        self._in_thread(work, self._synced)

    def _synced(self, error: BaseException | None) -> None:
        """The sync in the thread is over."""
        if self._is_ended:
            return
        actions, self._running = self._running, None
        if error is not None:
            self._fail(error if isinstance(error, StoreError) else StoreError(str(error)))
            return
        self.syncs += 1
        self._behind_running = 0
        if actions:
            self._waited_until = self._timers.now() + AGAIN
        self._look_behind()
        self._ready.extend(actions or ())
        if self._next and self._unsynced:
            # Whoever is answered now sends more: what comes at once is in the next sync, too.
            self._soon(self._sync)
        elif not self._is_memory:
            self._sync_in_time()
        if self._running is None and not self._unsynced:
            self._ready.extend(self._next)  # what they waited for was removed
            self._next.clear()
        self._run_ready()
        self._look_who_waits()
        self._end_turn()

    def _look_who_waits(self) -> None:
        """Tell when somebody begins to wait for a sync, and when nobody does any more."""
        is_awaited = bool(self._running or self._next)
        if is_awaited != self._is_awaited:
            self._is_awaited = is_awaited
            self._on_awaited(is_awaited)

    def _run_ready(self) -> None:
        while self._ready:
            hooks.run(self._ready.popleft())

    def _fail(self, error: StoreError) -> None:
        self._is_ended = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._on_failed(error)
