"""The durable side of an edge in memory: tables, a group commit that waits, journals to read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from tests.support.stored import GivenRecords
from txbroker.edge.sessions.journal_read_cache import ReadFailure
from txbroker.edge.sessions.session_store import SessionStore, SessionTables
from txbroker.journal.zone_journal import JournalChunk, Record
from txbroker.model.epoch_transition import END, EpochTransition
from txbroker.model.log_position import JournalId
from txbroker.model.timers import Timers
from txbroker.mqtt.wire.message import Message

WALL = 1_700_000_000_000_000
"""The wall clock of tests at their beginning, in microseconds UTC."""


class MemoryTable:
    """
    A table of a node (`Table`); `CommitRecorder` says what of it is durable. `is_changed` since it
    was written last.
    """

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.puts = 0
        self.is_changed = False

    def get(self, key: bytes) -> bytes | None:
        return self.values.get(key)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(list(self.values.items()))

    def put(self, key: bytes, value: bytes) -> None:
        self.puts += 1
        self.is_changed = True
        self.values[key] = value

    def delete(self, key: bytes) -> None:
        self.is_changed |= self.values.pop(key, None) is not None

    def __contains__(self, key: object) -> bool:
        return key in self.values


_State = list[dict[bytes, bytes]]


class CommitRecorder:
    """
    The node's group commit (`Commit`): a `write`, then a `sync`, when the test says so.

    Rows that are put between them are not durable before the next round. `crash` leaves the tables
    as they were last synced.
    """

    def __init__(self) -> None:
        self.sessions, self.windows, self.messages = (MemoryTable() for _ in range(3))
        self.filters, self.publishes = MemoryTable(), MemoryTable()
        self.positions, self.passages, self.groups = (MemoryTable() for _ in range(3))
        self.left = MemoryTable()
        self._hooks: dict[Callable[[], None], None] = {}
        self._waiting: list[Callable[[], None]] = []
        self._written: deque[tuple[_State, list[Callable[[], None]]]] = deque()
        self._durable: _State = [{} for _ in self._tables]

    def before_write(self, hook: Callable[[], None]) -> None:
        self._hooks[hook] = None

    def when_durable(self, action: Callable[[], None]) -> None:
        self._waiting.append(action)

    def durable(self, table: MemoryTable) -> dict[bytes, bytes]:
        """The rows of the table that a crash would leave."""
        return self._durable[self._tables.index(table)]

    @property
    def is_quiet(self) -> bool:
        """True if nobody waits for anything, and nothing has to be written."""
        is_changed = any(table.is_changed for table in self._tables)
        return not (self._hooks or self._waiting or self._written or is_changed)

    def write(self) -> None:
        """The end of a turn."""
        while self._hooks:
            hooks, self._hooks = self._hooks, {}
            for hook in hooks:
                hook()
        for table in self._tables:
            table.is_changed = False
        actions, self._waiting = self._waiting, []
        self._written.append(([dict(table.values) for table in self._tables], actions))

    def sync(self) -> None:
        """Make the oldest writes that are not durable yet durable."""
        if self._written:
            self._durable, actions = self._written.popleft()
            for action in actions:
                action()

    def commit(self) -> None:
        """All that was put is durable."""
        self.write()
        while self._written:
            self.sync()

    def crash(self) -> CommitRecorder:
        """The process died: the commit of the next one."""
        after = CommitRecorder()
        for table, values in zip(after._tables, self._durable, strict=True):
            table.values = dict(values)
        after._durable = [dict(values) for values in self._durable]
        return after

    def keeper(self, timers: Timers, lived: Callable[[], int] | None = None) -> SessionStore:
        """A keeper over these tables; without `lived` each process lives from `WALL` on."""
        return SessionStore(
            SessionTables(
                sessions=self.sessions,
                windows=self.windows,
                filters=self.filters,
                publishes=self.publishes,
                messages=self.messages,
                positions=self.positions,
                passages=self.passages,
                groups=self.groups,
            ),
            self,
            lived=lived or (lambda: WALL + int(timers.now() * 1e6)),
            now=timers.now,
            message_clock=lambda: WALL + int(timers.now() * 1e6),
        )

    @property
    def _tables(self) -> tuple[MemoryTable, ...]:
        kept = self.sessions, self.windows, self.messages, self.filters, self.publishes
        return *kept, self.positions, self.passages, self.groups, self.left


class JournalsRecorder:
    """
    Journals that can be read (`Reader`): at once, or with `late` when the test says `answer`.

    `limit` records at most are in an answer; `reads` are the questions; offsets up to `trimmed` of
    a part are kept no longer; `missing` parts are answered by that; `closed` ones have an end.
    """

    def __init__(self) -> None:
        self.parts: dict[JournalId, list[Record]] = {}
        self.trimmed: dict[JournalId, int] = {}
        self.missing: dict[JournalId, ReadFailure] = {}
        self.closed: set[JournalId] = set()
        self.ends: dict[JournalId, int] = {}
        self.passages: list[EpochTransition] = []
        self.reads: list[tuple[JournalId, int, int]] = []
        self.late = False
        self.limit = 512
        self._open: deque[Callable[[], None]] = deque()

    def add(self, part: JournalId, offset: int, message: Message) -> None:
        """A durable record."""
        self.parts.setdefault(part, []).append(Record(offset, message))

    def trim(self, part: JournalId, through: int) -> None:
        """Keep only what is above this offset."""
        self.trimmed[part] = through
        self.parts[part] = [r for r in self.parts.get(part, []) if r.offset > through]

    def read(
        self,
        part: JournalId,
        after: int,
        through: int,
        done: Callable[[JournalChunk | ReadFailure], None],
    ) -> None:
        self.reads.append((part, after, through))
        if self.late:
            self._open.append(lambda: done(self._find(part, after, through)))
        else:
            done(self._find(part, after, through))

    def answer(self, count: int = 1) -> None:
        """Answer the first questions that are open."""
        for _ in range(min(count, len(self._open))):
            self._open.popleft()()

    def drop_questions(self) -> None:
        """Whoever asked is gone."""
        self._open.clear()

    @property
    def open(self) -> int:
        """Questions without an answer."""
        return len(self._open)

    def _find(self, part: JournalId, after: int, through: int) -> JournalChunk | ReadFailure:
        if part in self.missing:
            return self.missing[part]
        kept = self.parts.get(part, [])
        end = self.ends.get(part, kept[-1].offset if kept else self.trimmed.get(part, 0))
        through = max(min(through, end), after)
        due = [r for r in kept if after < r.offset <= through and r.message.qos]
        if len(due) > self.limit:
            through = due[self.limit - 1].offset
        is_closed = part in self.closed
        looked = END if is_closed and through >= end else through
        return JournalChunk(
            records=GivenRecords(due[: self.limit]),
            through=through,
            first=self.trimmed.get(part, 0) + 1,
            last=end,
            rest=sum(r.message.size for r in kept if r.offset > through),
            is_closed=is_closed,
            passages=tuple(p for p in self.passages if p.is_met(part, after, looked)),
        )
