"""A zone on a real disk: what its authority shows, and when."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.apart import run_apart
from tests.support.clock import Clock
from tests.support.recorders import EdgeRecorder
from tests.support.runs import run_of
from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import EdgeGreeting
from txbroker.authority.store import zone_checkpoints, zone_store
from txbroker.authority.store.offset_reservation import OffsetReservation
from txbroker.authority.store.zone_checkpoints import STEP_TOPICS
from txbroker.authority.store.zone_store import Qos0Rule, RecordOrigin, ZoneStore
from txbroker.core import Router
from txbroker.data.data_directory import DataDirectory, StoreSettings
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.delegation.zone_snapshot import EdgeInterest, ReceivedZone
from txbroker.journal.store import journal_parts
from txbroker.journal.store.journal_parts import JournalPart
from txbroker.journal.store.retention import Retention, RetentionPolicy
from txbroker.journal.zone_journal import Record
from txbroker.model.counters import Counters
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.wire.message import Message
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.storage import committer as committer_module
from txbroker.storage.commit_ports import CommitEvents
from txbroker.storage.committer import Committer
from txbroker.storage.lived_time import EntryAges
from txbroker.storage.value_file import RETAINED


class Syncs(EdgeRecorder):
    """An edge that notes how often the disk had been synced when something came."""

    def __init__(self, committer: Committer) -> None:
        super().__init__()
        self.at_delivery: list[int] = []
        self._committer = committer

    def deliver(self, record: Record) -> None:
        self.at_delivery.append(self._committer.syncs)


class Zone:
    """The root zone of a node that was just started."""

    def __init__(self, data: Path, *, stores_qos0: bool = True) -> None:
        self.turn = FlushQueue(lambda action: None)
        self.is_short = False
        self.wall = 1
        self.counters = Counters()
        self.disk = DataDirectory(
            data,
            StoreSettings(
                durability="sync",
                sync_interval=0.1,
                segment_bytes=1 << 20,
            ),
            flush_queue=self.turn,
            timers=Clock(),
            events=CommitEvents(
                on_full=lambda *_: None,
                on_failed=lambda _: None,
            ),
        )
        self.retention = Retention(
            journals=self.disk.journals,
            table=self.disk.tables.table("kept"),
            policy=RetentionPolicy(age=10**9, size=1, session_age=1, session_size=1),
            counters=Counters(),
            ages=EntryAges(self.disk.tables.table("ages"), lambda: 1),
            now=lambda: 1,
        )
        store = self.store = ZoneStore(
            "",
            data_directory=self.disk,
            origin=RecordOrigin("n", lambda: self.wall),
            retention=self.retention,
            ceiling=OffsetReservation(
                self.disk.tables.table("zone"), Counters(), survives_kill=True
            ),
            qos0=Qos0Rule(
                are_stored=stores_qos0,
                is_short=lambda: self.is_short,
                counters=self.counters,
            ),
        )
        self.authority = Authority("", DelegationTable(""), store, Router(lambda: None))
        store.wire(self.authority)
        self.port: EdgeRecorder = EdgeRecorder()

    def open(self, epoch: int) -> None:
        self.authority.open(epoch)
        greeting = EdgeGreeting(edge="e", incarnation=1, filters=("#",), stream=epoch)
        assert self.authority.reception.connect(greeting, self.port)

    def say(self, text: str) -> None:
        self.authority.publish(Message("t", text.encode(), 1))

    @property
    def part(self) -> JournalPart:
        """What is appended to."""
        key = self.store.present
        assert key is not None
        return self.disk.journals.parts[key]

    async def settle(self) -> None:
        """Commit what there is."""
        while not self.authority.is_settled:
            self.turn.end()
            await asyncio.sleep(0.001)


def begin_alone(data: Path, end: int) -> None:
    """A process dies when the part of epoch 4 is there, and nothing that it begins with."""
    zone = Zone(data)
    zone.disk.journals.create(JournalId("", 4), (JournalId("", 1), end))
    zone.disk.close()


def test_nothing_is_shown_before_it_is_synced(tmp_path: Path) -> None:
    """Neither in the turn of the publish nor at its end, when it is written."""

    async def scenario() -> list[int]:
        zone = Zone(tmp_path)
        zone.open(1)
        zone.say("1")
        shown = [len(zone.port.events)]
        zone.turn.end()
        shown.append(len(zone.port.events))
        await zone.settle()
        shown.append(len(zone.port.events))
        zone.disk.close()
        return shown

    assert [0, 0, 1] == run_apart(scenario())


def test_commit_of_an_earlier_epoch_settles_nothing_of_a_later_one(tmp_path: Path) -> None:
    """Its offsets are other ones."""

    async def scenario() -> list[int]:
        zone = Zone(tmp_path)
        zone.open(1)
        for number in range(5):
            zone.say(str(number))
        zone.turn.end()  # written, and being synced
        zone.port = syncs = Syncs(zone.disk.committer)
        zone.open(2)
        zone.say("second epoch")
        await zone.settle()
        zone.disk.close()
        return syncs.at_delivery

    assert [2] == run_apart(scenario())


def test_a_run_behind_single_messages_of_its_turn_has_the_turns_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch may be another one than theirs. By the time of an earlier turn it would expire."""
    monkeypatch.setattr(journal_parts, "BATCH_RECORDS", 2)
    run = run_of([Message("t", b"run", 1)])

    async def scenario() -> list[int]:
        zone = Zone(tmp_path)
        zone.authority.open(1)
        zone.store.append_run(run, None, 0)
        zone.turn.end()
        zone.wall = 1_000
        for text in (b"1", b"2"):
            zone.store.append(Message("t", text, 1), None, 0)
        zone.store.append_run(run, None, 0)
        zone.turn.end()
        times = [batch.time for batch in zone.part.log.batches(0)]
        zone.disk.close()
        return times

    assert [1, 1_000, 1_000] == run_apart(scenario())


