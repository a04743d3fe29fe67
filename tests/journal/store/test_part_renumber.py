"""A part of the journal under another epoch: all that stands in its offsets goes along, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journal.store.test_journal_parts import Store, message, plain
from tests.storage.test_tables import Store as TableStore
from txbroker.journal.store import part_meta
from txbroker.journal.store.part_renumber import renumber_parts, renumber_tables
from txbroker.model.log_position import JournalId
from txbroker.v1 import state_pb2

OLD, NEW, OTHER = JournalId("", 1), JournalId("", 7), JournalId("a", 1)


def placed(part: JournalId, offset: int) -> state_pb2.StoredPlace:
    """A place as messages hold it."""
    return state_pb2.StoredPlace(
        part=state_pb2.StoredPart(zone=part.zone, epoch=part.epoch), offset=offset
    )


def session(*parts: JournalId) -> bytes:
    """A session that stands in these parts."""
    kept = state_pb2.StoredSubscription(filter="#", starts=[placed(part, 5) for part in parts])
    return state_pb2.StoredSession(subscriptions=[kept]).SerializeToString()


def subscription(*parts: JournalId) -> bytes:
    """One of a large session, which stands in a row of its own."""
    kept = state_pb2.StoredSubscription(qos=1, starts=[placed(part, 6) for part in parts])
    return kept.SerializeToString()


def window(*parts: JournalId) -> bytes:
    """A window with a cursor that waits for another part."""
    stored = state_pb2.StoredWindow()
    for index, part in enumerate(parts):
        stored.parts.add(zone=part.zone, epoch=part.epoch)
        cursor = stored.cursors.add(part=index, offset=3)
        cursor.after.CopyFrom(placed(part, 9))
        cursor.stops.append(placed(part, 2))
    return stored.SerializeToString()


def point(epoch: int) -> bytes:
    """A checkpoint or a position."""
    return state_pb2.Checkpoint(epoch=epoch, offset=44).SerializeToString()


def rows(old: JournalId) -> dict[str, dict[bytes, bytes]]:
    """What tables hold where the part is `old`."""
    ceiling = state_pb2.StoredCeiling(epoch=old.epoch, offset=99, boot="b")
    kept = state_pb2.StoredKept(told=1, places=[placed(old, 4), placed(OTHER, 4)])
    return {
        "sessions": {b"one": session(old, OTHER), b"two": session(OTHER)},
        "filters": {
            bytes(8) + b"#": subscription(old, OTHER),
            bytes(8) + b"a": subscription(OTHER),
        },
        "windows": {b"one": window(old, OTHER)},
        "kept": {b"edge": kept.SerializeToString()},
        "zone": {b"checkpoint": point(old.epoch), b"ceiling": ceiling.SerializeToString()},
        "positions": {b"": point(old.epoch), b"a": point(1)},
        "passages": {f" {old.epoch} begins".encode(): b"1", b"a 1 ends": b"1"},
        "ages": {f"{old.epoch} ".encode(): b"old", b"1 a": b"new"},
    }


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    own = store.journals.create(OLD, None)
    own.append(message("one"), None, 0, time=1)
    below = store.journals.create(OTHER, (OLD, 1))
    below.append(message("two"), None, 0, time=1)
    store.end_turn()
    store.journals.close()
    yield store


@pytest.mark.parametrize("times", [1, 2])
def test_part_has_its_records_under_the_new_epoch(store: Store, times: int) -> None:
    """And is named so by the parts that go on from it; a second time changes nothing."""
    for _ in range(times):
        renumber_parts(store.folder / "journal", OLD, NEW, data=store.folder)

    store.start()
    assert {NEW, OTHER} == set(store.journals.parts)
    part = store.journals.parts[NEW]
    assert "7" == part.log.folder.name
    assert [plain(record)[2] for record in part.read(0).records] == [b"one"]
    assert (NEW, 1) == store.journals.parts[OTHER].predecessor


def test_start_after_a_crash_between_file_and_folder(store: Store) -> None:
    """The file names the new epoch, the folder the old one."""
    folder = store.folder / "journal" / "%2E" / "1"
    part_meta.save(folder, part_meta.PartMeta(key=NEW))

    renumber_parts(store.folder / "journal", OLD, NEW, data=store.folder)

    assert not folder.exists()
    store.start()
    assert NEW in store.journals.parts


@pytest.mark.parametrize("times", [1, 2])
def test_tables_name_the_new_epoch(tmp_path: Path, times: int) -> None:
    """All that names the part, and nothing else."""
    bench = TableStore(tmp_path)
    for name, values in rows(OLD).items():
        for key, value in values.items():
            bench.tables.table(name).put(key, value)

    for _ in range(times):
        renumber_tables(bench.tables, OLD, NEW)

    for name, values in rows(NEW).items():
        assert values == dict(bench.tables.table(name).items()), name
