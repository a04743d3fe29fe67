"""Accepts connections of a listening socket."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from txbroker.model.network import network_of


def accept(listening: Any) -> tuple[int, Hashable]:
    """
    Accept a connection; return its non-blocking descriptor, or -1 if no connection waits.

    The second value identifies the peer's network. `listening` must not block. Raises `OSError`.
    """
    try:
        accepted, address = listening.accept()
    except BlockingIOError:
        return -1, b""
    accepted.setblocking(False)
    descriptor: int = accepted.detach()
    return descriptor, network_of(address[0])
