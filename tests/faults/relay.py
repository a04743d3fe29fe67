"""
Relays for every connection between nodes: `python -m tests.faults.relay`, for who is not root.

All nodes are on 127.0.0.1 and tell others another address of the loopback network as theirs, where
one of these relays listens on the same port. Which node has dialled is found in /proc, by the
socket at the other end. A cut holds bytes back, one way or both; what was on its way arrives after
it. There are no packets here that could be lost, but what both ends notice of a loss there is: a
share of what is read waits for as long as TCP takes to repeat it, and again at each repetition.

The first line on stdin is a JSON list of [NAME, LISTEN, TARGET, PORT]; "ready" is answered. Then
orders as in `switch`, and ["pid", NAME, NUMBER].
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from .switch import OUTSIDE, TAG

LONGEST_TAG = 80
REPEAT = 0.2
"""Seconds after which a packet that was lost is sent again: the least that Linux waits."""


class Relays:
    """All of them, and the rules that they share."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._cut: set[tuple[str, str]] = set()
        self._changed = asyncio.Event()
        self._share = 0.0
        self._rng = Random("relays")
        self._watched: Counter[tuple[str, str, str]] | None = None
        self._tasks: dict[asyncio.Task[None], set[str]] = {}

    def order(self, verb: str, *values: Any) -> Any:
        """Carry it out; what is to be answered."""
        if verb == "pid":
            self._pids[values[0]] = values[1]
        elif verb == "cut":
            self._cut = {(source, target) for source, target in values[0]}
            self._changed.set()
            self._changed = asyncio.Event()
        elif verb == "lose":
            self._share = values[0]
        elif verb == "forget":
            for task, ends in self._tasks.items():
                if values[0] in ends:
                    task.cancel()
        elif verb == "watch":
            seen, self._watched = self._watched, Counter() if values[0] else None
            return [[*key, count] for key, count in (seen or {}).items()]
        return None

    async def listen(self, name: str, host: str, target: str, port: int) -> None:
        """In front of this port of that node."""

        async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer, own = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
            source = dialler(peer, own, self._pids)
            task = asyncio.ensure_future(self._relay(source, name, target, port, reader, writer))
            self._tasks[task] = {source, name}
            task.add_done_callback(self._tasks.pop)

        await asyncio.start_server(on_connection, host, port)

    async def _relay(
        self,
        source: str,
        name: str,
        target: str,
        port: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            # The handshake takes both ways.
            await self._passable(source, name)
            await self._passable(name, source)
            there, back = await asyncio.open_connection(target, port)
        except OSError:
            writer.transport.abort()
            return
        for each in (writer, back):
            each.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.gather(
                self._pump(source, name, reader, back), self._pump(name, source, there, writer)
            )
        except asyncio.CancelledError:  # the connection is forgotten, with what waits here
            writer.transport.abort()
            back.transport.abort()

    async def _pump(
        self, source: str, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        rest = b""
        try:
            while data := await reader.read(65_536):
                await self._arrive(source, target)
                rest = self._watch(source, target, rest + data)
                writer.write(data)
                await writer.drain()
            await self._passable(source, target)
            writer.close()
        except OSError:
            writer.transport.abort()

    async def _arrive(self, source: str, target: str) -> None:
        """As soon as nothing is cut, and it is not lost once more."""
        await self._passable(source, target)
        while self._share > 0 and self._rng.random() < self._share:
            await asyncio.sleep(REPEAT)
            await self._passable(source, target)

    async def _passable(self, source: str, target: str) -> None:
        while (source, target) in self._cut:
            await self._changed.wait()

    def _watch(self, source: str, target: str, data: bytes) -> bytes:
        """Count tags; what may be the beginning of one."""
        end = 0
        for found in TAG.finditer(data):
            end = found.end()
            if self._watched is not None:
                self._watched[source, target, found[1].decode("ascii", "replace")] += 1
        return data[max(end, len(data) - LONGEST_TAG) :]


def dialler(peer: tuple[str, int], own: tuple[str, int], pids: dict[str, int]) -> str:
    """The name of the process that has a connection from `peer` to `own`."""
    wanted = [_spelled(peer), _spelled(own)]
    for line in Path("/proc/net/tcp").read_text().splitlines():
        fields = line.split()
        if fields[1:3] == wanted:
            return next((n for n, pid in pids.items() if _has_socket(pid, fields[9])), OUTSIDE)
    return OUTSIDE


def _spelled(address: tuple[str, int]) -> str:
    raw = int.from_bytes(socket.inet_aton(address[0]), sys.byteorder)
    return f"{raw:08X}:{address[1]:04X}"


def _has_socket(pid: int, inode: str) -> bool:
    wanted = f"socket:[{inode}]"
    try:
        return any(_link(entry) == wanted for entry in os.scandir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def _link(entry: os.DirEntry[str]) -> str:
    try:
        return os.readlink(entry.path)
    except OSError:
        return ""


async def main() -> None:
    """Until stdin ends."""
    relays = Relays()
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    for listener in json.loads(await orders.readline()):
        await relays.listen(*listener)
    print(json.dumps("ready"), flush=True)
    while line := await orders.readline():
        print(json.dumps(relays.order(*json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
