"""
Rows of large sessions: each filter, and each open publish, has a row of its own.

A row's key begins with the session's number, which is in the session's own row. So the rows belong
to the session while that row names the number. At the session's end one delete releases all of
them, and the rows are deleted step by step. After a crash in between, rows of an unused number are
left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, Protocol

AT_ONCE: Final = 50
"""Rows deleted in one step."""

_NUMBER: Final = 8


class RowTable(Protocol):
    """Table of small values by key; a written value is durable after the next group commit."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Return every key with its value."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value."""

    def delete(self, key: bytes) -> None:
        """Delete a key, if it exists."""


class SessionRows:
    """The rows of one kind, by the number of the session and a name within it."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._keys: dict[int, dict[bytes, None]] = {}
        for key, _ in table.items():
            self._keys.setdefault(int.from_bytes(key[:_NUMBER]), {})[key] = None

    @property
    def numbers(self) -> Collection[int]:
        """The numbers that have rows."""
        return self._keys.keys()

    def of(self, number: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the names and values of one session."""
        for key in self._keys.get(number, ()):
            value = self._table.get(key)
            if value is not None:
                yield key[_NUMBER:], value

    def put(self, number: int, name: bytes, value: bytes) -> None:
        """Set a value."""
        key = number.to_bytes(_NUMBER) + name
        self._keys.setdefault(number, {})[key] = None
        self._table.put(key, value)

    def delete(self, number: int, name: bytes) -> None:
        """Delete a row, if it exists."""
        key = number.to_bytes(_NUMBER) + name
        keys = self._keys.get(number)
        if keys is not None and key in keys:
            del keys[key]
            self._table.delete(key)

    def clear(self, number: int) -> Iterator[None]:
        """Delete all rows of a session that is over, some in each step."""
        for count, key in enumerate(self._keys.pop(number, ()), 1):
            self._table.delete(key)
            if not count % AT_ONCE:
                yield
