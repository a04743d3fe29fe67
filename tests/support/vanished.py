"""Peers that end without a word."""

from __future__ import annotations

import socket

import pytest

TCP_REPAIR = 19


def vanish(connected: socket.socket) -> None:
    """
    Close a connection as a machine without power does: the peer hears nothing, until it asks.

    Skips the test of who is not root.
    """
    try:
        connected.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    except PermissionError:
        pytest.skip("ending a connection without a word needs root")
    connected.close()
