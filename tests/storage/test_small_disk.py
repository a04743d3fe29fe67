"""A real file system of 64 MiB that gets full, and has room again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journal.store.test_journal_parts import KEY, LIVE
from tests.storage.test_committer import Bench
from txbroker.journal.store.journal_parts import Journals
from txbroker.model.log_position import JournalId
from txbroker.mqtt.wire.message import Message
from txbroker.storage.committer import RETRY, Durability


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted tmpfs."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs to be allowed to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def opened(disk: Path, bench: Bench) -> Journals:
    """Journals with segments as large as the disk allows."""
    size = 64 * 1024 * 1024
    return Journals(disk / "journal", bench.committer, lambda *_: None, segment_bytes=size)


def test_a_full_disk_takes_it_all_when_there_is_room(disk: Path, tmp_path: Path) -> None:
    """Filled up to the last byte; nothing acknowledged is lost, nothing is written twice."""
    bench = Bench(tmp_path / "others", Durability.SYNC)
    journals = opened(disk, bench)
    part = journals.create(KEY, None)
    (disk / "ballast").write_bytes(bytes(16 * 1024 * 1024))
    offset = 0
    while not bench.committer.is_full:
        for _ in range(50):
            offset = part.append(Message("t", os.urandom(20_000), 1), LIVE, offset, time=offset)
        bench.wait(f"durable {offset}")
        bench.turn.end()
        while bench.work:
            bench.sync()
    assert part.log.size > 40_000_000
    assert max(path.stat().st_size for path in part.log.folder.iterdir()) <= 4 * 1024 * 1024
    assert "full True True" == bench.look()[-1]
    assert [] == bench.later(RETRY * 3)
    (disk / "ballast").unlink()
    assert "full False False" == bench.later(RETRY)[-1]
    assert f"durable {offset}" == bench.sync()[-1]
    again = opened(disk, bench).parts[KEY]

    assert list(range(1, offset + 1)) == [
        record for batch in again.log.batches() for record in range(batch.first, batch.last + 1)
    ]
    assert again.log.trim(offset) > 30_000_000


def test_many_small_logs_fit(disk: Path, tmp_path: Path) -> None:
    """What each takes ahead is little: 100 zones fit several times."""
    bench = Bench(tmp_path / "others", Durability.SYNC)
    journals = opened(disk, bench)
    for epoch in range(100):
        part = journals.create(JournalId(zone="z", epoch=epoch), None)
        part.append(Message("t", b"x", 1), LIVE, 1, time=0)
    bench.wait("safe")
    bench.turn.end()
    bench.sync()
    stat = os.statvfs(disk)

    assert (stat.f_blocks - stat.f_bfree) * stat.f_frsize < 8 * 1024 * 1024
