"""What a node's process has open, for a run that failed: a port without room logs nothing."""

from __future__ import annotations

import os
import socket
import struct
from collections import Counter
from contextlib import suppress
from pathlib import Path

STATES = {"01": "open", "06": "time-wait", "08": "close-wait", "0A": "listening"}
"""Of the kernel's TCP states those that say something here."""


def describe(pid: int) -> str:
    """
    How many files the process has open, and each kind of TCP connection of its network: local
    address, state, host at the other end, how many. Empty where the process has ended.
    """
    lines: list[str] = []
    with suppress(OSError):
        files = len(os.listdir(f"/proc/{pid}/fd"))
        lines.append(f"{files} files are open")
        found = Counter(map(_kind, Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]))
        lines += [f"{count:4} {kind}" for kind, count in sorted(found.items())]
    return "\n".join(lines)


def _kind(line: str) -> str:
    _, local, remote, state, *_ = line.split()
    number = int(remote.partition(":")[2], 16)
    # An ephemeral port tells nothing, the port of a service tells who has dialled.
    port = f":{number}" if number < 10_000 else ""
    return f"{_address(local)} {STATES.get(state, state)} {_host(remote)}{port}"


def _host(text: str) -> str:
    return socket.inet_ntoa(struct.pack("<I", int(text.partition(":")[0], 16)))


def _address(text: str) -> str:
    number = int(text.partition(":")[2], 16)
    return f"{_host(text)}:{number if number < 10_000 else '*'}"
