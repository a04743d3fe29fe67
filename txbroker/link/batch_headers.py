"""
Batch headers: what the packets under one header have in common is said once.

A header says things packet by packet, as pairs of a value and for how many packets in a row it
holds: who published them, where they lie in the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from txbroker.core import Run
from txbroker.link.frames import LinkError
from txbroker.mqtt.wire.message import Message

MOST = 65_535
"""Packets under one header, at the most."""

BATCH_BYTES = 256 * 1024
"""Bytes at which a batch is full."""

CREDIT_BYTES = 512 * 1024
"""
Bytes at which the other end is told that they were taken; of less it hears within a second. A frame
for each turn would double what a lone message costs at both ends.
"""


class BatchClients:
    """Who published the packets of a batch, as they are put together: `ids`, `index`, `counts`."""

    def __init__(self, items: Iterable[Message | Run]) -> None:
        self.ids: list[str] = []
        self.index: list[int] = []
        self.counts: list[int] = []
        known: dict[str, int] = {}
        for item in items:
            client_id = item.client_id
            place = known.setdefault(client_id, len(known))
            if place == len(self.ids):
                self.ids.append(client_id)
            if self.index and self.index[-1] == place:
                self.counts[-1] += item.count
            else:
                self.index.append(place)
                self.counts.append(item.count)


def join_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Offsets as (first, how many): the same with as few as possible; 0 is no offset."""
    firsts: list[int] = []
    counts: list[int] = []
    for first, count in ranges:
        if firsts and first == (firsts[-1] and firsts[-1] + counts[-1]):
            counts[-1] += count
        else:
            firsts.append(first)
            counts.append(count)
    return firsts, counts


def in_short(counts: Sequence[int]) -> Sequence[int]:
    """For how many packets each value holds, as a header says it: not where one holds for all."""
    return counts if len(counts) > 1 else ()


class RunLengths:
    """
    Values that hold for so many packets in a row each, taken from the front; without `counts` the
    only one holds for all.

    Raises `LinkError` where there are not as many of both.
    """

    def __init__(self, values: Sequence[int], counts: Sequence[int], total: int) -> None:
        counts = counts or [total]
        if len(values) != len(counts) or sum(counts) != total or 0 in counts:
            raise LinkError("a batch says of each of its packets what it says of one")
        self._values = list(reversed(values))
        self._counts = list(reversed(counts))

    def take(self, count: int) -> list[tuple[int, int]]:
        """Of the next packets: each value, and for how many in a row it holds."""
        found: list[tuple[int, int]] = []
        while count:
            if not self._values:
                raise LinkError("a PUBLISH on a link follows its batch header")
            value, rest = self._values[-1], self._counts[-1]
            taken = min(rest, count)
            found.append((value, taken))
            self._pass(taken)
            count -= taken
        return found

    def _pass(self, taken: int) -> None:
        self._counts[-1] -= taken
        if not self._counts[-1]:
            self._counts.pop()
            self._values.pop()


class OffsetRanges(RunLengths):
    """Where packets lie: each range goes on from its first offset, 0 stays 0."""

    def _pass(self, taken: int) -> None:
        if self._values[-1]:
            self._values[-1] += taken
        super()._pass(taken)
