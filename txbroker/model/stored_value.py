"""Values that may be long, and so may be elsewhere than in memory."""

from __future__ import annotations

from typing import Protocol


class StoredValue(Protocol):
    """Bytes, or what gives them when they are asked for."""

    def __len__(self) -> int: ...

    def __bytes__(self) -> bytes: ...


def in_memory(value: StoredValue) -> StoredValue:
    """Where nothing is kept elsewhere."""
    return value
