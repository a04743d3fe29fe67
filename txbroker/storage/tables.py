"""
SHELL: stores small keyed state durably: tables over one log, in which the last value wins.

All changes of one turn, in any tables, make one batch of the log. So a crash leaves all of them or
none. Values stay in memory, or where their table places them. A cleaning cycle bounds the log. The
cycle appends the live values anew, bit by bit, then trims all older entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from struct import error as StructError

from txbroker.model.errors import CallerError, StoreError
from txbroker.model.stored_value import StoredValue, in_memory
from txbroker.storage.committer import Committer
from txbroker.storage.log import SegmentLog

SEGMENT_BYTES = 1024 * 1024
"""Bytes of a segment of the log: trimming drops whole segments only."""

SLACK = 2 * 1024 * 1024
"""Bytes that a log may hold beside twice its live bytes before a cleaning cycle begins."""

CLEAN_BYTES = 256 * 1024
"""Bytes that one call of `LogTables.clean` appends at most, approximately."""

UNSTAGED = 1 << 63
"""A number above the number of every entry."""

_OP = Struct("<BBII")  # 1 put or 0 delete; lengths of table, key and value
_OVERHEAD = _OP.size

_Name = tuple[str, bytes]


class _Group:
    """The changes of one write to the log; `last` is its last entry, once all is staged."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0


