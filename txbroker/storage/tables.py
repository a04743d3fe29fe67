"""
SHELL: small keyed state that outlives the process: tables over one log, where the last value wins.

What is put and deleted in one turn, in whatever tables, is one batch of the log: after a crash it
is all there or not at all. Values live in memory, or where their table keeps them. The log is
cleaned by appending what is live anew, bit by bit, and then dropping what is older than the
beginning of that.
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
"""For the log of tables: only whole segments can be dropped."""

SLACK = 2 * 1024 * 1024
"""A log may hold so many bytes besides twice the live ones before it is cleaned."""

CLEAN_BYTES = 256 * 1024
"""One call of `LogTables.clean` appends about so much at most."""

UNSTAGED = 1 << 63
"""Above the number of every entry."""

_OP = Struct("<BBII")  # 1 put or 0 delete, then the lengths of table, key and value
_OVERHEAD = _OP.size

_Name = tuple[str, bytes]


class _Group:
    """What is written to the log at once; `last` is its last entry, as soon as all is staged."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0


class LogTable:
    """
    One table; keys and values are bytes. Made by `LogTables.table`; `keep` is where values are.
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
        """The value of a key."""
        value = self._values.get(key)
        return None if value is None else bytes(value)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All keys with their values; the table may change meanwhile."""
        return ((key, bytes(value)) for key, value in self.packed())

    def keys(self) -> list[bytes]:
        """All keys: of a million in a tenth of the time that their values take with them."""
        return list(self._values)

    def packed(self) -> list[tuple[bytes, StoredValue]]:
        """The same, with the values wherever they are."""
        return list(self._values.items())

    def put(self, key: bytes, value: StoredValue) -> None:
        """Set a value; kept with all else of this turn."""
        self.restore(key, value)
        self._stage(key, self._values[key])

    def delete(self, key: bytes) -> None:
        """Remove a key, if it is there."""
        if key in self._values:
            self.restore(key, None)
            self._stage(key, None)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    # -- from the tables

    def restore(self, key: bytes, value: StoredValue | None) -> None:
        """Take a value, or that there is none, from the log."""
        before = self._values.pop(key, None) if value is None else self._values.get(key)
        if before is not None:
            self.live -= self._overhead + len(key) + len(before)
        if value is not None:
            self._values[key] = self._keep(value)
            self.live += self._overhead + len(key) + len(value)

    def again(self, key: bytes) -> int:
        """Append the value of a key once more; returns the bytes that it takes."""
        value = self._values[key]
        self._stage(key, value)
        return self._overhead + len(key) + len(value)

    def _stage(self, key: bytes, value: StoredValue | None) -> None:
        self._pending[self._name, key] = value
        self.group = self._mark()


_Mark = Callable[[], _Group]
_Keep = Callable[[StoredValue], StoredValue]


class LogTables:
    """All tables of a node, over one log."""

    def __init__(
        self,
        log: SegmentLog,
        committer: Committer,
        now: Callable[[], int],
        keeps: Mapping[str, _Keep] | None = None,
    ) -> None:
        """
        Read the log; raises `StoreError`. `now` in UTC microseconds; `keeps`: where the values of
        some tables are.
        """
        self._log = log
        self._committer = committer
        self._now = now
        self._tables: dict[str, LogTable] = {}
        self._keeps = keeps or {}
        self._pending: dict[_Name, StoredValue | None] = {}
        self._group = _Group()
        self._turns = 0  # that have changed anything
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
        """The table of that name, at most 255 bytes; an empty one if it is new."""
        found = self._tables.get(name)
        if found is None:
            if len(name.encode()) > 255:
                raise CallerError("The name of a table has at most 255 bytes.")
            keep = self._keeps.get(name, in_memory)
            found = self._tables[name] = LogTable(name, self._pending, self._mark, keep)
        return found

    def are_safe(self, *beginnings: str) -> bool:
        """
        True if all that was changed in the tables whose names begin so is synced, with what else is
        in the same turn: whoever asks need not wait for what others change all the time.
        """
        synced = self._log.synced
        return all(
            table.group.last <= synced
            for name, table in self._tables.items()
            if name.startswith(beginnings)
        )

    def clean(self, budget: int = 1000) -> None:
        """
        Go on with cleaning, if there is reason to: append up to `budget` keys anew.

        To be called every second or so, and ended as a turn. Raises `StoreError`.
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
        """One cycle: the bytes appended for one key after the other; 0 to go on later."""
        through = self._log.next - 1
        for table in list(self._tables.values()):
            for key in table.keys():  # noqa: SIM118 - of one moment: the table changes meanwhile
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
        """Something was changed: it is written with what is not written yet."""
        if len(self._pending) == 1:
            self._committer.before_write(self._stage)
        if self._group.last < UNSTAGED and not self._log.staged:
            self._group = _Group()
        self._group.last = UNSTAGED
        return self._group

    def _stage(self) -> None:
        if self._pending:
            body = b"".join(
                part
                for (name, key), value in self._pending.items()
                for part in _op(name, key, value)
            )
            self._log.append(body, len(self._pending), time=self._now())
            self._pending.clear()
            self._group.last = self._log.next - 1
            self._turns += 1
            self._committer.touch(self._log)


def _op(name: str, key: bytes, value: StoredValue | None) -> tuple[bytes, bytes, bytes, bytes]:
    raw = name.encode()
    data = b"" if value is None else bytes(value)
    return _OP.pack(value is not None, len(raw), len(key), len(data)), raw, key, data


def _decode(body: bytes) -> Iterator[tuple[str, bytes, bytes | None]]:
    """The changes in a batch; raises `ValueError` or `struct.error` for anything else."""
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
