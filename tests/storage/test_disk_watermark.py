"""The watermark of the disk: when publishes stop, when they go on, and who is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clock import Clock
from txbroker.config import ReserveSize
from txbroker.model.counters import Counters
from txbroker.storage import disk_watermark
from txbroker.storage.disk_watermark import LOOK_OFTEN, DiskWatermark

TOTAL = 64 << 20
TENTH = TOTAL // 10


class Disk:
    """A disk of 64 MiB of which a test says how much is free; a tenth is to stay so."""

    def __init__(self) -> None:
        self.free = TOTAL
        self.error: OSError | None = None
        self.clock = Clock()
        self.counters = Counters()
        self.space = DiskWatermark(
            Path("data"),
            ReserveSize(share=0.1),
            timers=self.clock,
            counters=self.counters,
            measure=self.measure,
        )
        self.told: list[bool] = []
        self.space.when_changed(lambda: self.told.append(self.space.is_short))
        self.space.measure()

    def measure(self, folder: Path) -> tuple[int, int]:
        assert Path("data") == folder
        if self.error is not None:
            raise self.error
        return self.free, TOTAL

    def is_short(self, free: int) -> bool:
        """True if it is at the next look, with so many bytes free."""
        self.free = free
        self.space.measure()
        return self.space.is_short


def test_short_below_the_watermark_and_for_a_while_above_it() -> None:
    """Only a quarter more than the reserve ends it."""
    disk = Disk()

    looks = [TENTH, TENTH - 1, TENTH, TENTH * 5 // 4 - 1, TENTH * 5 // 4 + 1, TENTH]

    assert [False, True, True, True, False, False] == [disk.is_short(free) for free in looks]
    assert [True, False] == disk.told
    assert 1 == disk.counters.get("disk.short")


def test_what_was_written_may_make_it_short_before_the_next_look() -> None:
    """It ends with a look in its turn: whoever waits must not begin in the middle of a write."""
    disk = Disk()
    disk.free = TENTH - 1
    disk.space.measure_after_write()
    assert disk.space.is_short

    disk.free = TOTAL
    disk.space.measure_after_write()
    assert disk.space.is_short
    assert not disk.is_short(TOTAL)


def test_a_roomy_disk_is_not_measured_at_each_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody fills it between two looks."""
    monkeypatch.setattr(disk_watermark, "ROOMY", TOTAL // 2)
    disk = Disk()
    disk.free = TENTH - 1
    disk.space.measure_after_write()
    assert not disk.space.is_short
    assert not disk.is_short(TENTH + TOTAL // 2)
    disk.free = TENTH - 1
    disk.space.measure_after_write()
    assert disk.space.is_short


def test_a_short_disk_is_looked_at_often() -> None:
    """Its clients wait; who does not wait any more costs nothing."""
    disk = Disk()
    assert disk.is_short(TENTH - 1)

    disk.free = TOTAL
    disk.clock.advance(LOOK_OFTEN)
    assert not disk.space.is_short
    disk.free = TENTH - 1
    disk.clock.advance(10 * LOOK_OFTEN)
    assert not disk.space.is_short

    disk.space.measure()
    disk.space.stop()
    disk.space.measure()
    assert not disk.clock.alarms


def test_most_of_a_tiny_disk_is_usable() -> None:
    """The default, and a reserve that was meant for a large one."""
    disk = Disk()
    for reserve in (ReserveSize(share=0.05), ReserveSize(size=10 << 30)):
        disk.space.set_reserve(reserve)

        assert not disk.is_short(TOTAL * 3 // 8)
        assert disk.is_short(2 << 20)


def test_another_watermark_counts_at_once() -> None:
    """Whoever lowers it in the topology file wants to go on now."""
    disk = Disk()
    assert disk.is_short(TENTH - 1)

    disk.space.set_reserve(ReserveSize(share=0.05))

    assert not disk.space.is_short


def test_a_disk_that_refuses_a_write_is_short_whatever_it_says() -> None:
    """Until it has taken that write, and there is more than the reserve."""
    disk = Disk()

    disk.space.set_full(True, "no space left on device")
    assert disk.is_short(TOTAL)
    disk.is_short(1)
    disk.space.set_full(False, "")
    assert disk.space.is_short

    assert not disk.is_short(TOTAL)
    assert [True, False] == disk.told


def test_a_disk_whose_syncs_lag_is_short_though_it_has_room() -> None:
    """What waits for a sync is in memory: without an end to publishes it would fill that."""
    disk = Disk()
    waited: list[str] = []
    disk.space.set_behind(True, "64 MiB wait")
    shorts = [disk.space.is_short, disk.is_short(TENTH - 1), disk.is_short(TOTAL)]
    disk.space.when_room("a", lambda: waited.append("a"))
    disk.space.set_behind(False, "few wait")

    assert [True, True, True] == shorts
    assert [True, False] == disk.told
    assert ["a"] == waited
    assert (1, 1) == (disk.counters.get("disk.behind"), disk.counters.get("disk.short"))


def test_who_waits_for_room_is_called_once_unless_it_went() -> None:
    """In the order of asking."""
    disk = Disk()
    disk.is_short(0)
    called: list[str] = []
    for name in ("first", "gone", "second"):
        disk.space.when_room(name, lambda name=name: called.append(name))
    disk.space.forget("gone")
    disk.space.forget("never there")

    disk.is_short(TOTAL)
    disk.is_short(0)
    disk.is_short(TOTAL)

    assert ["first", "second"] == called


def test_a_folder_that_cannot_be_measured_changes_nothing() -> None:
    """Nor does it end the looking."""
    disk = Disk()
    disk.is_short(0)
    disk.error = FileNotFoundError("data")
    assert disk.is_short(TOTAL)

    disk.error = None
    assert not disk.is_short(TOTAL)


def test_a_real_folder(tmp_path: Path) -> None:
    """Its disk has a size, and some of that is free; a missing folder raises."""
    free, total = disk_watermark.measure(tmp_path)

    assert 0 < free <= total
    with pytest.raises(OSError, match="missing"):
        disk_watermark.measure(tmp_path / "missing")