def test_a_will_that_was_taken_is_known_after_a_crash(tmp_path: Path) -> None:
    """Its mark is in the batch of its record."""

    async def scenario() -> list[object]:
        will = Message("t", b"gone", 1, client_id="c", will=("whose", 1, 2))
        seen: list[object] = []
        for _ in range(2):
            zone = Zone(tmp_path)
            zone.open(1)
            zone.authority.publish(will)
            await zone.settle()
            seen += [event for event in zone.port.events if event[0] == "deliver"]
            # Nothing is closed in order: that would write a checkpoint.
            zone.disk.close()
        return seen

    assert [("deliver", 1, "gone")] == run_apart(scenario())


def test_trim_waits_for_a_checkpoint_that_is_durable(tmp_path: Path) -> None:
    """Unsettled traffic stops no checkpoint, and the trim goes no further than that."""

    async def scenario() -> list[object]:
        zone = Zone(tmp_path)
        zone.open(1)
        zone.authority.publish(Message("kept", b"value", 1, True), ("far", 1, "", 1), 7)
        await zone.settle()
        first: list[int] = []

        def trim() -> None:
            zone.retention.trim(zone.store.present, zone.store.checkpoint.saved)
            first.append(zone.part.log.first)

        for _ in range(60):
            zone.authority.publish(Message("t", bytes(60_000), 1))
            zone.turn.end()
            await asyncio.sleep(0.001)
        # The segment with the retained value is finished by now, and no checkpoint is durable.
        trim()
        zone.say("on its way to the disk")
        assert not zone.authority.is_settled
        zone.store.checkpoint.sync(trim)
        zone.say("taken while the checkpoint is on its way")
        while len(first) < 2:
            zone.turn.end()
            await asyncio.sleep(0.001)
        assert (
            zone.store.checkpoint.saved <= 61 < zone.store.offset
        )  # the checkpoint speaks of no later one
        zone.disk.close()  # no checkpoint is written, as after a kill
        again = Zone(tmp_path)
        again.open(1)
        kept = again.authority.retained.get("kept")
        marks = dict(again.authority.marks)
        again.disk.close()
        return [first[0], first[1] > 1, kept and kept.payload, marks.get(("far", 1, "", 1))]

    assert [1, True, b"value", 7] == run_apart(scenario())


def retain(zone: Zone, first: int, last: int, value: bytes) -> None:
    for number in range(first, last):
        zone.authority.publish(Message(f"kept/{number}", value, 1, True))


def kept(zone: Zone) -> dict[str, bytes]:
    """What the zone retains."""
    return {one.topic: one.payload for one in zone.authority.retained.within("")}


