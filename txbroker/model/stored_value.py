"""Values that may be long, and so may be stored outside memory."""

from __future__ import annotations

from typing import Protocol


class StoredValue(Protocol):
    """Bytes, or an object that fetches them on demand."""

    def __len__(self) -> int: ...

    def __bytes__(self) -> bytes: ...


def in_memory(value: StoredValue) -> StoredValue:
    """Return the value itself, for a node that stores no value elsewhere."""
    return value
