"""
The connections of clients that keep to MQTT over every reconnect, clean session 0, and note all
that happens. What they saw is judged by `history`. A client goes where it is told (`go`), and may
be told to stay away for a while (`leave`). What it has to say there is in `publisher` and
`subscriber`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from tests.support import wire
from tests.support.wire import CONNACK, PINGRESP, Packet

from . import cast, payloads
from .events import Connected, Connecting, Disconnected, Haunted

DIAL_TIMEOUT = 4.0
CONNACK_TIMEOUT = 10.0
PING_INTERVAL = 1.0
GHOST_PATIENCE = 15.0
PAUSE = (0.1, 0.8)  # before the next attempt

ILLEGAL = "illegal: "
"""How `Disconnected.why` begins when a node sent what it must not."""

Note = Callable[..., None]
"""Adds an event to the history: the class, and its fields but `at`."""


class Connection(asyncio.Protocol):
    """One TCP connection. What comes is given to `take` until it is lost or given up."""

    def __init__(self, number: int, take: Callable[[Packet], None]) -> None:
        self.number = number
        self.connack: asyncio.Future[Packet] = asyncio.get_running_loop().create_future()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._take = take
        self._buffer = bytearray()
        self._transport: asyncio.Transport
        self._is_given_up = False

    @classmethod
    async def open(
        cls, address: tuple[str, int], number: int, take: Callable[[Packet], None]
    ) -> Connection:
        """Dial; OSError when nobody answers."""
        connection = cls(number, take)
        loop = asyncio.get_running_loop()
        await asyncio.wait_for(loop.create_connection(lambda: connection, *address), DIAL_TIMEOUT)
        return connection

    def send(self, *parts: bytes) -> None:
        """Nothing happens once it is lost."""
        if not self.lost.done():
            self._transport.write(b"".join(parts))

    def end(self, manner: str, why: str) -> None:
        """
        Give it up, once: "close" with DISCONNECT, "abort" with a reset, "abandon" leaves it open,
        unread.
        """
        if self._is_given_up:
            return
        self._is_given_up = True
        if manner == "close":
            self.send(wire.BYE)
            self._transport.close()
        elif manner == "abort":
            self.reset()
        self.stall()
        if not self.lost.done():
            self.lost.set_result(why)

    def reset(self) -> None:
        """End it as a crashed machine does."""
        linger = struct.pack("ii", 1, 0)
        if not self._transport.is_closing():
            own = self._transport.get_extra_info("socket")
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._transport.abort()

    def stall(self) -> None:
        """Read no more."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Read again."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def poke(self) -> None:
        """Send something: a reset that was lost on the way here comes again."""
        if not self._transport.is_closing():
            self._transport.write(wire.PING)

    @property
    def is_open(self) -> bool:
        """True if neither side has closed it, as far as has been read."""
        return not self._transport.is_closing()

    # from asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._is_given_up:
            return
        self._buffer += data
        try:
            while (packet := wire.cut_packet(self._buffer)) is not None and not self._is_given_up:
                if packet.kind == CONNACK and not self.connack.done():
                    self.connack.set_result(packet)
                else:
                    self._take(packet)
        except AssertionError as error:
            self.end("abort", f"{ILLEGAL}{error}")

    def connection_lost(self, error: Exception | None) -> None:
        self._is_given_up = True
        if not self.lost.done():
            self.lost.set_result(f"lost: {error}" if error else "closed by the node")


def will_of(client: str, connection: int, topic: str, qos: int) -> wire.Will:
    """The will that a client gives with its CONNECT."""
    payload = payloads.make(payloads.of_will(client), connection, topic, 0)
    return wire.Will(topic=topic, payload=payload, qos=qos)


