"""Runs: many PUBLISH packets of one source that go on together, as the bytes they came in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

MOST = 65_535
"""Messages in one run, at the most."""

Octets = bytes | memoryview
"""Bytes that are sent or written, or a view of them where they lie in more."""


class PublishRun(Protocol):
    """
    `count` messages in order, at least one and at most `MOST`; none has RETAIN set.

    `raw` has their packets one behind the other. A packet's DUP and packet id are its publisher's
    and mean nothing any more. `size` is the sum of what the messages count for in queues
    (`Message.size`). `qos` is 0 where all are of QoS 0, and 1 where they are of QoS 1 and 2, mixed.

    `clients` are the ids of those that published them, each once; `places` has the index of its
    client for each message, and is None where all are of the first. `edge` is the edge node that
    they came in on, "" for this one.
    """

    @property
    def count(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def qos(self) -> int: ...
    @property
    def clients(self) -> tuple[str, ...]: ...
    @property
    def places(self) -> Sequence[int] | None: ...
    @property
    def raw(self) -> Octets: ...
    @property
    def edge(self) -> str: ...
