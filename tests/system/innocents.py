"""Innocent clients, measured while others attack their node."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
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


@attrs.frozen
class Measured:
    """
    When something was asked, how long the answer took, and how long the node worked until then, in
    seconds. What a busy machine adds to the one is not in the other.
    """

    asked: float
    taken: float
    worked: float


@attrs.define(slots=True, kw_only=True)
class Innocent:
    """Does one thing after the other in a thread; `worked` gives the node's seconds of work."""

    pause: float = PAUSE
    worked: Callable[[], float] = attrs.field(default=lambda: 0.0)
    found: list[Measured] = attrs.Factory(list)
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
        """Seconds that each took that was asked in this time, in order of size."""
        return sorted(one.taken for one in self.found if since <= one.asked < until)

    def work_between(self, since: float, until: float) -> list[float]:
        """Likewise: seconds for which the node worked until it had answered."""
        return sorted(one.worked for one in self.found if since <= one.asked < until)

    def live(self) -> None:
        """All that it does, by `measure`, until `is_over`."""
        raise NotImplementedError

    def measure(self, ask: Callable[[], object]) -> None:
        """One question with its answer."""
        asked, before = time.monotonic(), self.worked()
        ask()
        taken = time.monotonic() - asked
        self.found.append(Measured(asked, taken, self.worked() - before))

    def is_over(self) -> bool:
        """True if it is at its end; pauses before the next question."""
        return self._is_over.wait(self.pause)

    def _run(self) -> None:
        try:
            self.live()
        except BaseException as error:
            self.error = error


@attrs.define(slots=True, kw_only=True)
class Pair(Innocent):
    """A pair of clients of one node that exchange one message after the other."""

    address: Address
    topic: str
    size: int = 16
    qos: int = 0

    def live(self) -> None:
        """See the class's text."""
        with (
            RawClient(self.address, timeout=LATE) as sub,
            RawClient(self.address, timeout=LATE) as pub,
        ):
            sub.connect(f"sub {self.topic}")
            sub.subscribe((self.topic, self.qos))
            pub.connect(f"pub {self.topic}")
            payload = b"x" * self.size

            def router() -> None:
                pub.publish(self.topic, payload, qos=self.qos)
                sub.acknowledge(sub.expect_publish(self.topic))

            while not self.is_over():
                self.measure(router)


@attrs.define(slots=True, kw_only=True)
class Newcomer(Innocent):
    """
    A client that connects anew each second, from the host `source` if there is one.

    A refusal raises at the end, unless it `counts_refusals`; `refused` are those counted.
    """

    address: Address
    name: str
    clean: bool = True
    source: str = ""
    counts_refusals: bool = False
    refused: int = 0

    def live(self) -> None:
        """See the class's text."""
        number = 0

        def connect() -> None:
            with RawClient(self.address, timeout=LATE, source=self.source) as client:
                client.connect(f"{self.name} {number}", clean=self.clean)
                client.disconnect()

        while not self.is_over():
            number += 1
            try:
                self.measure(connect)
            except (AssertionError, OSError):
                if not self.counts_refusals:
                    raise
                self.refused += 1


def quantile(times: list[float], share: float) -> float:
    """Of times in order of size; none at all is none that arrived."""
    return times[min(int(share * len(times)), len(times) - 1)] if times else LATE


def resident(node: NodeProcess) -> int:
    """Bytes of memory that the node's process holds."""
    status = Path(f"/proc/{node.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def work_of(*nodes: NodeProcess) -> Callable[[], float]:
    """What gives the seconds for which these nodes' main threads have worked."""
    paths = [Path(f"/proc/{node.pid}/schedstat") for node in nodes]
    return lambda: sum(int(path.read_text().split()[0]) for path in paths) / 1e9


@attrs.frozen
class Ports:
    """Of the node that is attacked."""

    mqtt: Address
    link: Address
    grpc: Address


@attrs.define(slots=True)
class Stranger:
    """A non-blocking connection whose bytes are sent as far as the node takes them."""

    socket: socket.socket
    is_closed: bool = False
    _rest: memoryview = memoryview(b"")

    @classmethod
    def to(cls, address: Address) -> Stranger:
        """Connect."""
        made = socket.create_connection(address, timeout=30)
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


def sent(stranger: Stranger, data: bytes) -> Iterator[None]:
    """Send all of it."""
    while not stranger.send(data) and not stranger.is_closed:
        stranger.read()
        yield
    while not stranger.send(b"") and not stranger.is_closed:
        stranger.read()
        yield
