"""Journals: messages by offset, marks with their records, parts that begin, close and go."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.test_committer import Bench
from txbroker.data.data_repair import repair_files
from txbroker.journal.store.journal_parts import BATCH_BYTES, JournalPart, Journals, zone_folder
from txbroker.journal.store.part_meta import FORMAT
from txbroker.journal.store.record_format import decode_records
from txbroker.journal.zone_journal import Record
from txbroker.model.errors import StoreError
from txbroker.model.log_position import JournalId
from txbroker.mqtt.wire.message import Message
from txbroker.storage.committer import Durability
from txbroker.storage.log import Batch

KEY = JournalId(zone="home/garage", epoch=3)
LIVE = ("e1", 7, "home/garage", 1)
OUTBOX = ("e2", 8, "home/garage", 2)

Plain = tuple[int, str, bytes, int, bool, str]


def message(text: str, qos: int = 1, retain: bool = False, client: str = "c") -> Message:
    """A message that is told from others by its payload."""
    return Message(f"home/garage/{text}", text.encode(), qos, retain, client)


def plain(record: Record) -> Plain:
    """What has to be equal of a record."""
    one = record.message
    return record.offset, one.topic, one.payload, one.qos, one.retain, one.client_id


class Store:
    """Journals in a folder; a process that can be killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start()

    def start(self) -> None:
        """A process begins."""
        self.bench = Bench(self.folder / "others", Durability.SYNC)
        self.journals = Journals(
            self.folder / "journal",
            self.bench.committer,
            lambda *what: None,
            segment_bytes=1024 * 1024,
            data=self.folder,
        )

    def end_turn(self) -> list[str]:
        """A turn ends and what the thread has to do is done; what happened."""
        events = self.bench.end_turn()
        while self.bench.work:
            events += self.bench.sync()
        return events

    def part(self) -> JournalPart:
        """A part to work with."""
        return self.journals.create(KEY, None)


# -- appending and reading


def test_messages_come_back_by_offset(tmp_path: Path) -> None:
    """As they were published, with the publisher's id and the time; after a start, too."""
    store = Store(tmp_path)
    part = store.part()
    made = [message("a", 0), message("b", 1, True), message("ü", 2, client="d"), message("", 1)]
    offsets = [part.append(one, LIVE, i, time=50 + i) for i, one in enumerate(made)]
    assert ([1, 2, 3, 4], 5) == (offsets, part.next)
    assert [] == list(part.read(0).records)
    store.end_turn()
    for _ in range(2):
        chunk = part.read(0)
        wanted = [
            (i + 1, one.topic, one.payload, one.qos, one.retain, one.client_id)
            for i, one in enumerate(made)
        ]
        assert wanted == [plain(record) for record in chunk.records]
        assert [50] == [batch.time for batch in part.log.batches()]
        assert (4, 1) == (chunk.through, chunk.earliest)
        assert wanted[2:] == [plain(record) for record in part.read(2).records]
        store.start()
        part = store.part()
    assert part.append(message("e"), LIVE, 9, time=0) == 5


def test_the_raw_packet_is_what_a_link_sends(tmp_path: Path) -> None:
    """Nothing is lost on the way from one node to the next."""
    store = Store(tmp_path)
    part, one = store.part(), message("a", 2, True)
    part.append(one, LIVE, 1, time=0)
    store.end_turn()

    assert one.link_packet == part.read(0).records[0].message.link_packet