class Client:
    """What publishers and subscribers have in common: connections."""

    def __init__(
        self,
        traits: cast.Client,
        addresses: Mapping[str, tuple[str, int]],
        note: Note,
        numbers: Callable[[], int],
        rng: Random,
    ) -> None:
        self.name = traits.name
        self.node = traits.node
        self.is_there = True
        self._traits = traits
        self._addresses = addresses
        self._note = note
        self._numbers = numbers
        self._rng = rng
        self._connection: Connection | None = None
        self._ghosts: list[Connection] = []
        self._called = asyncio.Event()  # told to go somewhere
        self._is_known = False
        self._pinged_at: float | None = None
        self._is_stalled = False

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    # orders

    def go(self, node: str) -> None:
        """Connect to this node."""
        self.node = node
        self.is_there = True
        self._called.set()

    def leave(self, manner: str) -> None:
        """End the connection; the next one comes with `go`."""
        self.is_there = False
        if self._connection is not None:
            if manner == "abandon":
                self._ghosts.append(self._connection)
            self._connection.end(manner, f"left: {manner}")

    def stall(self) -> None:
        """Stop reading; the connection stays."""
        if self._connection is not None:
            self._is_stalled = True
            self._connection.stall()

    def go_on(self) -> None:
        """Read again."""
        self._is_stalled = False
        if self._connection is not None:
            self._connection.go_on()

    async def look_for_ghosts(self) -> None:
        """Connections left open must have been closed by now from the other side."""
        for ghost in self._ghosts:
            ghost.go_on()
            ghost.poke()
        # What was sent to it comes first, and so do the pauses of TCP after losses.
        for _ in range(int(GHOST_PATIENCE / 0.1)):
            if any(ghost.is_open for ghost in self._ghosts):
                await asyncio.sleep(0.1)
        for ghost in self._ghosts:
            if ghost.is_open:
                self._note(Haunted, client=self.name, connection=ghost.number)
                ghost.reset()
        self._ghosts.clear()

    async def run(self) -> None:
        """Connect, again and again, until cancelled."""
        try:
            while True:
                if not self.is_there:
                    self._called.clear()
                    await self._called.wait()
                await self._connect()
                if self.is_there:
                    await asyncio.sleep(self._rng.uniform(*PAUSE))
        finally:
            for ghost in self._ghosts:
                ghost.reset()

    # internal

    async def _connect(self) -> None:
        """One connection from start to end."""
        number, node = self._numbers(), self.node
        about = {"client": self.name, "connection": number}
        address = self._addresses[node]
        try:
            connection = await Connection.open(address, number, self._on_packet)
        except (OSError, TimeoutError):
            self._wander(node)
            return
        is_elsewhere = node != self.node or address != self._addresses[node]
        if not self.is_there or is_elsewhere:
            connection.end("abort", "called away")
            return
        topic, qos = self._traits.will, self._traits.will_qos
        self._note(Connecting, **about, node=node, will=topic, will_qos=qos)
        self._connection = connection
        try:
            will = will_of(self.name, number, topic, qos)
            connection.send(wire.connect(self.name, clean=False, will=will))
            if await self._is_accepted(connection):
                await self._keep(connection)
            else:
                self._wander(node)
        finally:
            self._connection = None
            self._on_disconnected()
            connection.end("abort", "given up")
            self._note(Disconnected, **about, why=connection.lost.result())

    async def _is_accepted(self, connection: Connection) -> bool:
        waiting: set[asyncio.Future[Any]] = {connection.connack, connection.lost}
        await asyncio.wait(waiting, timeout=CONNACK_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        if not connection.connack.done():
            return False
        present, code = connection.connack.result().body
        self._note(
            Connected,
            client=self.name,
            connection=connection.number,
            code=code,
            session_present=bool(present),
        )
        if code == 0:
            self._is_known = True
            self._on_connected(connection, bool(present))
        return code == 0

    async def _keep(self, connection: Connection) -> None:
        """Ping once a second; give up when the answer takes too long."""
        loop = asyncio.get_running_loop()
        self._pinged_at, self._is_stalled = None, False
        while not connection.lost.done():
            await asyncio.wait({connection.lost}, timeout=PING_INTERVAL)
            if self._pinged_at is None:
                self._pinged_at = loop.time()
                self._on_ping()
                connection.send(wire.PING)
            elif self._is_stalled:
                self._pinged_at = loop.time()
            elif loop.time() - self._pinged_at > self._traits.patience:
                connection.end("abort", "no PINGRESP")
                self._wander(self.node)

    def _wander(self, node: str) -> None:
        """This one does not answer."""
        if self._traits.wanders and node == self.node:
            self.node = self._rng.choice(sorted(self._addresses))

    def _on_packet(self, packet: Packet) -> None:
        if packet.kind == PINGRESP:
            self._pinged_at = None
            self._on_pong()
        else:
            self._on_flow(packet)

    # of publishers and subscribers

    def _on_connected(self, connection: Connection, present: bool) -> None:
        raise NotImplementedError

    def _on_flow(self, packet: Packet) -> None:
        raise NotImplementedError

    def _on_disconnected(self) -> None:
        """The connection cannot be used any more."""

    def _on_ping(self) -> None:
        """A PINGREQ is about to be sent."""

    def _on_pong(self) -> None:
        """Its answer has come."""
