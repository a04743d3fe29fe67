"""A copy of a data folder: of one moment, whole or not at all, later than what it was made of."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.apart import run_apart
from txbroker.data import backups
from txbroker.data.backups import LATEST, MARKER, SPREAD, Backups, Copied
from txbroker.delegation.grant_state import NodeState
from txbroker.delegation.state.node_state import DataFolder
from txbroker.model.errors import StoreError

NOW = 1_700_000_000.0


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a state, two logs of which one has space ahead, and what is no data."""
    folder = tmp_path / "data"
    DataFolder(folder).close()
    (folder / "state.json").write_text("state")
    (folder / "state.new").write_text("half a st")
    (folder / "journal/1").mkdir(parents=True)
    (folder / "journal/1/a.log").write_bytes(b"a" * 3_000_000)
    (folder / "journal/1/b.log").write_bytes(b"b" * 10 + b"\0" * 100)
    (folder / "empty").mkdir()
    return folder


def copy(data: Path, target: Path, extents: Mapping[Path, int] | None = None) -> Copied:
    """Make a backup from start to end."""
    backups = Backups(data, now=lambda: NOW, extents=lambda: extents or {})
    return run_apart(backups.copy(target))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_logs_are_copied_as_far_as_they_were_written(data: Path, tmp_path: Path) -> None:
    """The lock and half a file are not."""
    copied = copy(data, tmp_path / "copy", {data / "journal/1/b.log": 10})

    found = contents(tmp_path / "copy")
    assert {"format": 1, "time": NOW} == json.loads(found.pop(MARKER))
    assert {
        "state.json": b"state",
        "journal/1/a.log": b"a" * 3_000_000,
        "journal/1/b.log": b"b" * 10,
    } == found
    assert Copied(files=3, size=3_000_015) == copied


def test_the_copy_is_of_the_moment_at_which_it_was_asked_for(data: Path, tmp_path: Path) -> None:
    """Whatever is appended, replaced or dropped while it is made."""

    async def go_on() -> None:
        backups = Backups(data, now=lambda: NOW)
        making = asyncio.ensure_future(backups.copy(tmp_path / "copy"))
        await asyncio.sleep(0)
        with (data / "journal/1/b.log").open("ab") as log:
            log.write(b"more")
        (data / "journal/1/a.log").unlink()
        (data / "state.new").write_text("another")
        (data / "state.new").replace(data / "state.json")
        with pytest.raises(StoreError, match="being made already"):
            await backups.copy(tmp_path / "second")
        await making
        await backups.copy(tmp_path / "third")

    before = contents(data)
    run_apart(go_on())

    found = contents(tmp_path / "copy")
    assert {n: before[n] for n in ("state.json", "journal/1/a.log", "journal/1/b.log")} == {
        name: data for name, data in found.items() if name != MARKER
    }
    assert b"another" == contents(tmp_path / "third")["state.json"]
    assert not (tmp_path / "second").exists()


def test_an_empty_folder_may_be_there(data: Path, tmp_path: Path) -> None:
    """Made by the operator, with the rights that it is to have."""
    (tmp_path / "copy").mkdir()

    copy(data, tmp_path / "copy")

    assert (tmp_path / "copy/state.json").exists()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("taken", "there is something already"),
        ("file", "there is something already"),
        ("missing/copy", "no such folder"),
        ("data/copy", "inside the data"),
        ("broken", "left by a backup that broke off"),
    ],
)
def test_where_no_copy_can_be_made(data: Path, tmp_path: Path, target: str, words: str) -> None:
    """One line, and nothing is touched."""
    for name in ("taken/something", "file", "broken.part/state.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("kept")
    before = contents(tmp_path)

    with pytest.raises(StoreError, match=words):
        copy(data, tmp_path / target)

    assert before == contents(tmp_path)


def test_a_relative_folder_is_refused(data: Path) -> None:
    """The node's own directory means nothing to who asks."""
    with pytest.raises(StoreError, match="not an absolute path"):
        copy(data, Path("copy"))


def test_a_disk_that_is_too_small(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is told before anything is copied."""
    monkeypatch.setattr(backups, "measure", lambda folder: (1000, 1 << 30))

    with pytest.raises(StoreError, match="3000115 bytes do not fit, 1000 are free"):
        copy(data, tmp_path / "copy")

    assert {data} == set(tmp_path.iterdir())


def test_a_copy_that_fails_leaves_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next one is made as if it had not been."""

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        with pytest.raises(StoreError, match="Input/output error"):
            copy(data, tmp_path / "copy")
    assert {data} == set(tmp_path.iterdir())

    copy(data, tmp_path / "copy")


def test_a_copy_whose_name_is_not_durable_is_none(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is deleted, so that the operator, who was told, can make it again."""
    folders: list[str] = []
    real = os.fsync

    def fail(fd: int) -> None:
        real(fd)
        folders.append(os.readlink(f"/proc/self/fd/{fd}"))
        if folders[-1] == str(tmp_path):
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StoreError, match="cannot be written: Input/output error"):
            copy(data, tmp_path / "copy")
    assert ["data"] == [path.name for path in tmp_path.iterdir()]
    copy(data, tmp_path / "copy")


def test_a_node_that_stops_ends_its_backup(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the next chunk."""
    read = os.pread

    async def stop() -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def pread(fd: int, count: int, position: int) -> bytes:
            loop.call_soon_threadsafe(begun.set)
            return read(fd, min(count, 1), position)  # so that it would take for ever

        monkeypatch.setattr(os, "pread", pread)
        making = asyncio.ensure_future(Backups(data, now=lambda: NOW).copy(tmp_path / "copy"))
        await begun.wait()
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making

    run_apart(asyncio.wait_for(stop(), 20))

    assert {data} == set(tmp_path.iterdir())


def test_a_restored_node_has_a_number_that_no_life_had(data: Path, tmp_path: Path) -> None:
    """Until it has started, however often that is tried; then the copy is like any other folder."""
    copy(data, tmp_path / "copy")
    state = NodeState(node="n", zone="", incarnation=7)

    assert (None, NOW) == (backups.made_at(data), backups.made_at(tmp_path / "copy"))
    for later in (60, -1e9, 1e10):  # seconds; the clock may be wrong
        found = {backups.restored(state, NOW + later).incarnation for _ in range(8)}
        assert 1 < len(found)
        assert 7 <= min(found)
        assert max(found) < LATEST + SPREAD
    assert NOW <= backups.restored(state, NOW).incarnation
    assert 8 == len({backups.restored(state, NOW).copy for _ in range(8)})
    backups.forget(tmp_path / "copy")
    backups.forget(tmp_path / "copy")
    assert backups.made_at(tmp_path / "copy") is None


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1}', '{"format": 2, "time": 1}'])
def test_a_marker_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    """Damaged, or of a newer version."""
    (tmp_path / MARKER).write_text(text)

    with pytest.raises(StoreError, match=MARKER):
        backups.made_at(tmp_path)
