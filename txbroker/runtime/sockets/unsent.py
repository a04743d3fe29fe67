"""Queues bytes for a socket that the kernel has not accepted yet."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from itertools import islice

from txbroker.model.publish_run import Octets

PIECES = 64
"""Pieces that one system call writes."""


class Unsent:
    """Pieces that are written in order, without a copy; `size`: their bytes."""

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: deque[Octets] = deque()
        self.size = 0

    def add(self, pieces: Sequence[Octets], sent: int = 0) -> None:
        """Append pieces, less their first `sent` bytes."""
        for piece in pieces:
            if sent < len(piece):
                rest = memoryview(piece)[sent:] if sent else piece
                self._pieces.append(rest)
                self.size += len(rest)
            sent = max(sent - len(piece), 0)

    def write(self, descriptor: int) -> bool:
        """
        Write until the non-blocking socket refuses; return True if nothing is left.

        Raises `OSError`.
        """
        try:
            sent = os.writev(descriptor, list(islice(self._pieces, PIECES)))
        except (BlockingIOError, InterruptedError):
            return False
        self.size -= sent
        while sent:
            piece = self._pieces.popleft()
            if sent < len(piece):
                self._pieces.appendleft(memoryview(piece)[sent:])
            sent = max(sent - len(piece), 0)
        return not self._pieces
