"""
Sessions that come back to the same backlog: `python -m benchmarks.catch_up`.

Durable sessions subscribe and leave. A publisher sends all messages at QoS 1. The node is killed
and started again. All sessions come back at once and take everything. Each message has to come to
each session once and in order. The command prints one JSON object. It has rates (deliveries of all
sessions together), CPU time, and the bytes on the disk in relation to one copy of the PUBLISH
packets. It has the node's memory (RssAnon) in the beginning, after publishing, after the start and
in the end.
"""

from __future__ import annotations

import argparse
import json
import selectors
import shutil
import signal
import socket
import struct
import tempfile
import time
from pathlib import Path

import attrs

from benchmarks.client import TOPIC, connect, length, subscribe
from benchmarks.node import Node
from benchmarks.processes import anonymous_memory, cpu_seconds

BURST = 200
"""PUBLISH packets in one write, at the most."""

PATIENCE = 30.0
"""Seconds without any delivery after which it is given up."""


@attrs.define(eq=False)
class Taker:
    """A session that takes its backlog; `next` is the number that has to come."""

    sock: socket.socket
    next: int = 0
    rest: bytes = b""


def packet_of(number: int, size: int) -> bytes:
    """A PUBLISH whose payload of `size` bytes begins with its number; all have the same length."""
    body = struct.pack(">H", len(TOPIC)) + TOPIC + struct.pack(">HI", number % 65_535 + 1, number)
    body += b"x" * (size - 4)
    return b"\x32" + length(len(body)) + body


def publish(node: Node, messages: int, size: int, window: int) -> float:
    """Publish all, with at most `window` unacknowledged; returns the seconds that it took."""
    sock = connect(node.port, b"publisher")
    begin = time.monotonic()
    sent = acked = 0
    while acked < 4 * messages:
        due = min(messages - sent, window - (sent - acked // 4), BURST)
        if due > 0:
            sock.sendall(b"".join(packet_of(number, size) for number in range(sent, sent + due)))
            sent += due
        else:
            acked += len(sock.recv(1 << 20))
    sock.close()
    return time.monotonic() - begin


def catch_up(node: Node, sessions: int, messages: int, size: int) -> float:
    """All sessions take all messages; returns the seconds that it took."""
    whole = len(packet_of(0, size))
    head = whole - size
    fields = struct.Struct(f">{head - 2}xHI{size - 4}x")
    begin = last = time.monotonic()
    selector = selectors.DefaultSelector()
    for number in range(sessions):
        sock = connect(node.port, b"away-%d" % number, clean=False)
        selector.register(sock, selectors.EVENT_READ, Taker(sock))
    missing = sessions
    while missing:
        ready = selector.select(1.0)
        for key, _ in ready:
            last = time.monotonic()
            missing -= take(key.data, fields) == messages
        if time.monotonic() - last > PATIENCE:
            raise SystemExit(f"{missing} sessions do not get on")
    return time.monotonic() - begin


def take(taker: Taker, fields: struct.Struct) -> int:
    """Read, check and acknowledge what there is; returns how many messages have come."""
    data = taker.rest + taker.sock.recv(1 << 18)
    end = len(data) - len(data) % fields.size
    taker.rest = data[end:]
    acks = []
    for packet_id, number in fields.iter_unpack(data[:end]):
        if number != taker.next:
            raise SystemExit(f"message {number} arrived in the place of {taker.next}")
        taker.next += 1
        acks.append(packet_id)
    if acks:
        pairs = [part for packet_id in acks for part in (0x4002, packet_id)]
        taker.sock.sendall(struct.pack(f">{len(pairs)}H", *pairs))
    return taker.next if acks else -1


def used(folder: Path) -> int:
    """Bytes that the files in a folder take on the disk."""
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def run(given: argparse.Namespace) -> dict[str, object]:
    """The whole story."""
    folder = Path(tempfile.mkdtemp(prefix="txbroker-bench-", dir=given.folder))
    limits = {"messages": 2 * given.messages}
    node = Node(folder, durability=given.durability, session_limits=limits)
    try:
        node.start()
        for number in range(given.sessions):
            with connect(node.port, b"away-%d" % number, clean=False) as sock:
                subscribe(sock, TOPIC, 1)
        kept = [anonymous_memory(node.pid)]
        published = publish(node, given.messages, given.size, given.window)
        kept.append(anonymous_memory(node.pid))
        copies = given.messages * len(packet_of(0, given.size))
        disk = used(folder / "data")
        # Messages that `memory` keeps for a while are lost with the process.
        node.end(signal.SIGTERM if given.durability == "memory" else signal.SIGKILL)
        node.start()
        kept.append(anonymous_memory(node.pid))
        before = cpu_seconds(node.pid)
        caught_up = catch_up(node, given.sessions, given.messages, given.size)
        kept.append(anonymous_memory(node.pid))
        deliveries = given.sessions * given.messages
        cpu = (cpu_seconds(node.pid) - before) / deliveries * 1e6
        return {
            "published_per_second": round(given.messages / published),
            "deliveries_per_second": round(deliveries / caught_up),
            "ratio": round(deliveries / caught_up * published / given.messages, 2),
            "cpu_us_a_delivery": round(cpu, 2),
            "disk_to_one_copy": round(disk / copies, 3),
            "memory_kib": kept,
        }
    finally:
        node.end(signal.SIGKILL)
        shutil.rmtree(folder)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--size", type=int, default=100, help="bytes of payload")
    parser.add_argument("--window", type=int, default=4000, help="unacknowledged publishes")
    parser.add_argument("--durability", default="sync")
    parser.add_argument("--folder", default=None, help="where the data is made")
    print(json.dumps(run(parser.parse_args())))


if __name__ == "__main__":
    main()
