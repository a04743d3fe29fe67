"""Peers that end without a word."""

from __future__ import annotations

import ctypes
import socket
import struct

_SO_ATTACH_FILTER = 26

# A program of one instruction for the kernel's packet filter: return 0, which keeps no byte.
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)


def vanish(connected: socket.socket) -> None:
    """
    Let a socket hear and acknowledge nothing any more, as if its machine had lost its power.

    The caller keeps the socket open: its end would be heard.
    """
    program = ctypes.create_string_buffer(_DROP_ALL)
    filter = struct.pack("HL", 1, ctypes.addressof(program))
    connected.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter)
