"""Files replaced as a whole: what arrived in a handover is there in full, or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.support.recorders import cut
from txbroker.delegation.delegation_table import Delegation, DelegationState
from txbroker.delegation.state.received_zone_file import FORMAT, ReceivedZoneFile
from txbroker.delegation.zone_snapshot import EdgeInterest, ReceivedZone, StagedZone, ZoneSnapshot
from txbroker.model.errors import StoreError
from txbroker.mqtt.wire.message import Message
from txbroker.storage import atomic_file
from txbroker.storage.files import DiskFull
from txbroker.v1 import store_pb2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "incoming"


def zone(payload: bytes = b"on", count: int = 3) -> StagedZone:
    """All that moves with a zone."""
    received_zone = ReceivedZone()
    received_zone.merge(
        ZoneSnapshot(
            retained=tuple(Message(f"a/ü/{n}", payload, n % 3, True) for n in range(count)),
            interests=(EdgeInterest(edge="porch", incarnation=2, filters=("a/#", "+/x")),),
            marks=((("porch", 2, "a", 5), 17),),
        )
    )
    return StagedZone(
        apex="a",
        epoch=4,
        incoming=received_zone,
        subtree=DelegationState(
            delegations=(Delegation(cut=cut("a/b", 2), below=(cut("a/b/c"),)),),
            epochs={"a/b": 2, "a/d": 7},
            reclaimed=(cut("a/d", 6),),
        ),
    )


def contents(staged_zone: StagedZone | None) -> tuple[object, ...]:
    """What can be compared."""
    assert staged_zone is not None
    received_zone = staged_zone.incoming
    retained = {t: (m.payload, m.qos, m.retain) for t, m in received_zone.retained.items()}
    return (
        staged_zone.apex,
        staged_zone.epoch,
        staged_zone.subtree,
        retained,
        received_zone.interests,
        received_zone.marks,
    )


def test_zone_is_loaded_as_it_was_saved(path: Path) -> None:
    """Every part of it, and the last one saved."""
    file = ReceivedZoneFile(path)
    file.save(zone(b"old"))
    file.save(zone())

    assert contents(zone()) == contents(ReceivedZoneFile(path).load())


def test_large_zone_is_kept_in_parts(path: Path) -> None:
    """A message of protobuf has its limits."""
    large = zone(b"x" * 400_000, count=10)
    ReceivedZoneFile(path).save(large)

    assert contents(large) == contents(ReceivedZoneFile(path).load())
    assert len(atomic_file.from_frames(path) or ()) > 3


def test_nothing_arrived(path: Path) -> None:
    """Neither at first nor after it was removed."""
    file = ReceivedZoneFile(path)
    before = file.load()
    file.save(zone())
    file.remove()
    file.remove()

    assert (before, file.load()) == (None, None)


def test_newer_format_is_refused(path: Path) -> None:
    """Not guessed at."""
    newer = store_pb2.Arrived(format=FORMAT + 1).SerializeToString()
    atomic_file.replace(path, atomic_file.to_frames([newer]))

    with pytest.raises(StoreError, match=f"format {FORMAT + 1} is newer"):
        ReceivedZoneFile(path).load()


def test_every_damage_is_found(path: Path) -> None:
    """One byte changed, or the end missing: never half a zone."""
    ReceivedZoneFile(path).save(zone())
    good = path.read_bytes()
    for position in range(len(good)):
        path.write_bytes(good[:position])
        with pytest.raises(StoreError):
            ReceivedZoneFile(path).load()
        changed = bytes([good[position] ^ 0x10])
        path.write_bytes(good[:position] + changed + good[position + 1 :])
        with pytest.raises(StoreError):
            ReceivedZoneFile(path).load()


def test_file_without_its_head_is_refused(path: Path) -> None:
    """Whole as a file, and yet no zone."""
    atomic_file.replace(path, atomic_file.to_frames([]))

    with pytest.raises(StoreError, match="not readable as a zone's state"):
        ReceivedZoneFile(path).load()


def test_it_is_durable_when_save_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data, name, folder: in this order."""
    events: list[str] = []
    fdatasync, fsync, replace = os.fdatasync, os.fsync, Path.replace
    monkeypatch.setattr(os, "fdatasync", lambda fd: (events.append("data"), fdatasync(fd)))
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("folder"), fsync(fd)))
    monkeypatch.setattr(
        Path, "replace", lambda self, to: (events.append("name"), replace(self, to))[1]
    )
    ReceivedZoneFile(path).save(zone())

    assert ["data", "name", "folder"] == events


def test_full_disk_leaves_the_old_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is told with the file's name."""
    ReceivedZoneFile(path).save(zone(b"old"))

    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(StoreError, match=r"incoming: cannot be written: No space left"):
        ReceivedZoneFile(path).save(zone())

    assert contents(zone(b"old")) == contents(ReceivedZoneFile(path).load())


def test_a_file_that_does_not_fit_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes would occupy the room that the next attempt needs."""

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(DiskFull):
        atomic_file.replace(tmp_path / "state.json", [bytes(10_000)])

    assert [] == list(tmp_path.iterdir())
