"""
Replies to `Read`: what a node says of its journal, and what the asking node makes of it.

Pure. A reply is untrusted: it may lie about offsets, packets, publishers and transitions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import pairwise

from txbroker.core import StoredRecords
from txbroker.delegation.peer_checks import check_passages, check_records, check_texts
from txbroker.journal.store.record_format import to_batch
from txbroker.journal.zone_journal import JournalChunk, Records
from txbroker.model.errors import PeerError, StoreError
from txbroker.rpc.zone_convert import passages_from_wire, passages_to_wire
from txbroker.v1 import control_pb2

_LISTED = (b"\xf2", b"\xf3", b"\xf4", b"\xf5")
"""First bytes of stored QoS 1 and 2 packets with a property list; payloads may have them, too."""


def reply_of(found: JournalChunk, request: control_pb2.ReadRequest) -> control_pb2.ReadReply:
    """Return the reply with the records of a chunk."""
    offsets = found.records.stored.offsets()
    packets = _packets(found.records, has_properties=request.reads_properties)
    ages: Iterable[int] = ()
    if any(first in packets for first in _LISTED):
        ages = (round(found.records.age(offset) * 1000) for offset in offsets)
    reply = control_pb2.ReadReply(
        kept=True,
        through=found.through,
        first=found.first,
        offsets=offsets,
        packets=packets,
        ages=ages,
        last=found.last,
        rest=found.rest,
        closed=found.is_closed,
        passages=passages_to_wire(found.passages),
    )
    if request.publishers:
        _name_publishers(reply, found.records.stored)
    return reply


def chunk_of(
    asked: control_pb2.ReadRequest,
    reply: control_pb2.ReadReply,
    known: Callable[[str], int],
    now: Callable[[], float],
) -> JournalChunk:
    """
    Return the records of an answer; raises `PeerError` for a dishonest answer.

    `known`: returns the known epoch of a zone. The records age by the clock `now` from here on.
    """
    check_read(asked, reply)
    if reply.ages and len(reply.ages) != len(reply.offsets):
        raise PeerError("records of which some have no age")
    stored = StoredRecords()
    if reply.offsets:
        try:
            stored.add(*to_batch(reply.offsets, reply.packets, reply.clients, reply.client))
        except (ValueError, OverflowError, StoreError) as error:
            raise PeerError(f"records that cannot be read: {error}") from error
    check_records(asked.zone, stored)
    transitions = passages_from_wire(reply.passages)
    check_passages(asked.zone, transitions, known)
    return JournalChunk(
        records=Records(stored, _ages(reply, now)),
        through=reply.through,
        first=reply.first,
        last=reply.last,
        rest=reply.rest,
        is_closed=reply.closed,
        is_named=asked.publishers,
        passages=transitions,
    )


def check_read(asked: control_pb2.ReadRequest, reply: control_pb2.ReadReply) -> None:
    """Refuse an answer about other offsets than requested; raises `PeerError`."""
    offsets = reply.offsets
    if offsets and not asked.after < offsets[0] <= offsets[-1] <= asked.through:
        raise PeerError("records that nobody has asked for")
    if reply.through < asked.after or any(b <= a for a, b in pairwise(offsets)):
        raise PeerError("records out of their order")
    named = len(reply.clients)
    if named > len(offsets) or (named > 1 and len(reply.client) != len(offsets)):
        raise PeerError("records of which some have no publisher")
    check_texts("the client id of a record", reply.clients)


def _packets(records: Records, *, has_properties: bool) -> bytes:
    """Return the PUBLISH packets of records; an older node would refuse those with a list."""
    if has_properties:
        return records.stored.packets()
    return b"".join([one.message.without_properties().link_packet for one in records])


def _name_publishers(reply: control_pb2.ReadReply, stored: StoredRecords) -> None:
    known: dict[str, int] = {}
    named = [stored.record(place)[5] for place in range(len(stored))]
    reply.client.extend([known.setdefault(client, len(known)) for client in named])
    reply.clients.extend(known)


def _ages(reply: control_pb2.ReadReply, now: Callable[[], float]) -> Callable[[int], float]:
    """Return the age of each record: that of the answer, and the seconds since."""
    if not reply.ages:
        return lambda _: 0.0
    came, offsets, ages = now(), list(reply.offsets), list(reply.ages)
    return lambda offset: ages[bisect_left(offsets, offset)] / 1000 + now() - came
