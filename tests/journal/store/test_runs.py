"""Runs in a journal: their offsets, batches, marks, edges, and what a crash leaves of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import attrs
import pytest

from tests.authority.store.test_zone_store import Zone
from tests.journal.store.test_journal_parts import KEY, LIVE, OUTBOX, Store, message
from tests.support.apart import run_apart
from tests.support.runs import PlainRun, run_of
from txbroker.authority.store import offset_reservation
from txbroker.delegation.rpc.journal_transfer import JournalReceiver
from txbroker.delegation.state.staged_journal import StagedJournals
from txbroker.journal.store.journal_parts import BATCH_BYTES, BATCH_RECORDS, JournalPart
from txbroker.model.errors import CallerError, StoreError
from txbroker.mqtt.wire.message import Message
from txbroker.storage.segment import FORMAT
from txbroker.v1 import control_pb2

KEY_OF_LINK = ("edge", 7, "", 1)


def run(*texts: str, qos: int = 1, edge: str = "", client: str = "c") -> PlainRun:
    """A run of messages that are told from others by their payloads."""
    return run_of([message(text, qos, client=client) for text in texts], edge)


def tiny(count: int) -> PlainRun:
    """A run that has many messages and says that it has no size."""
    packet = Message("t", b"", 0).link_packet
    return attrs.evolve(run("x", qos=0), count=count, size=0, raw=packet * count)


def payloads(part: JournalPart, after: int = 0, limit: int = 512) -> list[str]:
    return [record.message.payload.decode() for record in part.read(after, limit).records]


async def drained(zone: Zone) -> None:
    """Everything is durable."""
    done = asyncio.Event()
    zone.disk.committer.when_durable(done.set)
    zone.turn.end()
    await done.wait()


# -- offsets and batches


def test_messages_and_runs_share_the_offsets(tmp_path: Path) -> None:
    """A run has as many as it has messages; from any of them on it is read, after a start, too."""
    store = Store(tmp_path)
    part = store.part()
    offsets = [
        part.append(message("a"), LIVE, 1, time=1),
        part.append_run(run("b", "c", "d"), LIVE, 4, time=2),
        part.append_run(run("e"), LIVE, 5, time=3),
        part.append(message("f"), LIVE, 6, time=4),
    ]
    assert ([1, 2, 5, 6], 7) == (offsets, part.next)
    store.end_turn()
    for _ in range(2):
        assert 1 == len(list(part.log.batches()))
        for after in range(7):
            assert list("abcdef")[after:] == payloads(part, after)
            assert list("abcdef")[after : after + 2] == payloads(part, after, 2)
            assert min(after + 2, 6) == part.read(after, 2).through
        store.start()
        part = store.part()
    assert 7 == part.append_run(run("g", "h"), LIVE, 8, time=5)


def test_a_run_goes_on_above_a_hole(tmp_path: Path) -> None:
    """As a message does."""
    store = Store(tmp_path)
    part = store.part()
    part.append_run(run("a", "b"), LIVE, 2, time=1)
    part.skip_to(100)

    assert 100 == part.append_run(run("c", "d"), LIVE, 4, time=1)
    store.end_turn()
    assert [1, 2, 100, 101] == [record.offset for record in part.read(0).records]


def test_a_batch_takes_runs_up_to_a_number_of_messages(tmp_path: Path) -> None:
    """Never a part of one."""
    store = Store(tmp_path)
    part = store.part()
    for count in (40_000, 25_535, 1, 60_000, 5_536, BATCH_RECORDS, 1):
        part.append_run(tiny(count), None, 0, time=1)
    store.end_turn()

    assert [65_535, 60_001, 5_536, BATCH_RECORDS, 1] == [b.count for b in part.log.batches()]
    assert part.log.next == part.next


def test_a_batch_takes_runs_up_to_a_size(tmp_path: Path) -> None:
    """The one that goes beyond it is in the batch."""
    store = Store(tmp_path)
    part = store.part()
    half = attrs.evolve(tiny(10), size=BATCH_BYTES // 2)
    for one in (half, tiny(1), half, tiny(1), attrs.evolve(half, size=3 * BATCH_BYTES), half):
        part.append_run(one, None, 0, time=1)
    store.end_turn()

    assert [21, 11, 10] == [batch.count for batch in part.log.batches()]


@pytest.mark.parametrize("count", [0, 65_536])
def test_a_run_has_few_enough_messages(tmp_path: Path, count: int) -> None:
    """More could not be told apart in one batch."""
    with pytest.raises(CallerError, match=f"1 to 65535 messages, not {count}"):
        Store(tmp_path).part().append_run(tiny(count), None, 0, time=1)


# -- marks and crashes


def test_the_mark_of_a_run_is_that_of_its_last_message(tmp_path: Path) -> None:
    """Beside those of other streams in the batch; QoS 0 has none."""
    store = Store(tmp_path)
    part = store.part()
    part.append_run(run("a", "b"), LIVE, 12, time=0)
    part.append_qos0([run("c", "d", qos=0)], time=0)
    part.append(message("e"), OUTBOX, 9, time=0)
    part.append_run(run("f"), LIVE, 13, time=0)
    store.end_turn()
    part.append_qos0([run("g", qos=0)], time=0)
    store.bench.wait("written")
    store.end_turn()
    store.start()

    assert [(1, 6, ((LIVE, 13), (OUTBOX, 9)), False), (7, 7, (), False)] == [
        (one.first, one.last, one.marks, one.has_retained) for one in store.part().origins()
    ]


def test_marks_of_runs_are_known_after_a_crash(tmp_path: Path) -> None:
    """Of those that were written, and of no other."""

    async def scenario() -> list[int | None]:
        seen: list[int | None] = []
        zone = Zone(tmp_path)
        zone.open(1)
        zone.store.append_run(run("a", "b", "c"), KEY_OF_LINK, 3)
        zone.turn.end()
        zone.store.append_run(run("d", "e"), KEY_OF_LINK, 5)
        for _ in range(2):
            # Nothing is closed in order: that would write a checkpoint.
            zone = Zone(tmp_path)
            zone.open(1)
            seen += [zone.authority.marks.get(KEY_OF_LINK), zone.store.offset]
        return seen

    assert [3, 3, 3, 3] == run_apart(scenario())


def test_offsets_of_runs_are_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is raised by a run as by its last message."""
    monkeypatch.setattr(offset_reservation, "BLOCK", 100)

    async def scenario() -> int:
        zone = Zone(tmp_path)
        zone.open(1)
        texts = [str(number) for number in range(80)]
        assert 1 == zone.store.append_run(run(*texts), None, 0)
        zone.turn.end()
        monkeypatch.setattr(offset_reservation, "boot_id", lambda: "another")
        zone = Zone(tmp_path)
        zone.open(1)
        return zone.store.offset

    assert 180 == run_apart(scenario())


