"""Accepts connections of a listening socket."""

from __future__ import annotations

from typing import Any


def accept(listening: Any) -> int:
    """
    Accept a connection; return its non-blocking descriptor, or -1 if no connection waits.

    `listening` must not block. Raises `OSError`.
    """
    try:
        accepted, _ = listening.accept()
    except BlockingIOError:
        return -1
    accepted.setblocking(False)
    descriptor: int = accepted.detach()
    return descriptor
