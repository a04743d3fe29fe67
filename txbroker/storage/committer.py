"""
SHELL: the group commit: when logs are written and synced, and who may go on after it.

Whoever stages something in a log touches it here and asks for a call when it is durable. The end of
the turn writes all staged entries, or a slice of very many. Then, by `Durability`, one sync in a
thread serves all that arrived since the sync before. Actions run on the loop, in the order in which
they were asked for. No action runs before its entries are as safe as the node promises. A sync for
which nobody waits is put off. One sync costs more than all other work for a message.

An action passes four queues: `_waiting` (for what is staged), `_next` (for the sync to come),
`_running` (for the sync that runs), `_ready`. A write moves actions to `_next`, a sync on to
`_ready`. An action leaves a queue only for the next one, so that nobody waits for ever.

Measured with and without a sync, beside peers: docs/decisions/acknowledged.md.
"""

from __future__ import annotations

import asyncio
import enum
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from txbroker.model.errors import StoreError
from txbroker.model.invariant import holds, ordered
from txbroker.model.timers import Cancellable
from txbroker.runtime import hooks
from txbroker.storage.commit_ports import CommitEvents, CommitPorts
from txbroker.storage.files import DiskFull
from txbroker.storage.log import SegmentLog

RETRY = 0.2
"""Seconds between attempts to write to a full disk."""

MEMORY_BYTES = 1024 * 1024
"""With `memory`, the committer writes logs at the latest when this many bytes are staged."""

SLICE = 2 * 1024 * 1024
"""
Bytes of each log that the committer writes in one turn.

The system may need 30 ms for a record of 16 MB. The node serves no client in that time.
"""

MOST_BEHIND = 64 * 1024 * 1024
ENTRY = 256
"""
Bytes that may wait for a sync, and the bytes that each entry counts beside its own size.

Unsynced records stay in memory until they are acknowledged. Without the limit, the memory of a node
rose from 80 to 900 MB while its disk stalled for 8 s.
"""

LADEN = 8 * 1024 * 1024
"""
Bytes that may wait for a sync while a caller awaits one; above it, `is_laden` is True.

The zone store then leaves records of QoS 0 out of the journal. Without the limit, a flood of QoS 0
made each sync one of 64 MiB, and delayed every awaited record.
"""

AGAIN = 0.1
"""
Seconds after an awaited sync in which the committer still counts its waiter as waiting.

Otherwise the waiter's next publish queues behind records of 16 MB written in that pause.
"""

_Action = Callable[[], None]


class Durability(enum.Enum):
    """The state of the entries when an action runs: synced; written; staged, and written soon."""

    SYNC = "sync"
    INTERVAL = "interval"
    MEMORY = "memory"


