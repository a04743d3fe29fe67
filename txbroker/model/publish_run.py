"""
Runs: many PUBLISH packets of one source that travel together, as the bytes in which they came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

MOST = 65_535
"""Upper bound of messages in one run."""

Octets = bytes | memoryview
"""Bytes to send or write, or a view into more bytes."""


class PublishRun(Protocol):
    """
    `count` messages in order, at least one and at most `MOST`; none has RETAIN set.

    - `raw`: their packets in sequence. DUP and packet id are the publisher's, and mean nothing any
      more.
    - `size`: the sum of the bytes that the messages count in queues (`Message.size`).
    - `qos`: 0 if all messages have QoS 0; 1 if they have QoS 1 and 2, mixed.
    - `clients`: the ids of the publishers, each once.
    - `places`: for each message the index of its client; None: all are of the first.
    - `edge`: the edge node at which they arrived, "" for this one.
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
