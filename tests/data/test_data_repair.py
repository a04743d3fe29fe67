"""`txbroker repair`, several times and amid deletions: what was cut off is kept, and in no way."""

from __future__ import annotations

from pathlib import Path

from tests.storage.test_log import batch, last_segment, opened
from tests.storage.test_recovery import reopened, write_synced
from tests.support.crash import snapshot
from txbroker.data.data_repair import repair_files
from txbroker.journal.store import part_folders
from txbroker.storage.log import Batch, SegmentLog
from txbroker.storage.segment import SEGMENT_HEAD


def made_in(folder: Path, count: int = 12) -> tuple[SegmentLog, list[Batch], list[Path]]:
    """A log of segments with three entries each, its entries, and its files."""
    log = opened(folder, segment_bytes=65536)
    made = write_synced(log, *(bytes([number]) * 20_000 for number in range(count)))
    return log, made, sorted(log.folder.glob("*.log"))


def damage(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_log_without_its_last_header_starts_after_the_repair(tmp_path: Path) -> None:
    """The line of the newest segment named the file that was cut off: the log was refused again."""
    log, made, paths = made_in(tmp_path)
    paths[-1].write_bytes(b"")

    assert f"{paths[-1]}: cut off after entry 9" == repair_files(tmp_path)[0]
    log, cut = reopened(log)
    assert ([], made[:9], 10) == (cut, list(log.batches()), log.next)


def test_empty_segment_behind_the_damage_is_no_place_for_the_next_one(tmp_path: Path) -> None:
    """The next one took its name, and was cut off with the rest."""
    log, made, paths = made_in(tmp_path)
    damage(paths[2], 30_000)
    paths[3].write_bytes(paths[3].read_bytes()[:SEGMENT_HEAD])
    empty = paths[3].read_bytes()
    repair_files(tmp_path)
    kept = {path.name: path.read_bytes() for path in log.folder.glob("*.cut")}
    log, cut = reopened(log)

    assert empty == kept[f"{paths[3].stem}.1.cut"]
    assert ([], made[:7]) == (cut, list(log.batches()))
    assert log.next > 10
    following = log.next
    write_synced(log, b"on")
    assert [*made[:7], batch(following, b"on")] == list(reopened(log)[0].batches())


def test_what_an_earlier_repair_has_cut_off_stays(tmp_path: Path) -> None:
    """A disk that is damaged once is damaged twice."""
    log, made, paths = made_in(tmp_path, 3)
    kept = []
    for place in (50_000, 30_000):
        damage(paths[0], place)
        repair_files(tmp_path)
        kept.append({path.name: path.read_bytes() for path in log.folder.glob("*.cut")})

    assert kept[0].items() < kept[1].items()
    assert [f"{paths[0].stem}.{number}.cut" for number in (1, 2)] == sorted(kept[1])
    assert made[:1] == list(reopened(log)[0].batches())


def test_log_that_is_being_deleted_is_left_alone(tmp_path: Path) -> None:
    """Its files go one by one: what is missing is no damage."""
    log, _, paths = made_in(tmp_path)
    assert last_segment(log) == paths[-1]
    paths[1].unlink()
    gone = log.folder.with_name(log.folder.name + part_folders._DROPPED)
    log.folder.rename(gone)
    before = snapshot(gone)

    assert [] == repair_files(tmp_path)
    assert before == snapshot(gone)