class _Group(NamedTuple):
    """Actions that wait until logs are written up to these entries, and not for later entries."""

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
        ports: CommitPorts,
        events: CommitEvents,
    ) -> None:
        self.is_full = False
        self.syncs = 0
        self._is_memory = durability is Durability.MEMORY
        self._is_interval = durability is Durability.INTERVAL
        self._sync_interval = sync_interval
        self._mark_dirty = ports.mark_dirty
        self._in_thread = ports.in_thread
        self._timers = ports.timers
        self._end_turn = ports.end_turn
        self._events = events
        self._is_awaited = False
        self._is_sync = durability is Durability.SYNC  # else no caller waits for a sync
        self._is_behind = False
        self._behind = 0  # bytes that the next sync makes durable
        self._behind_running = 0
        self._waited_until = float("-inf")
        self._soon = ports.soon
        self._logs: dict[SegmentLog, None] = {}
        self._first: SegmentLog | None = None
        self._before_write: dict[_Action, None] = {}
        self._last_before_write: dict[_Action, None] = {}
        self._put_off: dict[_Action, None] = {}
        self._staged: dict[SegmentLog, None] = {}
        self._unsynced: dict[SegmentLog, None] = {}  # logs written after the running sync began
        self._waiting: deque[_Action] = deque()  # for the staged entries
        self._group: _Group | None = None  # in the course of being written
        self._is_going_on = False
        self._next: deque[_Action] = deque()  # for the sync after the running one
        self._running: deque[_Action] | None = None
        self._is_resting = False  # after an awaited sync, until more may have come
        self._ready: deque[_Action] = deque()
        self._yielded: deque[_Action] = deque()  # of those who wait for others' syncs
        self._alarm: Cancellable | None = None
        self._is_ended = False

    # -- from those who have something to keep

    def add(self, log: SegmentLog, *, is_first: bool = False) -> None:
        """
        Register a log. The committer writes and syncs the log that `is_first` before the other logs
        of a turn.

        A crash between two steps then leaves the statements of that log about the others. The crash
        never leaves their statements about a missing entry of that log.
        """
        self._logs[log] = None
        if is_first:
            self._first = log

    def remove(self, log: SegmentLog) -> None:
        """Unregister a log with its staged and unsynced entries: for a log that is deleted."""
        for logs in (self._logs, self._staged, self._unsynced):
            logs.pop(log, None)
        if (self._next or self._yielded) and self._running is None and not self._unsynced:
            self._ready.extend(self._next)  # no sync is left that would tell them
            self._next.clear()
            self._end_yield()
            self._mark_dirty(self)

    def touch(self, log: SegmentLog) -> None:
        """Schedule the write of `log`, which has staged entries, for the end of the turn."""
        self._staged[log] = None
        self._mark_dirty(self)

    def before_write(self, action: _Action, *, is_last: bool = False) -> None:
        """
        Call `action` once at the end of the turn, before the logs are written; it may stage.

        `is_last`: True if `action` must run behind all actions that are not, those included that
        they ask for. It stages what they change as one batch, of which a crash leaves all or none.
        """
        (self._last_before_write if is_last else self._before_write)[action] = None
        self._mark_dirty(self)

    def before_later_write(self, action: _Action) -> None:
        """
        Call `action` once, before the next write, after `sync_interval` seconds at the latest.

        For entries whose sync no caller awaits.
        """
        self._put_off[action] = None
        if self._alarm is None and not self._is_ended:
            self._set_alarm(self._sync_interval, self._catch_up)

    def when_durable(self, action: _Action) -> None:
        """Run `action` when all entries staged so far are durable, at the flush or later."""
        self._waiting.append(action)
        self._mark_dirty(self)

    def is_laden(self, more: int) -> bool:
        """
        True if `more` bytes would make the waiters for a sync wait for too many bytes.

        The staged, written and unsynced bytes count. With a durability other than `sync` no caller
        waits, and the result is False.
        """
        return self._has_waiters and self._unsafe + more > LADEN

    def yield_to_waiters(self, go_on: _Action) -> bool:
        """
        Return False if no caller waits for a sync; else run `go_on` after the next sync.

        For much that nobody awaits: a caller then waits for one part of it, not for all.
        """
        if self._has_waiters:
            self._yielded.append(go_on)
            self._mark_dirty(self)
            return True
        return False

    # -- from the node

    def flush(self) -> None:
        """End a turn: write the staged entries, run the actions that may run, begin a sync."""
        if self._is_ended:
            return
        self._run_ready()
        if self.is_full:
            return  # The alarm retries; entries staged in between wait too.
        self._gather()
        if self._is_memory:
            self._flush_memory()
        else:
            self._write_group()
        self._run_ready()
        self._report_waiters()

    def write(self) -> None:
        """Write the staged entries now, for a reader; `memory` would delay the write."""
        if not self._is_ended and not self.is_full:
            self._gather()
            self._write()

    def sync_soon(self, logs: Iterable[SegmentLog], action: _Action) -> bool:
        """
        Run `action` when the present entries of these logs are synced, whatever `durability` says.

        Return False if nothing can be written now; `action` will then never run.
        """
        if self._is_ended or self.is_full:
            return False
        self._gather()
        if not self._write():
            return False
        # With `memory`, most entries are written and never scheduled for a sync.
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
        Return when all entries staged so far are synced and their actions have run.

        The result holds whatever `durability` says. For state that changes hands: its other copy is
        deleted next.
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
        Write and sync all logs now, and run the waiting actions; afterwards the committer is inert.

        Raises `StoreError`; then no further action ran.
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
            log.note_newest()
        begun = () if self._group is None else self._group.actions
        for actions in (self._running or (), self._next, begun, self._waiting):
            self._ready.extend(actions)
        self._run_ready()

    def promised(self, log: SegmentLog) -> int:
        """The last entry of a log that is as safe as the node promises."""
        if self._is_sync:
            return log.synced
        return log.next - 1 if self._is_memory else log.written

    def check(self) -> None:
        """State that who waits will be told, and that a log which was removed takes no part."""
        if self._is_ended:
            return
        is_coming = self._running is not None or bool(self._unsynced)
        holds(self, 35, "who waits for a sync has one coming", is_coming or not self._next)
        may_go_on = is_coming or bool(self._staged) or not self._yielded
        holds(self, 35, "who yields to waiters goes on", may_go_on)
        strange = (self._staged.keys() | self._unsynced.keys()) - self._logs.keys()
        holds(self, 35, "only logs that take part are written", not strange, strange)
        ordered(self, 34, "bytes behind a sync are counted", 0, self._behind)
        for log in self._staged.keys() | self._unsynced.keys():
            log.check()

    # -- internal

    def _gather(self) -> None:
        while self._before_write or self._put_off or self._last_before_write:
            actions = {**self._put_off, **self._before_write}
            self._put_off, self._before_write = {}, {}
            if not actions:
                actions, self._last_before_write = self._last_before_write, {}
            self._run(actions)

    def _write_group(self) -> None:
        """Write a slice of the staged entries; release the waiters for no later entries."""
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
            self._release(group.actions)
        if is_whole:
            actions, self._waiting = self._waiting, deque()
            self._release(actions)
        elif not self._is_going_on:
            self._is_going_on = True
            self._soon(self._write_more)

    def _is_written(self, group: _Group) -> bool:
        """True if no log of the group has a staged entry that the group waits for."""
        through = group.through.items()
        return all(log not in self._staged or log.written >= last for log, last in through)

    def _write_more(self) -> None:
        """Write more in another turn."""
        self._is_going_on = False
        self.flush()
        self._end_turn()

    def _in_order(self, logs: Iterable[SegmentLog]) -> list[SegmentLog]:
        """Return the logs in the order of their writes and syncs, the first log at the front."""
        return sorted(logs, key=lambda log: log is not self._first)

    def _write(self, *, is_unread: bool = False, most: int = sys.maxsize) -> bool:
        """Write up to `most` staged bytes of each log. Return True if nothing stays staged."""
        staged = self._in_order(self._staged)
        try:
            for log in staged:
                behind = log.staged + ENTRY * log.staged_entries
                is_whole = log.write(is_unread=is_unread, most=most)
                self._behind += behind - log.staged - ENTRY * log.staged_entries
                if is_whole or log.synced < log.written:
                    self._unsynced[log] = None
                if not is_whole:
                    break  # Later logs may refer to entries of this one.
                del self._staged[log]
        except DiskFull as error:
            if not self.is_full:
                self.is_full = True
                self._events.on_full(True, str(error))
            self._set_alarm(RETRY, self._retry)
            return False
        except StoreError as error:
            self._fail(error)
            return False
        except Exception as error:  # An unwritable entry must end the node: no waiter would run.
            self._is_ended = True
            hooks.fail(error)
            return False
        if staged:
            self._report_behind()
            self._events.on_written()
        return not self._staged

    @property
    def _has_waiters(self) -> bool:
        """True if a caller waits for a sync, or did a moment ago."""
        group = self._group is not None and self._group.actions
        is_awaited = bool(self._running or self._next or group or self._waiting)
        return self._is_sync and (is_awaited or self._timers.now() < self._waited_until)

    @property
    def _unsafe(self) -> int:
        """Bytes that are staged, or written and not synced."""
        staged = sum(log.staged for log in self._staged)
        return staged + self._behind + self._behind_running

    def _report_behind(self) -> None:
        """Report when too many bytes wait for a sync, and again when half of that is left."""
        waiting = self._unsafe
        most = MOST_BEHIND // 2 if self._is_behind else MOST_BEHIND
        if self._is_sync and (waiting > most) != self._is_behind:
            self._is_behind = waiting > most
            self._events.on_behind(self._is_behind, f"{waiting >> 20} MiB wait for a sync")

    def _retry(self) -> None:
        self._alarm = None
        if self._write():
            self.is_full = False
            self._events.on_full(False, "")
            self._mark_dirty(self)
        elif self.is_full and not self._is_memory:
            self._sync()  # With `interval`, this attempt took the place of the sync's alarm.
        self._end_turn()

    def _release(self, actions: deque[_Action]) -> None:
        """Release actions whose entries are written, or queue them for the sync."""
        if self._is_interval:
            self._ready.extend(actions)
            self._sync_in_time()
        elif self._unsynced:
            self._next.extend(actions)
            self._sync_in_time()
        elif self._running is not None:
            self._running.extend(actions)  # Their entries were written before that sync began.
        else:
            self._ready.extend(actions)
            self._end_yield()

    def _end_yield(self) -> None:
        """Let those go on that have waited for others' syncs."""
        self._ready.extend(self._yielded)
        self._yielded.clear()

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
        """Write and sync the entries that were put off."""
        self._alarm = None
        self._gather()
        if self._write(most=SLICE):
            if self._is_memory:
                # A start scans all unsynced segments: sync finished ones, so that few remain.
                self._unsynced = {log: None for log in self._unsynced if log.is_rotated}
            self._sync()
        elif not (self.is_full or self._is_ended):
            self._set_alarm(0.0, self._catch_up)
        self._end_turn()

    def _sync_in_time(self) -> None:
        """Begin a sync if a caller awaits one; otherwise schedule a sync."""
        if self._next or self._yielded:
            if not self._is_resting:
                self._sync()
        elif self._unsynced and self._alarm is None:
            self._set_alarm(self._sync_interval, self._catch_up)

    def _sync(self) -> None:
        """Begin a sync of all written entries, if any, unless a sync is running."""
        if self._running is not None or not self._unsynced or self._is_ended:
            return
        logs, self._unsynced = self._in_order(self._unsynced), {}
        self._running, self._next = self._next, deque()
        self._behind_running, self._behind = self._behind, 0

        def note() -> None:
            for log in logs:
                log.note_newest()

        def work() -> _Action:
            for log in logs:
                log.sync()
            return note

        self._in_thread(work, self._synced)

    def _synced(self, error: BaseException | None) -> None:
        """Handle the end of the sync in the thread."""
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
        self._report_behind()
        self._ready.extend(actions or ())
        self._end_yield()
        if actions or self._next:
            self._rest()
        if not self._is_memory:
            self._sync_in_time()
        if self._running is None and not self._unsynced:
            self._ready.extend(self._next)  # Their logs were removed.
            self._next.clear()
        self._run_ready()
        self._report_waiters()
        self._end_turn()

    def _rest(self) -> None:
        """
        Begin the next sync in a later round, also one that the actions of the last sync ask for.

        An acknowledged client sends more at once, which the next sync must cover. Otherwise the
        client waits for two syncs each time.
        """
        if not self._is_resting:
            self._is_resting = True
            self._soon(self._end_rest)

    def _end_rest(self) -> None:
        """Begin the sync that somebody awaits by now."""
        self._is_resting = False
        if self._next or self._yielded:
            self._sync()

    def _report_waiters(self) -> None:
        """Report when a caller begins to await a sync, and when the last one is served."""
        is_awaited = bool(self._running or self._next)
        if is_awaited != self._is_awaited:
            self._is_awaited = is_awaited
            self._events.on_awaited(is_awaited)

    def _run_ready(self) -> None:
        while self._ready:
            ready, self._ready = self._ready, deque()
            self._run(ready)

    def _run(self, actions: Iterable[_Action]) -> None:
        """Run actions for which others wait; an error ends the process."""
        for action in actions:
            try:
                action()
            except Exception as error:
                hooks.fail(error)

    def _fail(self, error: StoreError) -> None:
        self._is_ended = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._events.on_failed(error)