def test_a_checkpoint_is_written_in_slices(tmp_path: Path) -> None:
    """
    Each of its steps is short, whatever comes in between. A crash after any of them loses nothing,
    and neither does an end in good order.
    """
    count = 4 * STEP_TOPICS

    async def scenario(steps: int, data: Path) -> tuple[int, bool]:
        zone = Zone(data)
        zone.open(1)
        pieces: list[Iterator[None]] = []
        zone.store.checkpoint.wire_slices(pieces.append)
        retain(zone, 0, count, b"1")
        await zone.settle()
        zone.store.checkpoint.write()
        most = 0
        for step in range(steps):
            before = len(zone.disk.tables.table(RETAINED))
            next(pieces[0], None)
            most = max(most, len(zone.disk.tables.table(RETAINED)) - before)
            retain(zone, step * 7, step * 7 + 3, b"%d" % step)
            zone.authority.publish(Message(f"kept/{count - 1 - step}", b"", 1, True))
            await zone.settle()
            zone.store.checkpoint.write()  # the next is not begun before
            assert 1 == len(pieces) or step >= 4
        wanted = kept(zone)
        if steps == 3:
            zone.store.close()
        zone.disk.close()  # else no checkpoint is written, as after a kill
        again = Zone(data)
        again.open(1)
        found = kept(again)
        again.disk.close()
        return most, wanted == found

    for steps in range(7):
        most, is_all = run_apart(scenario(steps, tmp_path / str(steps)))
        assert most <= STEP_TOPICS and is_all


@pytest.mark.parametrize("limit", ["CHECKPOINT_EVERY", "CHECKPOINT_BYTES"])
def test_a_checkpoint_comes_with_many_records_or_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """A start after a crash has little to replay, be the records few and large."""

    async def scenario() -> list[bool]:
        zone = Zone(tmp_path)
        zone.open(1)
        monkeypatch.setattr(zone_store, limit, 5)
        retain(zone, 0, 3, b"1")
        few = zone.store.checkpoint.offset
        await zone.settle()
        retain(zone, 3, 6, b"1")
        await zone.settle()
        zone.disk.close()
        return [few > 0, zone.store.checkpoint.offset > 0]

    assert [False, True] == run_apart(scenario())


def test_an_end_in_good_order_leaves_nothing_to_replay(tmp_path: Path) -> None:
    async def scenario() -> int:
        zone = Zone(tmp_path)
        zone.open(1)
        retain(zone, 0, 5, b"1")
        await zone.settle()
        zone.store.close()
        zone.disk.close()
        again = Zone(tmp_path)
        offset = again.store.checkpoint._known().offset
        again.disk.close()
        return offset

    assert 5 == run_apart(scenario())


def test_a_trim_waits_for_the_last_slice_of_a_checkpoint(tmp_path: Path) -> None:
    """What a checkpoint covers that is being written is not safe before it is whole."""

    async def scenario() -> list[int]:
        zone = Zone(tmp_path)
        zone.open(1)
        pieces: list[Iterator[None]] = []
        zone.store.checkpoint.wire_slices(pieces.append)
        retain(zone, 0, 2 * STEP_TOPICS, b"1")
        await zone.settle()
        saved: list[int] = []
        zone.store.checkpoint.write()
        zone.store.checkpoint.sync(lambda: saved.append(zone.store.checkpoint.saved))
        next(pieces[0])
        for _ in range(5):
            zone.turn.end()
            await asyncio.sleep(0.001)
        assert not saved
        for _ in pieces[0]:
            pass
        while not saved:
            zone.turn.end()
            await asyncio.sleep(0.001)
        zone.disk.close()
        return saved

    assert [2 * STEP_TOPICS] == run_apart(scenario())


def test_a_zone_that_begins_anew_ends_the_checkpoint_of_before(tmp_path: Path) -> None:
    """Its other steps would speak of a part that is no longer appended to."""

    async def scenario() -> list[object]:
        zone = Zone(tmp_path)
        zone.open(1)
        pieces: list[Iterator[None]] = []
        zone.store.checkpoint.wire_slices(pieces.append)
        retain(zone, 0, 3 * STEP_TOPICS, b"1")
        await zone.settle()
        told: list[bool] = []
        zone.store.checkpoint.sync(lambda: told.append(True))
        next(pieces[0])
        zone.open(2)
        for _ in pieces[0]:
            pass
        retain(zone, 0, 5, b"2")
        await zone.settle()
        wanted = kept(zone)
        zone.disk.close()
        again = Zone(tmp_path)
        again.open(2)
        found = kept(again)
        again.disk.close()
        return [told, len(wanted), wanted == found]

    assert [[True], 3 * STEP_TOPICS, True] == run_apart(scenario())


