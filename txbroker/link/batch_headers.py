"""
Batch headers: state the common properties of the packets under one header once.

A header describes its packets as pairs of a value and the number of consecutive packets that it
holds for. The values are publishers and journal offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

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


class BatchClients(NamedTuple):
    """
    The publishers of a batch as run lengths: `ids`, `places` among them, and their `counts`.

    `counts` is empty if one publisher sent all `total` packets.
    """

    ids: list[str]
    places: list[int]
    counts: Sequence[int]
    total: int


def clients_of(items: Iterable[Message | Run]) -> BatchClients:
    """Return the publishers of a batch's packets."""
    known: dict[str, int] = {}
    places: list[int] = []
    counts: list[int] = []
    for item in items:
        if isinstance(item, Run) and item.places is not None:
            each = [(item.clients[at], 1) for at in item.places]
        else:
            each = [(item.client_id, item.count)]
        for client_id, count in each:
            place = known.setdefault(client_id, len(known))
            if places and places[-1] == place:
                counts[-1] += count
            else:
                places.append(place)
                counts.append(count)
    return BatchClients(list(known), places, _short(counts), sum(counts))


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


class BatchOffsets(NamedTuple):
    """The offsets of a batch as ranges: their `firsts` and `counts`; see `BatchClients`."""

    firsts: list[int]
    counts: Sequence[int]
    total: int


def offsets_of(ranges: Iterable[tuple[int, int]]) -> BatchOffsets:
    """Merge offset ranges (first, count) into as few as possible; 0 is no offset."""
    firsts: list[int] = []
    counts: list[int] = []
    for first, count in ranges:
        if firsts and first == (firsts[-1] and firsts[-1] + counts[-1]):
            counts[-1] += count
        else:
            firsts.append(first)
            counts.append(count)
    return BatchOffsets(firsts, _short(counts), sum(counts))


def _short(counts: Sequence[int]) -> Sequence[int]:
    return counts if len(counts) > 1 else ()


class RunLengths:
    """
    Values with the number of consecutive packets that each holds for, read from the front.

    Without `counts` the only value holds for all packets. The values of `ranges` are offsets: each
    is that of the first packet, the next packets have the offsets behind it, and 0 stays 0. Raises
    `LinkError` if values and counts do not match each other or the total.
    """

    def __init__(
        self, values: Sequence[int], counts: Sequence[int], total: int, *, ranges: bool = False
    ) -> None:
        counts = counts or [total]
        if len(values) != len(counts) or sum(counts) != total or 0 in counts:
            raise LinkError("a batch says of each of its packets what it says of one")
        self._values = list(reversed(values))
        self._counts = list(reversed(counts))
        self._are_ranges = ranges

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
        if self._are_ranges and self._values[-1]:
            self._values[-1] += taken
        if not self._counts[-1]:
            self._counts.pop()
            self._values.pop()