class LogTable:
    """
    A table of keys and values, both bytes, which `LogTables.table` makes.

    `keep` places a value: in memory or in a file. `live` is the size of the live entries in bytes.
    """

    def __init__(
        self, name: str, pending: dict[_Name, StoredValue | None], mark: _Mark, keep: _Keep
    ) -> None:
        self._name = name
        self._keep = keep
        self._values: dict[bytes, StoredValue] = {}
        self._pending = pending
        self._mark = mark
        self._overhead = _OVERHEAD + len(name.encode())
        self.live = 0
        self.group = _Group()

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        value = self._values.get(key)
        return None if value is None else bytes(value)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Return all keys with their values; the table may change during the iteration."""
        return ((key, bytes(value)) for key, value in self.packed())

    def keys(self) -> list[bytes]:
        """Return all keys. For a million keys, `items` needs ten times as long."""
        return list(self._values)

    def packed(self) -> list[tuple[bytes, StoredValue]]:
        """Return all keys with their values, unread, wherever `keep` has placed them."""
        return list(self._values.items())

    def put(self, key: bytes, value: StoredValue) -> None:
        """Set a value; the log stores it with all other changes of this turn."""
        self.restore(key, value)
        self._stage(key, self._values[key])

    def delete(self, key: bytes) -> None:
        """Remove a key, if present."""
        if key in self._values:
            self.restore(key, None)
            self._stage(key, None)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    # -- from the tables

    def restore(self, key: bytes, value: StoredValue | None) -> None:
        """Apply a change that the log already holds: a value, or None for a removed key."""
        before = self._values.pop(key, None) if value is None else self._values.get(key)
        if before is not None:
            self.live -= self._overhead + len(key) + len(before)
        if value is not None:
            self._values[key] = self._keep(value)
            self.live += self._overhead + len(key) + len(value)

    def again(self, key: bytes) -> int:
        """Append the value of a key once more; return its size in bytes."""
        value = self._values[key]
        self._stage(key, value)
        return self._overhead + len(key) + len(value)

    def _stage(self, key: bytes, value: StoredValue | None) -> None:
        self._pending[self._name, key] = value
        self.group = self._mark()


_Mark = Callable[[], _Group]
_Keep = Callable[[StoredValue], StoredValue]


class LogTables:
    """All tables of a node over one log, with the cleaning of that log."""

    def __init__(
        self,
        log: SegmentLog,
        committer: Committer,
        now: Callable[[], int],
        keeps: Mapping[str, _Keep] | None = None,
    ) -> None:
        """
        Read the log; raises `StoreError`.

        `now` returns UTC microseconds. `keeps` says, for some tables, where their values are
        placed.
        """
        self._log = log
        self._committer = committer
        self._now = now
        self._tables: dict[str, LogTable] = {}
        self._keeps = keeps or {}
        self._pending: dict[_Name, StoredValue | None] = {}
        self._group = _Group()
        self._turns = 0  # turns that changed a table
        self._cleaning: Iterator[int] | None = None
        for batch in log.batches():
            try:
                for name, key, value in _decode(batch.body):
                    self.table(name).restore(key, value)
            except (ValueError, StructError) as error:
                raise StoreError(
                    f"{log.folder}: entry {batch.first} cannot be read as a change of a table;"
                    " start the newer txbroker that wrote it, or restore a backup"
                ) from error
        committer.add(log)

    def table(self, name: str) -> LogTable:
        """
        Return the table of that name, empty if new.

        Raises `CallerError` for a name of more than 255 bytes.
        """
        found = self._tables.get(name)
        if found is None:
            if len(name.encode()) > 255:
                raise CallerError("The name of a table has at most 255 bytes.")
            keep = self._keeps.get(name, in_memory)
            found = self._tables[name] = LogTable(name, self._pending, self._mark, keep)
        return found

    def are_safe(self, *beginnings: str) -> bool:
        """
        True if the changes of all tables whose names begin so are synced.

        A caller need not wait for a sync of other tables, which change all the time. All changes of
        one turn are synced together.
        """
        synced = self._log.synced
        for name, table in self._tables.items():
            if table.group.last > synced and name.startswith(beginnings):
                return False
        return True

    def clean(self, budget: int = 1000) -> None:
        """
        Continue or begin a cleaning cycle, if the log is too large: append up to `budget` keys.

        The caller calls this about once a second, and then ends the turn. Raises `StoreError`.
        """
        if self._committer.is_full:
            return
        if self._cleaning is None:
            live = sum(table.live for table in self._tables.values())
            if self._log.size <= 2 * live + SLACK:
                return
            self._cleaning = self._clean()
        room = CLEAN_BYTES
        for _ in range(budget):
            taken = next(self._cleaning, None)
            if taken is None:
                self._cleaning = None
                return
            room -= taken
            if not taken or room <= 0:
                return

    # -- internal

    def _clean(self) -> Iterator[int]:
        """Run one cycle; yield the bytes appended for each key, or 0 to pause the cycle."""
        through = self._log.next - 1
        for table in list(self._tables.values()):
            for key in table.keys():  # noqa: SIM118 - a snapshot: the table changes in between
                if key in table:
                    yield table.again(key)
        turn = self._turns
        while self._pending and self._turns == turn:
            yield 0
        last = self._log.next - 1
        while self._log.synced < last:
            yield 0
        self._log.trim(through)

    def _mark(self) -> _Group:
        """Register a change for the next write of the log, and return its group."""
        if len(self._pending) == 1:
            self._committer.before_write(self._stage, is_last=True)
        if self._group.last < UNSTAGED and not self._log.staged:
            self._group = _Group()
        self._group.last = UNSTAGED
        return self._group

    def _stage(self) -> None:
        if self._pending:
            parts: list[bytes] = []
            for (name, key), value in self._pending.items():
                parts += _op(name, key, value)
            self._log.append(b"".join(parts), len(self._pending), time=self._now())
            self._pending.clear()
            self._group.last = self._log.next - 1
            self._turns += 1
            self._committer.touch(self._log)


def _op(name: str, key: bytes, value: StoredValue | None) -> tuple[bytes, bytes, bytes, bytes]:
    raw = name.encode()
    data = b"" if value is None else bytes(value)
    return _OP.pack(value is not None, len(raw), len(key), len(data)), raw, key, data


def _decode(body: bytes) -> Iterator[tuple[str, bytes, bytes | None]]:
    """Decode the changes in a batch; raises `ValueError` or `struct.error` for foreign bytes."""
    at = 0
    while at < len(body):
        kind, name_size, key_size, size = _OP.unpack_from(body, at)
        key_at = at + _OVERHEAD + name_size
        value_at = key_at + key_size
        name = body[at + _OVERHEAD : key_at].decode()
        at = value_at + size
        if kind > 1 or at > len(body):
            raise ValueError("unknown change")
        yield name, body[key_at:value_at], body[value_at:at] if kind else None
