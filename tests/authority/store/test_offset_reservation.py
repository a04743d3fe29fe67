"""Offsets that were handed out are not used again, whatever a crash or a restore took."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.apart import run_apart
from tests.support.clock import Clock
from txbroker.authority.store import offset_reservation
from txbroker.authority.store.offset_reservation import BLOCK, OffsetReservation
from txbroker.data.data_directory import DataDirectory, StoreSettings
from txbroker.model.counters import Counters
from txbroker.model.log_position import JournalId
from txbroker.mqtt.wire.message import Message
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.storage.commit_ports import CommitEvents

PART = JournalId("z", 3)


class Lives:
    """The store of a node that is opened again and again; its part is the zone's."""

    def __init__(self, data: Path, *, durability: str = "sync") -> None:
        self.data = data
        self.durability = durability

    def life(self, *payloads: bytes, killed: bool = False) -> list[int]:
        """Start and publish; the offsets given. `killed`: the process does not end in order."""
        return run_apart(self._life(payloads, killed))

    async def _life(self, payloads: tuple[bytes, ...], killed: bool) -> list[int]:
        flush_queue = FlushQueue(lambda action: None)
        data_directory = DataDirectory(
            self.data,
            StoreSettings(
                durability=self.durability,
                sync_interval=0.1,
                segment_bytes=1 << 20,
            ),
            flush_queue=flush_queue,
            timers=Clock(),
            events=CommitEvents(
                on_full=lambda *_: None,
                on_failed=lambda _: None,
            ),
        )
        table = data_directory.tables.table("zone")
        bound = OffsetReservation(table, Counters(), survives_kill=self.durability != "memory")
        part = data_directory.journals.create(PART, None)
        bound.open(part)
        offsets = [part.append(Message("z", payload, 0), None, 0, time=1) for payload in payloads]
        for offset in offsets:
            bound.raise_bound(offset)
        bound.check(part)
        if not killed:
            bound.close(part)
        flush_queue.end()
        data_directory.close()
        return offsets


def test_an_orderly_end_leaves_no_hole(tmp_path: Path) -> None:
    """Nor does a killed process, whose writes the system has."""
    lives = Lives(tmp_path)

    assert [1, 2] == lives.life(b"1", b"2")
    assert [3] == lives.life(b"3", killed=True)
    assert [4] == lives.life(b"4")


def test_a_crash_of_the_machine_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the hole stays, when nothing is published before the next orderly end."""
    lives = Lives(tmp_path)
    lives.life(b"1", killed=True)
    monkeypatch.setattr(offset_reservation, "boot_id", lambda: "another")
    bound = BLOCK

    assert [] == lives.life()
    assert [bound + 1] == lives.life(b"2")
    assert [bound + 2] == lives.life(b"3")


def test_a_run_that_is_not_known_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where /proc is missing, nobody can say that the machine did not crash."""
    monkeypatch.setattr(offset_reservation, "boot_id", lambda: "")
    lives = Lives(tmp_path)
    lives.life(b"1", killed=True)

    assert [BLOCK + 1] == lives.life(b"2")
    assert [BLOCK + 2] == lives.life(b"3")


def test_the_bound_rises_ahead_of_what_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is given above it could be given again."""
    monkeypatch.setattr(offset_reservation, "BLOCK", 8)
    lives = Lives(tmp_path)

    assert list(range(1, 16)) == lives.life(*[b"x"] * 15, killed=True)
