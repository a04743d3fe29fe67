"""
What a large session has many of, each in a row of its own: a filter, or an open publish.

A session's number is in its own row of the store, and the rows of the many begin with it. So they
are a session's as long as that row says so: when the session ends, one delete lets go of them all,
and they are taken out bit by bit. A crash meanwhile leaves rows of a number that nobody has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, Protocol

AT_ONCE: Final = 50
"""Rows that are taken out at a time."""

_NUMBER: Final = 8


class RowTable(Protocol):
    """Small durable state by key; what is put is safe after the next group commit."""

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Every key with its value."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value."""

    def delete(self, key: bytes) -> None:
        """Take a key out, if it is there."""


class SessionRows:
    """The rows of one kind, by the number of the session and a name in it."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._keys: dict[int, dict[bytes, None]] = {}
        for key, _ in table.items():
            self._keys.setdefault(int.from_bytes(key[:_NUMBER]), {})[key] = None

    @property
    def numbers(self) -> Collection[int]:
        """The numbers that have any."""
        return self._keys.keys()

    def of(self, number: int) -> Iterator[tuple[bytes, bytes]]:
        """The names and values of one session."""
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
        """Take one out, if it is there."""
        key = number.to_bytes(_NUMBER) + name
        keys = self._keys.get(number)
        if keys is not None and key in keys:
            del keys[key]
            self._table.delete(key)

    def clear(self, number: int) -> Iterator[None]:
        """Take out all of a session that is over, a few in each step."""
        for count, key in enumerate(self._keys.pop(number, ()), 1):
            self._table.delete(key)
            if not count % AT_ONCE:
                yield