def test_a_crash_at_the_beginning_of_an_epoch_brings_nothing_of_the_last_one_back(
    tmp_path: Path,
) -> None:
    """The part of the epoch is made at once, the tables of the one before go with a commit."""

    async def scenario() -> list[object]:
        first = Zone(tmp_path)
        first.open(1)
        first.authority.publish(Message("kept", b"value", 1, True), ("far", 1, "", 1), 7)
        await first.settle()
        first.store.close()
        first.disk.close()
        crashed = Zone(tmp_path)
        crashed.disk.journals.create(JournalId("", 2), None)
        crashed.disk.close()
        found: list[object] = []
        for _ in range(2):
            zone = Zone(tmp_path)
            zone.open(2)
            found.append((zone.authority.retained.get("kept"), dict(zone.authority.marks)))
            zone.store.close()
            zone.disk.close()
        return found

    assert [(None, {}), (None, {})] == run_apart(scenario())


def test_qos_0_is_delivered_and_not_kept_while_the_disk_is_short(tmp_path: Path) -> None:
    """It waits for nothing; what it left out is counted."""

    async def scenario() -> list[object]:
        zone = Zone(tmp_path)
        zone.open(1)
        zone.authority.publish(Message("t", b"kept", 0))
        zone.is_short = True
        zone.authority.publish(Message("t", b"short", 0))
        zone.authority.append_qos0((run_of([Message("t", b"run", 0)]),))
        zone.say("QoS 1 that was on its way")
        await zone.settle()
        zone.disk.close()
        payloads = [record.message.payload for record in zone.part.read(0).records]
        delivered = sum(event[0] == "deliver" for event in zone.port.events)
        return [payloads, delivered, zone.counters.get("journal.left_out")]

    kept = [b"kept", b"QoS 1 that was on its way"]
    assert [kept, 3, 2] == run_apart(scenario())


