"""Connections that come."""

from __future__ import annotations

from typing import Any


def accept(listening: Any) -> int:
    """
    The descriptor of the next connection to a listening socket that does not block: it does not
    block either. -1: nobody waits. Raises `OSError`.
    """
    try:
        accepted, _ = listening.accept()
    except BlockingIOError:
        return -1
    accepted.setblocking(False)
    descriptor: int = accepted.detach()
    return descriptor
