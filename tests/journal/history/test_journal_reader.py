"""Answers of other nodes about their journals: about what was asked, and in order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from tests.support.cluster import on_loop
from tests.support.recorders import cut
from txbroker.core import Router, StoredRecords
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.sessions.journal_read_cache import ReadFailure
from txbroker.journal.history.journal_reader import JournalReader, _Search
from txbroker.journal.history.read_answers import chunk_of
from txbroker.journal.store.record_format import encode_records
from txbroker.journal.zone_journal import JournalChunk, Records
from txbroker.model.errors import PeerError
from txbroker.model.log_position import JournalId
from txbroker.mqtt.wire.encoder import encode_publish
from txbroker.mqtt.wire.message import Message
from txbroker.v1 import control_pb2

ASKED = control_pb2.ReadRequest(zone="a", epoch=1, after=10, through=20)
ONE = encode_publish("a/x", b"1", 1, False, False, 1)


def reply(*offsets: int, packets: bytes | None = None, through: int = 20) -> control_pb2.ReadReply:
    return control_pb2.ReadReply(
        kept=True,
        through=through,
        offsets=offsets,
        packets=ONE * len(offsets) if packets is None else packets,
        last=20,
    )


def known_epoch(apex: str) -> int:
    """Of all zones the same."""
    return 1


def passage(apex: str, left: str, entered: str, epoch: int = 1) -> control_pb2.ReadReply:
    """An answer without records, that says so."""
    said = reply()
    said.passages.add(
        apex=apex,
        left=control_pb2.Predecessor(zone=left, epoch=epoch, offset=1),
        entered=control_pb2.Predecessor(zone=entered, epoch=1, offset=1),
    )
    return said


def test_an_honest_answer_is_taken() -> None:
    assert [11, 20] == list(
        chunk_of(ASKED, reply(11, 20), known_epoch, float).records.stored.offsets()
    )
    assert 10 == chunk_of(ASKED, reply(through=10), known_epoch, float).through
    for said in (passage("a/x", "a", "a/x"), passage("a/x", "a/x", "a"), passage("a", "", "a")):
        assert 1 == len(chunk_of(ASKED, said, known_epoch, float).passages)


def named(clients: list[str], client: list[int]) -> control_pb2.ReadReply:
    """An answer of two records that names their publishers."""
    said = reply(11, 12)
    said.clients.extend(clients)
    said.client.extend(client)
    return said


LIES = {
    "a publisher too few": named(["c", "d"], [1]),
    "a publisher that is not listed": named(["c", "d"], [1, 2]),
    "more publishers than records": named(["c", "d", "e"], [0, 1]),
    "a publisher beyond all numbers": named(["c", "d"], [1, 1 << 20]),
    "a publisher of too long a name": named(["c" * 70_000, "d"], [0, 1]),
    "before": reply(10),
    "behind": reply(21),
    "backwards": reply(12, 11),
    "twice": reply(11, 11),
    "no progress": reply(through=9),
    "too few": reply(11, 12, packets=ONE),
    "too many": reply(11, packets=ONE * 2),
    "no packets": reply(11, packets=b"garbage"),
    "another zone's": reply(11, 12, packets=ONE + encode_publish("b/x", b"1", 1, False, False, 1)),
    "another zone's, of a like name": reply(
        11, packets=encode_publish("ab", b"1", 1, False, False, 1)
    ),
    "a node's own": reply(11, packets=encode_publish("$SYS/x", b"1", 1, False, False, 1)),
    "a passage of another zone": passage("b", "b", ""),
    "a passage to another zone": passage("a/x", "a", "b"),
    "a passage from another zone": passage("a", "b", "a"),
    "a passage at an epoch that no zone reaches": passage("a", "a", "", 1 << 40),
    "a wildcard": reply(11, packets=encode_publish("a/#", b"1", 1, False, False, 1)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_no_answer(lie: str) -> None:
    """It ended the task that had asked, and the session waited for the answer for ever."""
    with pytest.raises(PeerError):
        chunk_of(ASKED, LIES[lie], known_epoch, float)


def reader_of(table: DelegationTable, apex: str | None = None) -> JournalReader:
    """Of a node that keeps nothing, and that serves `apex`, if anything."""
    nothing: Any = SimpleNamespace(table=table, journals={}, root=None)
    authority: Any = SimpleNamespace(apex=apex, epoch=1, serving=True)
    reader = JournalReader(
        data_directory=nothing,
        authority=None if apex is None else authority,
        node_grant=nothing,
        channels=nothing,
        tasks=nothing,
        now=lambda: 0.0,
    )
    zones = ResolverCache(Router(lambda: None), 100)
    if apex is not None:
        route = zones.add(cut(apex))
        route.serve()
        route.learn_cuts({})
    interests: Any = SimpleNamespace(wants_publishers=False)
    reader.wire(zones, interests)
    return reader


class Disk:
    """A node's disk that has one part of a journal."""

    def __init__(self, *messages: Message) -> None:
        self.journals = {JournalId("a", 1): SimpleNamespace(log=SimpleNamespace(written=20))}
        self._messages = messages

    def read(self, *_: object, **__: object) -> JournalChunk:
        stored = StoredRecords()
        body = encode_records(self._messages, {})
        stored.add(11, body, len(self._messages))
        return JournalChunk(records=Records(stored), through=20, first=1, last=20, rest=0)


