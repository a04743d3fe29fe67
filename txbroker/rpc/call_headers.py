"""
Bounds the headers of calls in the bytes of an HTTP/2 peer (RFC 9113), before gRPC reads them.

gRPC bounds the metadata of a call only for a peer that has acknowledged gRPC's SETTINGS frame. From
any other peer gRPC takes 16 MiB for each call, and keeps the metadata of hundreds of calls. Header
blocks without end filled 2.5 GB of a node in 20 s.
"""

from __future__ import annotations

import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of each HTTP/2 client."""

LARGEST_BLOCK: Final = 64 * 1024
"""
Bytes of the headers of one call, and of all headers before the peer acknowledges SETTINGS.

The calls of nodes have some hundred bytes. gRPC acknowledges before its first call.
"""

MOST_FRAMES: Final = 4_096
"""
Frames that may arrive at once.

A flood of the smallest frames would keep the thread busy that reads for all peers.
"""

_FRAME: Final = struct.Struct(">BHBBI")  # length, kind, flags, stream
_HEADERS: Final = 0x1
_SETTINGS: Final = 0x4
_CONTINUATION: Final = 0x9
_ACK: Final = 0x1
_END_HEADERS: Final = 0x4


class CallHeaders:
    """
    The headers that one peer sends.

    `is_begun`: True if the peer has sent the preface. `is_acknowledged`: True if the peer has
    acknowledged SETTINGS.
    """

    __slots__ = ("_block", "_early", "_left", "_part", "is_acknowledged", "is_begun")

    def __init__(self) -> None:
        self.is_begun = False
        self.is_acknowledged = False
        self._part = b""  # the beginning of the preface or of a frame's head
        self._left = 0  # bytes of the last frame that are still to come
        self._block = 0
        self._early = 0

    def find_fault(self, data: bytes) -> str:
        """Read the peer's next bytes; return why the peer must be disconnected; "": no reason."""
        if self._part:
            data, self._part = self._part + data, b""
        at, end = self._left, len(data)
        if not self.is_begun:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                return "the peer does not speak HTTP/2"
            if end < len(PREFACE):
                self._part = data
                return ""
            self.is_begun, at = True, len(PREFACE)
        frames = 0
        while at + _FRAME.size <= end:
            high, low, kind, flags, _ = _FRAME.unpack_from(data, at)
            size = _FRAME.size + (high << 16 | low)
            at += size
            frames += 1
            if kind in (_HEADERS, _CONTINUATION):
                if not self._may_take(size):
                    return f"headers of more than {LARGEST_BLOCK} bytes"
                if flags & _END_HEADERS:
                    self._block = 0
            elif kind == _SETTINGS and flags & _ACK:
                self.is_acknowledged = True
        self._left = max(at - end, 0)
        self._part = data[at:]
        return "" if frames <= MOST_FRAMES else f"more than {MOST_FRAMES} frames at once"

    # internal

    def _may_take(self, size: int) -> bool:
        """Count a frame of headers; return False if it is beyond the bound."""
        self._block += size
        if not self.is_acknowledged:
            self._early += size
        return self._block <= LARGEST_BLOCK and self._early <= LARGEST_BLOCK
