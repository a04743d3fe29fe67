"""The disk that can lose its power: what was synced stays, what was not is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from .disks import Disk, build, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler")

PREFIX = """
import os, sys
data = sys.argv[1]
os.makedirs(data, exist_ok=True)
def sync_folder():
    fd = os.open(data, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
def path(name):
    return os.path.join(data, name)
def make(name, text):
    fd = os.open(path(name), os.O_RDWR | os.O_CREAT)
    os.write(fd, text)
    return fd
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled once."""
    return build(tmp_path_factory.mktemp("disk"))


@pytest.fixture
def disk(tmp_path: Path, library: Path) -> Disk:
    """An ordinary folder."""
    return Disk(tmp_path / "node", tmp_path / "control", library, mount=False)


class Everything(Random):
    """Loses all that was not synced."""

    def random(self) -> float:
        return 1.0


def run(disk: Disk, program: str) -> None:
    """A process that writes, and dies as it would of kill -9."""
    subprocess.run(
        [sys.executable, "-c", PREFIX + program + "\nos._exit(0)", str(disk.data)],
        env={**os.environ, **disk.environment()},
        check=True,
    )


def contents(disk: Disk) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in disk.data.iterdir()}


WRITES = {
    "write": "os.write(fd, b'new')",
    "writev": "os.writev(fd, [b'n', b'ew'])",
    "pwrite": "os.pwrite(fd, b'new', 3)",
    "pwritev": "os.pwritev(fd, [b'n', b'ew'], 3)",
    "pwritev with flags": "os.pwritev(fd, [b'n', b'ew'], 3, os.RWF_DSYNC * 0)",
    "over old bytes": "os.pwrite(fd, b'NEW', 0)",
    "truncate": "os.ftruncate(fd, 1)",
    "grow": "os.ftruncate(fd, 100)",
    "allocate": "os.posix_fallocate(fd, 0, 4096)",
    "a Python file": "open(path('f'), 'ab').write(b'new')",
    "emptied": "open(path('f'), 'wb').write(b'new')",
    "write only": "os.write(os.open(path('f'), os.O_WRONLY), b'new')",
}


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_unsynced_write_is_gone(disk: Disk, write: str) -> None:
    """However it was made; and it is there when it was synced."""
    start = "fd = make('f', b'old'); os.fdatasync(fd); sync_folder()\n"
    run(disk, start + write)
    after = contents(disk)

    assert {"f": b"old"} != after
    assert 1 <= disk.lose_power(Everything())
    assert {"f": b"old"} == contents(disk)

    run(disk, "fd = os.open(path('f'), os.O_RDWR); os.lseek(fd, 0, 2)\n" + write)
    run(disk, "os.fdatasync(os.open(path('f'), os.O_RDWR))")
    written = contents(disk)

    assert 0 == disk.lose_power(Everything())
    assert written == contents(disk) != {"f": b"old"}


def test_sync_of_another_file_does_not_help(disk: Disk) -> None:
    """Each file for itself, and only what was written before."""
    run(
        disk,
        """
one, other = make('one', b'1'), make('other', b'2')
sync_folder()
os.fdatasync(one)
os.write(one, b'later')
""",
    )
    disk.lose_power(Everything())

    assert {"one": b"1", "other": b""} == contents(disk)


def test_new_file_needs_a_sync(disk: Disk) -> None:
    """Of itself or of its folder; it keeps its place when it is renamed."""
    run(
        disk,
        """
make('lost', b'x')
os.fsync(make('kept', b'y'))
os.fsync(make('temporary', b'z'))
os.rename(path('temporary'), path('renamed'))
make('unsynced', b'u')
os.rename(path('unsynced'), path('empty'))
""",
    )
    disk.lose_power(Everything())

    assert {"kept": b"y", "renamed": b"z"} == contents(disk)


def test_writes_of_several_lives_are_undone_in_turn(disk: Disk) -> None:
    """A restart does not make durable what the kernel still holds."""
    run(disk, "fd = make('f', b'1'); os.fsync(fd); os.write(fd, b'2')")
    run(disk, "os.pwrite(os.open(path('f'), os.O_RDWR), b'34', 1)")
    disk.lose_power(Everything())

    assert {"f": b"1"} == contents(disk)


def test_first_writes_may_survive(disk: Disk) -> None:
    """A disk may have written some of it, in order."""
    run(disk, "fd = make('f', b''); os.fsync(fd)\nfor i in range(9): os.write(fd, b'%d' % i)")
    seed = next(s for s in range(99) if Random(s).random() < 0.5)
    disk.lose_power(Random(seed))

    assert b"012345678".startswith(contents(disk)["f"])
    assert b"012345678" != contents(disk)["f"]


def test_syncs_become_slow(disk: Disk) -> None:
    """And quick again."""
    disk.slow(0.2)
    begin = time.monotonic()
    run(disk, "fd = make('f', b'1')\nfor _ in range(5): os.fdatasync(fd)")

    assert 1.0 < time.monotonic() - begin

    disk.slow(0)
    run(
        disk,
        "fd = make('f', b'1'); import time; t = time.monotonic(); os.fdatasync(fd)\n"
        "assert time.monotonic() - t < 0.2",
    )


def test_files_elsewhere_are_left_alone(disk: Disk, tmp_path: Path) -> None:
    """Only the folder of the node is watched."""
    run(disk, f"open({str(tmp_path / 'elsewhere')!r}, 'w').write('x')")

    assert 0 == disk.lose_power(Everything())
    assert "x" == (tmp_path / "elsewhere").read_text()
