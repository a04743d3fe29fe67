"""
Batch headers: state the common properties of the packets under one header once.

A header describes its packets as pairs of a value and the number of consecutive packets that it
holds for. The values are publishers and journal offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from txbroker.core import Run
from txbroker.delegation.peer_checks import check_texts
from txbroker.link.frames import LinkError
from txbroker.mqtt.wire.message import Message
from txbroker.v1 import link_pb2

MOST = 65_535
"""The most packets under one header."""

BATCH_BYTES = 256 * 1024
"""Bytes at which a batch is full."""

CREDIT_BYTES = 512 * 1024
"""
Received bytes after which a receiver returns credit at once; smaller amounts follow within a
second. A frame for each turn would double the cost of a lone message at both ends.
"""


class BatchClients:
    """The publishers of a batch's packets as run lengths: `ids`, `index`, `counts`."""

    def __init__(self, items: Iterable[Message | Run]) -> None:
        self.ids: list[str] = []
        self.index: list[int] = []
        self.counts: list[int] = []
        self._known: dict[str, int] = {}
        for item in items:
            if isinstance(item, Run) and item.places is not None:
                for place in item.places:
                    self._add(item.clients[place], 1)
            else:
                self._add(item.client_id, item.count)

    def _add(self, client_id: str, count: int) -> None:
        place = self._known.setdefault(client_id, len(self._known))
        if place == len(self.ids):
            self.ids.append(client_id)
        if self.index and self.index[-1] == place:
            self.counts[-1] += count
        else:
            self.index.append(place)
            self.counts.append(count)


def check_clients(batch: link_pb2.Batch, known: tuple[str, ...]) -> tuple[str, ...]:
    """
    Return the publishers of a batch; raises `LinkError`.

    `known` are those of the batch before: mostly the same, and they are not checked again.
    """
    clients = tuple(batch.clients)
    if clients != known:
        check_texts("the client id of a batch", clients)
    if batch.client and max(batch.client) >= len(clients):
        raise LinkError("a batch names a client that it does not list")
    return clients


def name_publishers(run: Run, publishers: list[tuple[int, int]], ids: Sequence[str]) -> None:
    """Set the publishers of a run's messages: pairs of an index of `ids` and a count."""
    if len(publishers) == 1:
        run.clients = (ids[publishers[0][0]],)
        return
    distinct = {publisher: place for place, publisher in enumerate(dict(publishers))}
    run.clients = tuple(ids[publisher] for publisher in distinct)
    if len(distinct) <= 256:
        # Bytes are built, and read by the journal, without a loop over the messages.
        run.places = b"".join([bytes((distinct[one],)) * count for one, count in publishers])
    else:
        run.places = [distinct[publisher] for publisher, count in publishers for _ in range(count)]


def join_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Merge offset ranges (first, count) into as few as possible; 0 is no offset."""
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
    """Return the counts for a header: empty if one value holds for all packets."""
    return counts if len(counts) > 1 else ()


class RunLengths:
    """
    Values with the number of consecutive packets that each holds for, read from the front.

    Without `counts` the only value holds for all packets. Raises `LinkError` if values and counts
    do not match each other or the total.
    """

    def __init__(self, values: Sequence[int], counts: Sequence[int], total: int) -> None:
        counts = counts or [total]
        if len(values) != len(counts) or sum(counts) != total or 0 in counts:
            raise LinkError("a batch says of each of its packets what it says of one")
        self._values = list(reversed(values))
        self._counts = list(reversed(counts))

    def consume(self, count: int) -> list[tuple[int, int]]:
        """Return the values of the next packets, each with its number of consecutive packets."""
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
    """Offsets of packets: each range continues from its first offset, and 0 stays 0."""

    def _pass(self, taken: int) -> None:
        if self._values[-1]:
            self._values[-1] += taken
        super()._pass(taken)
