"""
A publisher and a subscriber on raw sockets, as one process: `python -m benchmarks.load PORT ...`.

It checks what it measures: every message arrives once and in order, or it says so and fails. What
it prints is one JSON object: messages a second from the first publish to the last delivery, and the
times from a publish to its delivery in microseconds.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import struct
import time

TOPIC = b"bench/topic"
HEAD = struct.Struct(">IQ")


def connect(port: int, client: bytes, *, clean: bool = True) -> socket.socket:
    """A connection after its CONNACK."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    body = b"\x00\x04MQTT\x04" + bytes([2 * clean]) + b"\x00\x00"
    body += struct.pack(">H", len(client)) + client
    sock.sendall(bytes([0x10, len(body)]) + body)
    assert sock.recv(4)[3] == 0, "refused"
    return sock


def subscribe(sock: socket.socket, qos: int) -> None:
    """Subscribe to the topic of this load."""
    body = b"\x00\x01" + struct.pack(">H", len(TOPIC)) + TOPIC + bytes([qos])
    sock.sendall(bytes([0x82, len(body)]) + body)
    assert sock.recv(5)[4] == qos, "not granted"


def sys_value(port: int, name: str) -> str:
    """The next value that the broker publishes below `$SYS`, which it does when it changes."""
    with connect(port, b"bench-sys") as sock:
        topic = b"$SYS/" + name.encode()
        body = b"\x00\x01" + struct.pack(">H", len(topic)) + topic + b"\x00"
        sock.sendall(bytes([0x82, len(body)]) + body)
        buffer = b""
        while True:
            buffer += sock.recv(1 << 16)
            while (found := _packet(buffer, 0)) is not None:
                start, end = found
                if buffer[0] == 0x30:  # not the retained one, which is from before
                    return buffer[start + 2 + len(topic) : end].decode()
                buffer = buffer[end:]


class Load:
    """
    One run; `rate` 0 means as fast as a window of `window` unacknowledged publishes allows,
    `durable` that the subscriber's session survives its connection.
    """

    def __init__(
        self, port: int, *, qos: int, size: int, window: int, rate: float, durable: bool = False
    ) -> None:
        self.qos = qos
        self.window = window
        self.rate = rate
        self.payload = b"x" * max(size - HEAD.size, 0)
        self.sub = connect(port, b"bench-sub", clean=not durable)
        subscribe(self.sub, qos)
        self.pub = connect(port, b"bench-pub")
        self.sent = self.acked = self.received = 0
        self.latencies: list[int] = []
        self._in = b""
        self._acks = b""

    def run(self, seconds: float) -> dict[str, float]:
        """Publish for a while, wait for the rest."""
        selector = selectors.DefaultSelector()
        for sock, on_data in ((self.sub, self._on_delivery), (self.pub, self._on_acks)):
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_READ, on_data)
        begin = time.monotonic()
        end = begin + seconds
        while (now := time.monotonic()) < end or self.received < self.sent:
            if now > end + 30:
                raise SystemExit(f"{self.sent - self.received} of {self.sent} did not arrive")
            if now < end:
                self._publish(now - begin)
            for key, _ in selector.select(0 if now < end and not self.rate else 0.0005):
                key.data(key.fileobj.recv(1 << 20))  # type: ignore[union-attr]
        took = time.monotonic() - begin
        times = sorted(self.latencies)
        return {
            "messages": self.received,
            "rate": self.received / took,
            "p50": times[len(times) // 2],
            "p99": times[len(times) * 99 // 100],
        }

    def _publish(self, elapsed: float) -> None:
        due = self.window - (self.sent - self.acked if self.qos else self.sent - self.received)
        if self.rate:
            due = min(due, int(elapsed * self.rate) - self.sent)
        if due <= 0:
            return
        now = time.monotonic_ns()
        packets = []
        for number in range(self.sent, self.sent + min(due, 200)):
            body = struct.pack(">H", len(TOPIC)) + TOPIC
            if self.qos:
                body += struct.pack(">H", number % 65535 + 1)
            body += HEAD.pack(number, now) + self.payload
            packets.append(bytes([0x30 | self.qos << 1]) + length(len(body)) + body)
        self.sent += len(packets)
        self.pub.setblocking(True)
        self.pub.sendall(b"".join(packets))
        self.pub.setblocking(False)

    def _on_acks(self, data: bytes) -> None:
        self._acks += data
        whole = len(self._acks) // 4
        self.acked += whole
        self._acks = self._acks[whole * 4 :]

    def _on_delivery(self, data: bytes) -> None:
        now = time.monotonic_ns()
        buffer = self._in + data
        at, acks = 0, []
        while (found := _packet(buffer, at)) is not None:
            start, at = found
            start += 2 + len(TOPIC)
            if self.qos:
                acks.append(b"\x40\x02" + buffer[start : start + 2])
                start += 2
            number, sent = HEAD.unpack_from(buffer, start)
            if number != self.received:
                raise SystemExit(f"message {number} arrived in the place of {self.received}")
            self.received += 1
            self.latencies.append((now - sent) // 1000)
        self._in = buffer[at:]
        if acks:
            self.sub.setblocking(True)
            self.sub.sendall(b"".join(acks))
            self.sub.setblocking(False)


def length(size: int) -> bytes:
    """The remaining length of a packet."""
    encoded = bytearray()
    while True:
        size, digit = divmod(size, 128)
        encoded.append(digit | 0x80 * bool(size))
        if not size:
            return bytes(encoded)


def _packet(buffer: bytes, at: int) -> tuple[int, int] | None:
    """Where the contents of the packet at this place begin and end; None: it is not whole."""
    size, shift, place = 0, 0, at + 1
    while place < len(buffer):
        size |= (buffer[place] & 127) << shift
        place += 1
        if buffer[place - 1] < 128:
            return (place, place + size) if place + size <= len(buffer) else None
        shift += 7
    return None


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--qos", type=int, default=1, choices=(0, 1))
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--window", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=0)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--durable", action="store_true", help="the subscriber's session is")
    given = vars(parser.parse_args())
    seconds = given.pop("seconds")
    print(json.dumps(Load(**given).run(seconds)))


if __name__ == "__main__":
    main()
