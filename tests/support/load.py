"""
Publishers that do not stop while a test changes the tree, and the proof that nothing went amiss.

Each `Stream` is one client that publishes numbered messages on one topic at one QoS, with a bounded
number unacknowledged. `check` compares what a subscriber got with what was published: every number
once, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

from .mqttclient import TIMEOUT, Client, until

WINDOW = 16
"""Publishes of one stream that may be unacknowledged."""


class Stream:
    """A publisher on one topic; payloads are `NAME:NUMBER`, in `acknowledged` once they are."""

    def __init__(self, client: Client, topic: str, qos: int, *, pause: float = 0.002) -> None:
        self.client = client
        self.topic = topic
        self.qos = qos
        self.name = f"{client.client_id}@{qos}"
        self.count = 0
        self.acknowledged: set[bytes] = set()
        self.is_stopping = False
        self._pause = pause
        self._open: set[asyncio.Future[Any]] = set()
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """Publish no more and wait for all acknowledgements."""
        self.is_stopping = True
        await self._task
        await until(lambda: not self._open, what=f"{self.name}: {len(self._open)} unacknowledged")

    async def progress(self, count: int = 20) -> None:
        """Wait until so many more have been acknowledged."""
        goal = self.count - len(self._open) + count
        await until(
            lambda: self._task.done() or self.count - len(self._open) >= goal,
            what=f"{self.name} goes on",
        )

    @property
    def expected(self) -> list[bytes]:
        """All payloads, in order."""
        return [f"{self.name}:{number}".encode() for number in range(self.count)]

    async def _run(self) -> None:
        while not self.is_stopping and self.client.is_open:
            if len(self._open) < WINDOW:
                payload = f"{self.name}:{self.count}".encode()
                self.count += 1
                acknowledged = self.client.start(self.topic, payload, self.qos)
                if not acknowledged.done():
                    self._open.add(acknowledged)
                    acknowledged.add_done_callback(partial(self._answered, payload))
            await asyncio.sleep(self._pause)

    def _answered(self, payload: bytes, answer: asyncio.Future[Any]) -> None:
        self._open.discard(answer)
        if not answer.cancelled():
            self.acknowledged.add(payload)


async def stop_all(streams: Iterable[Stream]) -> None:
    """Stop them all."""
    for stream in list(streams):
        stream.is_stopping = True
    for stream in streams:
        await stream.stop()


async def check(subscriber: Client, streams: Iterable[Stream], timeout: float = TIMEOUT) -> None:
    """Every message of every stream came once and in order."""
    streams = list(streams)
    try:
        await until(lambda: all(len(_got(subscriber, s)) >= s.count for s in streams), timeout)
    except AssertionError:
        pass  # the comparison below says what is missing
    for stream in streams:
        problem = _difference(stream.expected, _got(subscriber, stream))
        assert not problem, f"{subscriber.client_id}, {stream.name} on {stream.topic}: {problem}"


def _got(subscriber: Client, stream: Stream) -> list[bytes]:
    prefix = f"{stream.name}:".encode()
    return [
        p.payload
        for p in subscriber.received
        if p.topic == stream.topic and p.payload.startswith(prefix)
    ]


def _difference(expected: list[bytes], got: list[bytes]) -> str:
    if expected == got:
        return ""
    missing = [p for p in expected if p not in set(got)]
    twice = sorted({p for p in got if got.count(p) > 1})
    place = next((i for i, (e, g) in enumerate(zip(expected, got, strict=False)) if e != g), -1)
    return (
        f"{len(missing)} missing {missing[:5]}, {len(twice)} twice {twice[:5]}, of {len(expected)};"
        f" first difference at {place}: {got[max(place - 2, 0) : place + 4]}"
    )
