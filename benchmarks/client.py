"""
An MQTT client on a blocking socket, for measurements that need no speed on this side.
"""

from __future__ import annotations

import socket
import struct

TOPIC = b"bench/topic"


def connect(port: int, client: bytes, *, clean: bool = True) -> socket.socket:
    """A connection after its CONNACK."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    body = b"\x00\x04MQTT\x04" + bytes([2 * clean]) + b"\x00\x00"
    body += struct.pack(">H", len(client)) + client
    sock.sendall(bytes([0x10, len(body)]) + body)
    assert sock.recv(4)[3] == 0, "refused"
    return sock


def subscribe(sock: socket.socket, topic: bytes, qos: int) -> None:
    """Subscribe to one filter; the QoS has to be granted."""
    body = b"\x00\x01" + struct.pack(">H", len(topic)) + topic + bytes([qos])
    sock.sendall(b"\x82" + length(len(body)) + body)
    assert sock.recv(5)[4] == qos, "not granted"


def length(size: int) -> bytes:
    """The remaining length of a packet."""
    encoded = bytearray()
    while True:
        size, digit = divmod(size, 128)
        encoded.append(digit | 0x80 * bool(size))
        if not size:
            return bytes(encoded)
