"""An innocent publisher and subscriber, measured while others attack their node."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs

from tests.support.nodes import Address, NodeProcess
from tests.support.rawclient import RawClient

PAUSE = 0.002
"""Seconds between an innocent message's arrival and the next one."""

LATE = 10.0
"""Seconds after which a message counts as lost."""


@attrs.define(slots=True, kw_only=True)
class Pair:
    """A pair of clients of one node that exchange one message after the other in a thread."""

    address: Address
    topic: str
    size: int = 16
    pause: float = PAUSE
    times: list[tuple[float, float]] = attrs.Factory(list)
    error: BaseException | None = None
    _is_over: threading.Event = attrs.Factory(threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        assert self._thread is not None
        self._thread.join(LATE + 5)
        if error is None and self.error is not None:
            raise self.error

    def between(self, since: float, until: float) -> list[float]:
        """Seconds that each message took that was sent in this time, in order of size."""
        return sorted(taken for sent, taken in self.times if since <= sent < until)

    def _run(self) -> None:
        try:
            with (
                RawClient(self.address, timeout=LATE) as sub,
                RawClient(self.address, timeout=LATE) as pub,
            ):
                sub.connect(f"sub {self.topic}")
                sub.subscribe((self.topic, 0))
                pub.connect(f"pub {self.topic}")
                while not self._is_over.wait(self.pause):
                    sent = time.monotonic()
                    pub.publish(self.topic, b"x" * self.size)
                    sub.expect_publish(self.topic)
                    self.times.append((sent, time.monotonic() - sent))
        except BaseException as error:
            self.error = error


def quantile(times: list[float], share: float) -> float:
    """Of times in order of size; none at all is none that arrived."""
    return times[min(int(share * len(times)), len(times) - 1)] if times else LATE


def resident(node: NodeProcess) -> int:
    """Bytes of memory that the node's process holds."""
    status = Path(f"/proc/{node.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


@attrs.define(slots=True)
class Stranger:
    """A non-blocking connection whose bytes are sent as far as the node takes them."""

    socket: socket.socket
    is_closed: bool = False
    _rest: memoryview = memoryview(b"")

    @classmethod
    def to(cls, address: Address) -> Stranger:
        """Connect."""
        made = socket.create_connection(address, timeout=5)
        made.setblocking(False)
        return cls(made)

    def send(self, data: bytes) -> bool:
        """Send what is left of the last, then this, as far as it goes; True if all went."""
        if not self._rest:
            self._rest = memoryview(data)
        try:
            while self._rest:
                self._rest = self._rest[self.socket.send(self._rest) :]
        except BlockingIOError:
            return False
        except OSError:
            self.is_closed = True
            self._rest = memoryview(b"")
        return True

    def read(self) -> None:
        """Throw away what came."""
        with suppress(BlockingIOError):
            try:
                while self.socket.recv(1 << 20):
                    pass
                self.is_closed = True
            except ConnectionError:
                self.is_closed = True

    def close(self) -> None:
        """Leave without a word."""
        self.socket.close()