def test_qos_0_is_not_kept_where_others_would_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of it made a sync of 64 MiB, behind which all QoS 1 was late."""
    monkeypatch.setattr(committer_module, "LADEN", 10_000)
    monkeypatch.setattr(journal_parts, "BATCH_BYTES", 1_000)

    async def scenario() -> list[object]:
        zone = Zone(tmp_path)
        zone.open(1)
        await zone.settle()
        zone.say("QoS 1")
        for _ in range(20):
            zone.authority.publish(Message("t", bytes(1_000), 0))
            zone.turn.end()
        await zone.settle()
        few = zone.counters.get("journal.left_out")
        zone.authority.publish(Message("t", b"kept again", 0))
        zone.turn.end()
        zone.disk.close()
        payloads = [record.message.payload for record in zone.part.read(0).records]
        return [5 < few < 20, len(payloads) == 22 - few, payloads[-1]]

    assert [True, True, b"kept again"] == run_apart(scenario())


def test_a_checkpoint_goes_in_parts_while_somebody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each QoS 1 would wait for a sync of all retained messages that changed."""
    monkeypatch.setattr(zone_checkpoints, "STEP_BYTES", 2_000)
    monkeypatch.setattr(zone_checkpoints, "PART_BYTES", 6_000)

    async def scenario() -> tuple[list[int], int, int]:
        zone = Zone(tmp_path)
        zone.open(1)
        checkpoint, committer = zone.store.checkpoint, zone.disk.committer
        log = zone.disk._tables_log
        checkpoint.wire_slices(lambda steps: deque(steps))
        for number in range(30):
            zone.authority.publish(Message(f"keep/{number}", bytes(2_000), 1, True))
        await zone.settle()
        checkpoint.write()
        began, parts = log.size, []
        while checkpoint.offset < 30:
            size, syncs = log.size, committer.syncs
            zone.say("waits")
            await zone.settle()
            parts.append((log.size - size) // (committer.syncs - syncs + 1))
        zone.disk.close()
        return parts, len(zone.disk.tables.table(RETAINED)), log.size - began

    parts, count, size = run_apart(scenario())
    assert (30, True) == (count, size > 60_000)
    assert max(parts) < 2 * 6_000


def test_a_checkpoint_in_parts_needs_nobody_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waited may send no more; and the last checkpoint of a node is whole."""
    monkeypatch.setattr(zone_checkpoints, "PART_BYTES", 1)
    monkeypatch.setattr(zone_checkpoints, "STEP_TOPICS", 1)

    async def scenario() -> list[int]:
        zone = Zone(tmp_path)
        zone.open(1)
        checkpoint = zone.store.checkpoint
        checkpoint.wire_slices(lambda steps: deque(steps))
        found = []
        for number in range(20):
            zone.authority.publish(Message(f"keep/{number}", b"kept", 1, True))
        await zone.settle()
        checkpoint.write()
        while checkpoint.offset < 20:
            zone.turn.end()
            await asyncio.sleep(0.001)
        found.append(checkpoint.offset)
        for number in range(20):
            zone.authority.publish(Message(f"keep/{number}", b"changed", 1, True))
        await zone.settle()
        zone.store.close()
        found.append(checkpoint.offset)
        zone.disk.close()
        return found

    assert [20, 40] == run_apart(asyncio.wait_for(scenario(), 30))


@pytest.mark.parametrize("is_killed", [False, True])
def test_another_epoch_of_the_same_data_goes_on(tmp_path: Path, is_killed: bool) -> None:
    """
    It begins at offset 1 with all that was known, checkpoint or not; also where a process dies when
    the part is there, and nothing that it begins with is written.
    """

    async def scenario() -> list[object]:
        zone = Zone(tmp_path)
        zone.open(1)
        zone.authority.publish(Message("kept", b"early", 1, True), ("far", 1, "", 1), 7)
        await zone.settle()
        zone.store.checkpoint.write()
        zone.authority.publish(Message("kept", b"late", 1, True), ("far", 1, "", 1), 8)
        await zone.settle()
        zone.disk.close()
        if is_killed:
            begin_alone(tmp_path, 2)
        seen: list[object] = []
        for _ in range(2):
            again = Zone(tmp_path)
            again.open(4)
            kept = again.authority.retained.get("kept")
            seen += [kept and kept.payload, again.authority.marks.get(("far", 1, "", 1))]
            again.say("new")
            await again.settle()
            seen += [again.authority.offset, again.authority.predecessor]
            again.disk.close()
        return seen

    before = LogPosition(JournalId("", 1), 2)
    assert [b"late", 8, 1, before, b"late", 8, 2, before] == run_apart(scenario())


@pytest.mark.parametrize("is_killed", [False, True])
def test_edges_that_are_away_keep_what_another_epoch_takes(tmp_path: Path, is_killed: bool) -> None:
    """They told their marks before it; also where a process dies when the part has just begun."""

    async def scenario() -> list[object]:
        zone = Zone(tmp_path)
        zone.open(1)
        zone.store.set_low_water("away", {JournalId("", 1): 1}, {})
        zone.say("early")
        await zone.settle()
        zone.disk.close()
        if is_killed:
            begin_alone(tmp_path, 1)
        seen: list[object] = []
        for _ in range(2):
            again = Zone(tmp_path)
            again.open(4)
            again.say("new")
            await again.settle()
            seen.append(again.retention.needs("")["away"])
            again.disk.close()
        return seen

    marks = {JournalId("", 1): 1, JournalId("", 4): 0}
    assert [marks, marks] == run_apart(scenario())


def test_edges_of_an_earlier_time_keep_nothing_of_a_zone_that_comes(tmp_path: Path) -> None:
    """Those that want something of it come along; others would hold the journal for a week."""

    async def scenario() -> set[JournalId]:
        zone = Zone(tmp_path)
        zone.open(1)
        zone.store.set_low_water("gone", {JournalId("", 1): 0}, {})
        received_zone = ReceivedZone()
        received_zone.predecessor = ("above", 4, 9)
        zone.authority.open(3, received_zone)
        await zone.settle()
        zone.disk.close()
        return set(zone.retention.needs("")["gone"])

    assert {JournalId("", 1)} == run_apart(scenario())


def test_edges_that_come_with_a_zone_keep_what_it_takes(tmp_path: Path) -> None:
    """They told their marks to the owner before, and may be away until much has gone."""

    async def scenario() -> dict[str, dict[JournalId, int]]:
        zone = Zone(tmp_path)
        received_zone = ReceivedZone()
        received_zone.interests.append(EdgeInterest(edge="away", incarnation=3, filters=("t",)))
        zone.authority.open(2, received_zone)
        zone.say("new")
        await zone.settle()
        zone.disk.close()
        return zone.retention.needs("")

    assert {"away": {JournalId("", 2): 0}} == run_apart(scenario())