def test_a_turn_is_one_batch_up_to_a_size(tmp_path: Path) -> None:
    """Whoever published; so that a small message costs little."""
    store = Store(tmp_path)
    part = store.part()
    size = Message("t", bytes(BATCH_BYTES // 1000)).size
    for i in range(2005):
        one = Message("t", bytes(BATCH_BYTES // 1000), 1, client_id=f"c{i % 3}")
        part.append(one, LIVE if i % 2 else OUTBOX, i, time=i)
    part.append(Message("home/garage/big", bytes(BATCH_BYTES), 1), LIVE, 5000, time=1)
    part.append(message("last"), LIVE, 5001, time=2)
    store.bench.wait("safe")
    store.end_turn()

    full = -(-BATCH_BYTES // size)
    assert [full, full, 2006 - 2 * full, 1] == [one.count for one in part.log.batches()]
    assert store.bench.committer.syncs == 1
    found: list[Record] = []
    while records := part.read(found[-1].offset if found else 0).records:
        found += records
    assert list(range(1, 2008)) == [record.offset for record in found]
    assert [f"c{i % 3}" for i in range(2005)] == [one.message.client_id for one in found[:2005]]


@pytest.mark.parametrize(("limit", "size"), [(1, 10_000), (7, 10_000), (512, 1), (512, 300)])
def test_a_chunk_is_bounded(tmp_path: Path, limit: int, size: int) -> None:
    """By records and bytes; one after the other gives all, whatever the batches."""
    store = Store(tmp_path)
    part = store.part()
    for i in range(60):
        part.append(message(str(i)), LIVE, i, time=0)
        if not i % 9:
            store.end_turn()
    store.end_turn()
    found: list[int] = []
    while records := part.read(found[-1] if found else 0, limit, size).records:
        assert len(records) <= limit
        assert sum(len(record.message.link_packet) for record in list(records)[:-1]) < size
        found += [record.offset for record in records]

    assert list(range(1, 61)) == found


def test_reading_goes_over_holes_and_what_is_gone(tmp_path: Path) -> None:
    """The chunk says how far it looked, and what the first is that is kept."""
    store = Store(tmp_path)
    part = store.part()
    part.append(message("a"), LIVE, 1, time=0)
    part.skip_to(100)
    assert part.next == 100
    assert part.append(message("b"), LIVE, 2, time=0) == 100
    part.skip_to(50)
    assert part.append(message("c"), LIVE, 3, time=0) == 101
    store.end_turn()

    assert [1, 100, 101] == [record.offset for record in part.read(0).records]
    assert (1, 101) == (part.read(0, 1).through, part.read(0).through)
    assert [100, 101] == [record.offset for record in part.read(30).records]
    assert ([], 101) == (list(part.read(101).records), part.read(101).through)
    for _ in range(3):
        part.append(Message("home/garage/big", bytes(1_500_000), 1), LIVE, 9, time=0)
    store.end_turn()
    part.log.trim(101)
    chunk = part.read(0)
    assert (102, 102, 102) == (chunk.earliest, chunk.through, chunk.records[0].offset)


def test_skipping_is_remembered_with_the_next_record(tmp_path: Path) -> None:
    """Offsets above it are never given again."""
    store = Store(tmp_path)
    store.part().skip_to(1000)
    store.part().append(message("a"), None, 0, time=0)
    store.end_turn()
    store.start()

    assert store.part().next == 1001


# -- marks and retained messages


def test_marks_are_in_the_batch_of_their_records(tmp_path: Path) -> None:
    """The highest of each stream; QoS 0 has none."""
    store = Store(tmp_path)
    part = store.part()
    part.append(message("a"), LIVE, 5, time=0)
    part.append(message("b", 0), None, 0, time=0)
    part.append(message("c"), OUTBOX, 9, time=0)
    part.append(message("d"), LIVE, 6, time=0)
    store.end_turn()
    part.append(message("e", 0, True), None, 0, time=0)
    store.end_turn()
    store.start()
    found = list(store.part().origins())

    assert [(1, 4, ((LIVE, 6), (OUTBOX, 9)), False), (5, 5, (), True)] == [
        (one.first, one.last, one.marks, one.has_retained) for one in found
    ]
    assert [5] == [one.first for one in store.part().origins(4)]


def test_retained_messages_are_found_without_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches without any are not decoded."""
    store = Store(tmp_path)
    part = store.part()
    for i in range(50):
        part.append(message(str(i), retain=i in (7, 8, 30)), LIVE, i, time=0)
        if i % 10 == 9:
            store.end_turn()
    decoded: list[int] = []

    def counting(batch: Batch, *args: int) -> object:
        decoded.append(batch.first)
        return decode_records(batch, *args)

    monkeypatch.setattr("txbroker.journal.store.journal_parts.decode_records", counting)

    assert [8, 9, 31] == [record.offset for record, _ in part.retained()]
    assert [1, 31] == decoded
    assert [9, 31] == [record.offset for record, _ in part.retained(8)]


# -- parts


def test_parts_are_there_after_a_start(tmp_path: Path) -> None:
    """With what came before them."""
    store = Store(tmp_path)
    old = store.journals.create(KEY, None)
    old.append(message("a"), LIVE, 1, time=0)
    store.end_turn()
    new = JournalId(zone=KEY.zone, epoch=4)
    store.journals.create(new, (KEY, 1))
    for _ in range(2):
        assert {KEY, new} == set(store.journals.parts)
        parts = [store.journals.parts[key] for key in (KEY, new)]
        assert [None, (KEY, 1)] == [part.predecessor for part in parts]
        assert 1 == len(parts[0].read(0).records)
        store.start()


def test_a_part_that_is_there_is_begun_once(tmp_path: Path) -> None:
    """Beginning it again changes nothing."""
    store = Store(tmp_path)
    part = store.part()

    assert store.journals.create(KEY, (JournalId(zone="x", epoch=1), 5)) is part
    assert store.journals.get(KEY) is part
    assert part.predecessor is None
    assert store.journals.get(JournalId(zone="x", epoch=1)) is None


def test_a_dropped_part_is_gone(tmp_path: Path) -> None:
    """With its files; others stay, and it can begin anew."""
    store = Store(tmp_path)
    store.part().append(message("a"), LIVE, 1, time=0)
    store.journals.create(JournalId(zone=KEY.zone, epoch=4), None)
    store.part().append(message("b"), LIVE, 2, time=0)
    store.bench.end_turn()  # a sync is to come
    store.part().append(message("c"), LIVE, 3, time=0)
    store.bench.wait("goes on")
    store.journals.drop(KEY)
    assert ["goes on"] == store.end_turn()
    assert store.journals.get(KEY) is None
    assert ["4"] == [path.name for path in (tmp_path / "journal" / "home%2Fgarage").iterdir()]
    assert store.part().next == 1
    store.start()
    assert len(store.journals.parts) == 2


def test_a_hole_is_passed_in_one_step(tmp_path: Path) -> None:
    """Also one at the end, and never beyond what may be read."""
    store = Store(tmp_path)
    part = store.part()
    part.append(message("a"), LIVE, 1, time=0)
    store.end_turn()
    far = 1 + (1 << 32)
    part.skip_to(far)
    part.append(message("b"), LIVE, 2, time=0)
    store.end_turn()

    assert far - 1 == part.read(1, through=4096, bound=far + 5).through
    assert 900 == part.read(1, through=512, bound=900).through
    assert 512 == part.read(1, through=512).through
    assert 1 == part.read(0, 1, through=512, bound=far).through
    (record,) = part.read(far - 1, through=far + 1).records
    assert far == record.offset


def test_a_part_that_cannot_be_dropped_now_is_dropped_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that is only gone from memory comes back with the next start."""
    store = Store(tmp_path)
    store.part().append(message("a"), LIVE, 1, time=0)
    store.end_turn()
    with monkeypatch.context() as full:
        full.setattr(os, "rename", no_room)
        with pytest.raises(StoreError, match="cannot be deleted: No space left on device"):
            store.journals.drop(KEY)
    kept = store.journals.get(KEY)
    assert kept is not None
    assert [b"a"] == [record.message.payload for record in kept.read(0).records]

    store.journals.drop(KEY)
    store.start()
    assert not store.journals.parts


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_drop_or_a_beginning_cut_short_leaves_nothing(tmp_path: Path) -> None:
    """The process ended in the middle of it."""
    store = Store(tmp_path)
    store.part().append(message("a"), LIVE, 1, time=0)
    store.end_turn()
    folder = store.part().log.folder
    folder.rename(folder.with_name("3.dropped"))
    (folder.with_name("3.dropped") / "part.json").unlink()
    begun = tmp_path / "journal" / "home%2Fgarage" / "5"
    begun.mkdir()
    (begun / "part.json.new").write_text("{")
    store.start()

    assert {} == store.journals.parts
    assert [begun] == list(folder.parent.iterdir())
    assert store.journals.create(JournalId(zone=KEY.zone, epoch=5), None).next == 1


ZONES = ["", ".", "..", "...", "home", "home/garage", "%2E", "%2e", "ü/ö", "a b", "x" * 3000]


def test_any_zone_has_a_folder_of_its_own(tmp_path: Path) -> None:
    """The root's, odd ones, long ones."""
    long = ["y" * 3000 + end for end in "ab"]
    names = [zone_folder(zone) for zone in ZONES + long]
    assert len(set(names)) == len(names)
    assert zone_folder("") == "%2E"
    assert zone_folder("home/garage") == "home%2Fgarage"
    assert not any("/" in name or len(name) > 255 for name in names)
    store = Store(tmp_path)
    for zone in ZONES + long:
        store.journals.create(JournalId(zone=zone, epoch=1), None)
    store.start()
    assert {*ZONES, *long} == {key.zone for key in store.journals.parts}


def damage_format(raw: dict[str, object]) -> str:
    return json.dumps(raw | {"format": FORMAT + 1})


def of_an_earlier_version(raw: dict[str, object], **changes: object) -> str:
    return json.dumps({"format": 1, "zone": raw["zone"], "epoch": raw["epoch"]} | changes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (damage_format, f"format {FORMAT + 1} is newer than this version's {FORMAT}"),
        (lambda raw: "{", "not readable as a part of a journal"),
        (lambda raw: "[]", "not readable as a part of a journal"),
        (lambda raw: of_an_earlier_version(raw, predecessor=["x"]), "not readable as a part"),
        (lambda raw: json.dumps(raw | {"epoch": 9}), "its checksum does not match; put its copy"),
        (lambda raw: json.dumps({"format": 1}), "not readable as a part of a journal"),
    ],
)
def test_a_part_that_cannot_be_used_is_refused(
    tmp_path: Path, change: Callable[[dict[str, object]], str], said: str
) -> None:
    """In one line that names the file."""
    store = Store(tmp_path)
    file = store.part().log.folder / "part.json"
    file.write_text(change(json.loads(file.read_text())))
    with pytest.raises(StoreError, match=said) as error:
        store.start()

    assert str(error.value).startswith(str(file))
    assert "\n" not in str(error.value)


def test_a_part_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """Its file carries no checksum."""
    store = Store(tmp_path)
    file = store.part().log.folder / "part.json"
    raw = json.loads(file.read_text())
    file.write_text(of_an_earlier_version(raw, predecessor=None))
    store.start()
    assert [KEY] == list(store.journals.parts)


def test_repair_names_a_damaged_part_whose_copy_a_crash_took(tmp_path: Path) -> None:
    """Nobody is told that nothing is damaged where the node refuses to start."""
    store = Store(tmp_path)
    store.part().append(message("a"), LIVE, 1, time=0)
    store.end_turn()
    file = store.part().log.folder / "part.json"
    file.with_suffix(".copy").unlink()
    assert [] == repair_files(tmp_path)
    damaged = file.read_bytes().replace(b"garage", b"garagf")
    file.write_bytes(damaged)

    with pytest.raises(StoreError, match=f"{file}: damaged, with no copy; restore the file"):
        repair_files(tmp_path)
    assert damaged == file.read_bytes()


@pytest.mark.parametrize("damage", ["gone", "flipped"])
def test_repair_puts_the_copy_of_a_part_back(tmp_path: Path, damage: str) -> None:
    """Records of a part that nothing describes are refused, never passed over."""
    store = Store(tmp_path)
    store.part().append(message("a"), LIVE, 1, time=0)
    store.end_turn()
    file = store.part().log.folder / "part.json"
    whole = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(whole.replace(b"garage", b"garagf"))
    with pytest.raises(StoreError, match=f"txbroker repair {tmp_path}$"):
        store.start()
    copy = file.with_suffix(".copy")
    assert [f"{file}: put back from {copy}"] == repair_files(tmp_path)
    assert whole == file.read_bytes()
    store.start()
    assert 2 == store.part().next
    file.unlink()
    copy.unlink()
    with pytest.raises(StoreError, match="missing; restore the folder from a backup"):
        store.start()


def test_corruption_names_the_repair_of_the_data_folder(tmp_path: Path) -> None:
    """As the operator has to type it."""
    store = Store(tmp_path)
    for i in range(3):
        store.part().append(message(str(i)), LIVE, i, time=0)
        store.end_turn()
    file = next(store.part().log.folder.glob("*.log"))
    whole = bytearray(file.read_bytes())
    whole[100] ^= 1
    file.write_bytes(whole)
    with pytest.raises(StoreError, match=f"good entry 0.*txbroker repair {tmp_path}$"):
        store.start()