def test_who_reads_no_properties_gets_records_without() -> None:
    """An older node would refuse the whole answer, and ask again for ever."""
    said = Message("a/x", b"1", 1, properties=b"\x01\x01"), Message("a/y", b"2", 2)
    empty = encode_publish("a/z", b"\0" + b"3", 1, False, False, 1)
    listed = Message("a/z", b"3", 1, packet=bytes((empty[0] | 0xC0,)) + empty[1:])
    reader = reader_of(DelegationTable("b"))
    disk: Any = Disk(*said, listed)
    reader._data_directory = disk
    for reads_properties in (True, False):
        asked = control_pb2.ReadRequest(
            zone="a", epoch=1, after=10, through=20, reads_properties=reads_properties
        )
        told = reader.answer(asked)
        records = list(chunk_of(asked, told, known_epoch, float).records)
        assert [b"1", b"2", b"3"] == [one.message.payload for one in records]
        wanted = [b"\x01\x01", b"", b""] if reads_properties else [b""] * 3
        assert wanted == [one.message.properties for one in records]
        kinds = [one.message.link_packet[0] >> 4 for one in records]
        assert ([15, 3, 15] if reads_properties else [3] * 3) == kinds


@pytest.mark.parametrize("publishers", [("c", "d", "c"), ("c", "c", "c"), ("", "", "d")])
def test_records_name_their_publishers_if_asked(publishers: tuple[str, ...]) -> None:
    """A session that wants no local messages got its own, when it read them from another node."""
    said = [Message("a/x", b"1", 1, client_id=client) for client in publishers]
    reader = reader_of(DelegationTable("b"))
    disk: Any = Disk(*said)
    reader._data_directory = disk
    for is_asked in (True, False):
        asked = control_pb2.ReadRequest(
            zone="a", epoch=1, after=10, through=20, publishers=is_asked
        )
        chunk = chunk_of(asked, reader.answer(asked), known_epoch, float)
        wanted = publishers if is_asked else ("", "", "")
        assert wanted == tuple(one.message.client_id for one in chunk.records)
        assert is_asked == chunk.is_named


@on_loop
async def test_a_part_of_which_nobody_above_has_heard_is_not_gone() -> None:
    """An empty root does not know what it had delegated; what it knows, it knows to be gone."""
    table = DelegationTable("")
    reader = reader_of(table, "")
    found: list[object] = []
    await reader._ask(JournalId("a", 1), 0, 10, found.append)
    unheard = [reader.answer(control_pb2.ReadRequest(zone="a", epoch=1)).unheard]
    table.commit(cut("a", 1), ())
    unheard += [
        reader.answer(control_pb2.ReadRequest(zone=zone, epoch=epoch)).unheard
        for zone, epoch in (("a", 1), ("a", 2), ("", 9))
    ]

    assert [ReadFailure.CUT_OFF] == found
    assert [True, False, True, False] == unheard
    search = _Search(JournalId("a/b", 1), is_owner_known=True)
    search.record(control_pb2.ReadReply(unheard=True), cut(""))
    verdicts = [search.verdict]
    search.record(control_pb2.ReadReply(), cut("a"))
    assert [ReadFailure.CUT_OFF, ReadFailure.GONE] == [*verdicts, search.verdict]
    assert not reader_of(table, "b").answer(control_pb2.ReadRequest(zone="c", epoch=1)).unheard


@on_loop
async def test_a_part_that_was_cut_off_is_told_once() -> None:
    """It is asked for every few seconds, for ever where its node does not come back."""
    table = DelegationTable("")
    table.commit(cut("a", 1), ())
    table.reclaim("a", 0)
    reader = reader_of(table)
    found: list[object] = []
    with capture_logs() as logged:
        for _ in range(3):
            await reader._ask(JournalId("a", 1), 0, 10, found.append)

    assert 3 * [ReadFailure.CUT_OFF] == found
    assert ["journal.missing"] == [line["event"] for line in logged]


@on_loop
async def test_a_part_whose_node_is_silent_is_not_cut_off_with_the_zone_above() -> None:
    """Delegations below a reclaimed zone stand; what its node had of them may be gone with it."""
    table = DelegationTable("")
    table.commit(cut("a", 1), (cut("a/b", 2),))
    table.reclaim("a", 0)
    reader = reader_of(table, "")
    assert reader._zones is not None
    reader._zones.add(cut("a/b", 2))
    reader._channels = SimpleNamespace(stub=lambda *_: SimpleNamespace(Read=silence))  # type: ignore[assignment]
    found: list[object] = []
    for part in (JournalId("a/b", 2), JournalId("a/b", 1), JournalId("a", 1)):
        await reader._ask(part, 0, 10, found.append)

    assert [ReadFailure.UNREACHABLE, ReadFailure.CUT_OFF, ReadFailure.CUT_OFF] == found
    search = _Search(JournalId("a/b", 2), is_owner_known=True)
    search.record(reader.answer(control_pb2.ReadRequest(zone="a/b", epoch=2)), cut(""))
    verdicts = [search.verdict]
    search.is_open = True
    assert [ReadFailure.CUT_OFF, ReadFailure.UNREACHABLE] == [*verdicts, search.verdict]


async def silence(*_: object, timeout: float) -> None:
    """No answer."""
    raise grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata()
    )
