"""
What one client does: it comes with names of its own, uses them, and leaves nothing rightful behind.

Each kind of visit ends without a session: a durable one is discarded by a clean CONNECT, at the
same node or another. The gaps between the steps are those at which a discard once got lost. A visit
that failed may have left a rightful session: `discard_left` ends that. `clear_left` clears what it
had retained.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from random import Random

from tests.support.mqttclient import Client
from tests.support.nodes import Address
from txbroker.mqtt.wire.packets import Will

GAPS = (0.0, 0.0, 0.02, 0.05, 0.1, 0.3)
"""Seconds between a client's steps."""

AT_ONCE = 20
"""Clients that come back at a time."""

PATIENCE = 60.0
"""Seconds in which a whole tree accepts a clean CONNECT."""

Addresses = Callable[[], list[Address]]


class Visits:
    """Visits by number; `done` counts them, `failed` names those that did not get what is due."""

    def __init__(self, addresses: Addresses, rng: Random, zones: list[str]) -> None:
        self.done = 0
        self.failed: list[str] = []
        self._addresses = addresses
        self._rng = rng
        self._zones = zones
        self._numbers = 0
        self._left: list[str] = []
        self._topics: list[str] = []

    async def make(self, goes_on: Callable[[], bool]) -> None:
        """Make one visit after the other while `goes_on`, and end the last."""
        while goes_on():
            self._numbers += 1
            number = self._numbers
            kind = self._rng.choice((self._passer, self._passer, self._roamer, self._keeper))
            topic = f"{self._rng.choice(self._zones)}/v{number}".lstrip("/")
            try:
                await kind(f"v{number}", topic)
            except (OSError, AssertionError, asyncio.CancelledError, TimeoutError) as error:
                if is_cancelled():
                    raise
                self.failed.append(f"{kind.__name__} {number}: {step_of(error)}: {error!r}"[:200])
                self._left.append(f"v{number}")
                self._topics.append(topic)
                await asyncio.sleep(0.05)  # a node that is away is not asked in a tight loop
            self.done += 1

    async def discard_left(self) -> None:
        """No node is away any more: end the sessions of visits that failed."""
        left, self._left = self._left, []
        for first in range(0, len(left), AT_ONCE):
            await asyncio.gather(*map(self._discard, left[first : first + AT_ONCE]))

    async def clear_left(self) -> None:
        """No publish is on its way any more: clear what failed visits had retained."""
        topics, self._topics = self._topics, []
        client = await self._open("clearing")
        for topic in topics:
            await client.publish(f"{topic}/last", b"", 1, retain=True)
        await client.close()

    async def _discard(self, name: str) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while True:
            try:
                client = await self._open(name)
            except (OSError, AssertionError, TimeoutError):
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.2)
            else:
                await client.close()
                return

    async def _passer(self, name: str, topic: str) -> None:
        """A clean session with a will, a filter, a retained message that is cleared again."""
        client = await self._open(
            name, will=Will(topic=f"{topic}/will", payload=b"gone", qos=1, retain=False)
        )
        try:
            await client.subscribe((f"{topic}/#", self._rng.randrange(3)))
            await client.publish(f"{topic}/last", b"kept", 1, retain=True)
            await client.publish(f"{topic}/data", b"x" * self._rng.randrange(200), 2)
            await client.wait_for(2)
            await client.publish(f"{topic}/last", b"", 1, retain=True)
            if self._rng.random() < 0.5:
                await client.close()
        finally:
            client.abort()

    async def _keeper(self, name: str, topic: str) -> None:
        """A durable session that is discarded at once, wherever the client comes next."""
        client = await self._open(name, clean=False)
        try:
            await client.subscribe((f"{topic}/#", 1))
            await client.publish(f"{topic}/data", b"x", 1)
            await client.wait_for(1)
            await self._leave(client)
            client = await self._open(name)
        finally:
            client.abort()

    async def _roamer(self, name: str, topic: str) -> None:
        """A durable session that moves once or twice before it is discarded."""
        client = await self._open(name, clean=False)
        try:
            await client.subscribe((f"{topic}/#", 2))
            for _ in range(self._rng.choice((1, 2))):
                await self._leave(client)
                client = await self._open(name, clean=False)
                assert client.session_present, f"{name}: its session is not found"
            await self._leave(client)
            client = await self._open(name)
            await client.close()
        finally:
            client.abort()

    async def _open(self, name: str, *, clean: bool = True, will: Will | None = None) -> Client:
        address = self._rng.choice(self._addresses())
        return await Client.open(address, name, clean=clean, will=will)

    async def _leave(self, client: Client) -> None:
        if self._rng.random() < 0.5:
            await client.close()
        else:
            client.abort()
        await asyncio.sleep(self._rng.choice(GAPS))


def is_cancelled() -> bool:
    """True if the soak itself ends: an answer that never comes is cancelled with its connection."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def step_of(error: BaseException) -> str:
    """The step of a visit that failed, as it is written here."""
    steps = [
        frame.line or ""
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == __file__
    ]
    return steps[1] if len(steps) > 1 else steps[0]