# -- the zone's store


@pytest.mark.parametrize("stores_qos0", [True, False])
def test_runs_of_qos_0_are_kept_where_the_key_says_so(tmp_path: Path, stores_qos0: bool) -> None:
    """`journal: all`; with `qos12` and `none` they have no offset. The others are kept."""

    async def scenario() -> tuple[list[int], list[str]]:
        zone = Zone(tmp_path, stores_qos0=stores_qos0)
        zone.open(1)
        offsets = [
            zone.store.append_qos0([run("a", qos=0), run("b", qos=0)]),
            zone.store.append_run(run("c", "d", qos=2), KEY_OF_LINK, 2),
            zone.store.append(message("e", 0), None, 0),
            zone.store.append_run(run("f"), None, 0),
        ]
        zone.turn.end()
        found = payloads(zone.part)
        zone.disk.close()
        return offsets, found

    kept = ([2, 3, 5, 6], list("abcdef")), ([0, 1, 0, 3], list("cdf"))
    assert kept[not stores_qos0] == run_apart(scenario())


def test_runs_are_told_of_when_they_are_durable(tmp_path: Path) -> None:
    """All of a turn at once; QoS 0 alone is not waited for."""

    async def scenario() -> list[int]:
        zone = Zone(tmp_path)
        zone.open(1)
        told: list[int] = []
        zone.authority.on_durable = told.append  # type: ignore[method-assign]
        zone.store.append_qos0([run("a", qos=0)])
        await drained(zone)
        zone.store.append_run(run("b", "c"), None, 0)
        zone.store.append_run(run("d", "e", qos=2), None, 0)
        assert 0 == zone.store.durable
        await drained(zone)
        assert 5 == zone.store.durable
        zone.disk.close()
        return told

    assert [5] == run_apart(scenario())


def test_a_record_names_the_edge_that_it_came_in_on(tmp_path: Path) -> None:
    """This node where it was no other; also after the journal has gone to the parent."""

    async def scenario() -> list[tuple[str, str]]:
        zone = Zone(tmp_path)
        zone.open(1)
        zone.store.append(Message("t", b"", 0, client_id="a"), None, 0)
        zone.store.append(Message("t", b"", 1, client_id="a", edge="far"), KEY_OF_LINK, 1)
        zone.store.append_run(run("x", client="b", edge="far"), KEY_OF_LINK, 2)
        zone.store.append_run(run("x", client="b"), None, 0)
        zone.turn.end()
        parent = Store(tmp_path / "parent")
        arrivals = StagedJournals(
            tmp_path / "arriving", parent.bench.committer, lambda *_: None, segment_bytes=1 << 20
        )
        arriving = arrivals.start("")
        arriving.start_part(zone.part.key, None)
        for batch in zone.part.log.batches():
            await arriving.append(batch)
        parent.end_turn()
        arriving.close()
        arrivals.adopt("", parent.journals)
        zone.disk.close()
        records = parent.journals.parts[zone.part.key].read(0).records
        return [(record.message.client_id, record.message.edge) for record in records]

    assert [("a", "n"), ("a", "far"), ("b", "far"), ("b", "n")] == run_apart(scenario())


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_a_journal_of_another_format_does_not_arrive(tmp_path: Path, other: int) -> None:
    """Its batches go as they are stored."""
    store = Store(tmp_path)
    arrivals = StagedJournals(
        tmp_path / "arriving", store.bench.committer, lambda *_: None, segment_bytes=1 << 20
    )

    def part(version: int) -> control_pb2.HandBackRequest:
        header = control_pb2.JournalPart(zone=KEY.zone, epoch=KEY.epoch, format=version)
        return control_pb2.HandBackRequest(part=header)

    receiver = JournalReceiver(
        arrivals.start(KEY.zone), KEY, is_full=lambda: False, known=lambda _: 0
    )
    assert run_apart(receiver.receive(part(FORMAT)))
    with pytest.raises(StoreError, match=f"comes in format {other}") as error:
        run_apart(receiver.receive(part(other)))
    assert "\n" not in str(error.value)
