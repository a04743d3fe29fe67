"""The small file that a node must not forget: whole, synced, refused where it is not usable."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import attrs
import cattrs
import pytest

from tests.support.recorders import cut
from txbroker.data.data_directory import require_folders
from txbroker.data.data_repair import repair
from txbroker.delegation.delegation_table import Delegation, DelegationState
from txbroker.delegation.grant_state import NodeState
from txbroker.delegation.state.node_state import FORMAT, RESERVE, DataFolder, StateText
from txbroker.model.errors import StoreError
from txbroker.storage.atomic_file import FileInDoubt

STATE = NodeState(
    node="garage",
    zone="home/garage",
    incarnation=7,
    epoch=3,
    serving=True,
    parent="home:1",
    configured_parent="old:1",
    lineage=(cut("", node="home"), cut("home", 4)),
    table=DelegationState(
        delegations=(Delegation(cut=cut("home/garage/ü", 2), below=(cut("home/garage/ü/x"),)),),
        epochs={"home/garage/ü": 5},
    ),
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataFolder]:
    data = DataFolder(tmp_path / "data")
    yield data
    data.close()


@pytest.fixture
def file(folder: DataFolder, tmp_path: Path) -> Path:
    """Where the state is."""
    return tmp_path / "data" / "state.json"


def refusal(folder: DataFolder, node: str = "garage", zone: str | None = "home/garage") -> str:
    with pytest.raises(StoreError) as caught:
        folder.load(node, zone)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- as it should be


def test_new_node_has_a_new_state(folder: DataFolder) -> None:
    """Without a file nothing is known yet."""
    assert NodeState(node="n", zone=None) == folder.load("n", None)


def test_state_is_loaded_as_it_was_saved(folder: DataFolder) -> None:
    """Every field, and the last one saved."""
    folder.save(attrs.evolve(STATE, epoch=1))
    folder.save(STATE)

    assert STATE == folder.load("garage", "home/garage")


def test_pure_edge_has_no_zone(folder: DataFolder) -> None:
    """None stays None, and is not the root zone."""
    state = NodeState(node="edge", zone=None)
    folder.save(state)

    assert state == folder.load("edge", None)
    assert "belongs to node 'edge' with zone None" in refusal(folder, "edge", "")


def test_file_of_an_earlier_version_has_fewer_fields(folder: DataFolder, file: Path) -> None:
    """What it does not say has its default."""
    file.write_text(json.dumps({"format": 1, "node": "n", "zone": "z", "epoch": 2}))

    assert NodeState(node="n", zone="z", epoch=2) == folder.load("n", "z")


# -- refused


def test_newer_format_is_refused(folder: DataFolder, file: Path) -> None:
    """Not guessed at; the remedy is said."""
    file.write_text(json.dumps({"format": FORMAT + 1, "something": "new"}))

    assert f"format {FORMAT + 1} is newer than this version's {FORMAT}" in refusal(folder)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"{}",
        b'{"format": "one"}',
        b'{"format": 1}',
        b'{"format": 1, "node": "garage", "zone": "home/garage", "epoch": "many"}',
        b'{"format": 1, "node": "garage", "zone": "home/garage", "lineage": [5]}',
        b'{"format": 1, "node": "garage", "zone": "home/garage", "table": null}',
        b"\xff\xfe\x00",
        b"\0" * 100,
        b"[" * 100_000,
    ],
    ids=range(14),
)
def test_corrupt_file_is_refused(folder: DataFolder, file: Path, data: bytes) -> None:
    """One line with the remedy; the file stays as it is."""
    file.write_bytes(data)

    assert "not readable as a node's state" in refusal(folder)
    assert data == file.read_bytes()


@pytest.mark.parametrize(("node", "zone"), [("other", "home/garage"), ("garage", "home")])
def test_state_of_another_node_is_refused(folder: DataFolder, node: str, zone: str) -> None:
    """Two nodes that share a folder would share an identity."""
    folder.save(STATE)

    said = refusal(folder, node, zone)
    assert "belongs to node 'garage'" in said
    assert ("retire it" in said) is (node == "garage")  # only this node's own zone was changed


@pytest.mark.parametrize("way", ["data/inner", "data/deep/inner", "link/inner", "x/../data/inner"])
def test_folder_in_that_of_another_node_is_refused(
    folder: DataFolder, tmp_path: Path, way: str
) -> None:
    """A copy or a move of the outer one would take the inner one along; nothing is made there."""
    folder.save(STATE)
    (tmp_path / "link").symlink_to("data")
    (tmp_path / "x").mkdir()

    with pytest.raises(StoreError, match=r"data, the `data` folder of another node, contains it;"):
        DataFolder(tmp_path / way)
    assert not (tmp_path / way).exists()


def test_folder_behind_a_ring_of_links_is_refused(tmp_path: Path) -> None:
    """As any that cannot be made."""
    (tmp_path / "ring").symlink_to("ring")

    with pytest.raises(StoreError, match="ring: cannot be used: "):
        DataFolder(tmp_path / "ring")


def test_folder_around_that_of_another_node_is_refused(folder: DataFolder, tmp_path: Path) -> None:
    """Where it lies right in it."""
    folder.save(STATE)

    with pytest.raises(StoreError, match=r"data, the `data` folder of another node, lies in it;"):
        DataFolder(tmp_path)
    assert not (tmp_path / "lock").exists()


def test_file_that_cannot_be_read_is_refused(folder: DataFolder, file: Path) -> None:
    """As a matter of the store, in one line."""
    file.mkdir()

    assert "cannot be read" in refusal(folder)


def test_folder_in_use_is_refused(folder: DataFolder, tmp_path: Path) -> None:
    """One process at a time; the lock goes with it."""
    with pytest.raises(StoreError, match="in use by another process"):
        DataFolder(tmp_path / "data")
    folder.close()

    DataFolder(tmp_path / "data").close()


def test_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """The line names it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file/data: cannot be used"):
        DataFolder(tmp_path / "file" / "data")


# -- damage


def test_start_without_descriptors_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the lock is given up."""
    real = os.open

    def few(path: object, flags: int, *args: int, **keys: int) -> int:
        if flags & os.O_DIRECTORY:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, flags, *args, **keys)  # type: ignore[call-overload, no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", few)
        with pytest.raises(StoreError, match="cannot be used: Too many open files"):
            DataFolder(tmp_path / "data")
    DataFolder(tmp_path / "data").close()


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_anywhere_is_refused(folder: DataFolder, file: Path, bit: int) -> None:
    """Also in the format, the checksum or its name; `repair` puts the copy back."""
    require_folders(file.parent, is_new=True, owns_zone=True)
    folder.save(STATE)
    whole = file.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        file.write_bytes(damaged)
        reason = refusal(folder)
        assert str(file) in reason
        assert "is newer than" in reason or f"txbroker repair {file.parent}" in reason, reason
    copy = file.with_suffix(".copy")
    assert [f"{file}: put back from {copy}"] == repair(file.parent)
    assert STATE == folder.load("garage", "home/garage")
    assert [] == repair(file.parent)


def test_a_missing_state_is_no_new_node(folder: DataFolder, file: Path) -> None:
    """A new root would give offsets again that its sessions have seen."""
    require_folders(file.parent, is_new=True, owns_zone=True)
    folder.save(STATE)
    file.unlink()
    assert "missing; put its copy back with: txbroker repair" in refusal(folder)
    repair(file.parent)
    assert STATE == folder.load("garage", "home/garage")


def test_an_outdated_copy_is_not_left(
    folder: DataFolder, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that could not be written would bring an epoch back that has ended."""
    folder.save(STATE)

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fail)
        folder.save(attrs.evolve(STATE, epoch=9))
    assert not file.with_suffix(".copy").exists()
    assert 9 == folder.load("garage", "home/garage").epoch


def test_a_large_table_is_saved_in_a_moment(folder: DataFolder) -> None:
    """The loop waits for it at each cut: 5,000 of them, below one child."""
    below = tuple(cut(f"home/garage/ü/floor{i // 100}/room{i}", i) for i in range(5000))
    table = DelegationState(
        delegations=(Delegation(cut=cut("home/garage/ü", 2), below=below),),
        epochs={one.apex: one.epoch for one in below},
    )
    state = attrs.evolve(STATE, table=table)
    folder.save(state)
    began = time.thread_time()
    for _ in range(5):
        folder.save(state)
    spent = (time.thread_time() - began) / 5
    assert spent < 0.04, f"{spent * 1000:.0f} ms of CPU"  # 84 ms with an indented file
    assert state == folder.load("garage", "home/garage")


# -- crashes


def test_a_full_disk_takes_the_state_of_a_start(
    folder: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reserve makes the room, once, and is taken anew when there is some."""
    folder.save(STATE)
    reserve = tmp_path / "data" / RESERVE
    fdatasync = os.fdatasync

    def full(fd: int) -> None:
        if reserve.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        fdatasync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", full)
        folder.save(attrs.evolve(STATE, epoch=9))
    assert 9 == folder.load("garage", "home/garage").epoch
    assert 65536 == reserve.stat().st_size


def test_file_is_synced_before_it_takes_the_place_of_the_old_one(
    folder: DataFolder, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write, sync, rename, sync the folder: nobody is told of a change before all that."""
    events: list[str] = []
    fdatasync, fsync, replace = os.fdatasync, os.fsync, Path.replace
    monkeypatch.setattr(os, "fdatasync", lambda fd: (events.append("data"), fdatasync(fd)))
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("folder"), fsync(fd)))
    monkeypatch.setattr(
        Path, "replace", lambda self, to: (events.append("rename"), replace(self, to))
    )
    folder.save(STATE)

    assert ["data", "rename", "folder", "rename"] == events  # the last one is the copy's


@pytest.mark.parametrize("broken", ["fdatasync", "replace"])
def test_crash_before_the_rename_leaves_the_old_state(
    folder: DataFolder, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half-made file is nobody's, and in nobody's way."""
    folder.save(STATE)

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os if broken == "fdatasync" else Path, broken, fail)
        with pytest.raises(StoreError, match="cannot be written: No space left"):
            folder.save(attrs.evolve(STATE, epoch=9))
    after = folder.load("garage", "home/garage")
    folder.save(attrs.evolve(STATE, epoch=10))

    assert STATE == after
    assert folder.load("garage", "home/garage").epoch == 10


def test_no_descriptor_is_wanted_behind_the_rename(
    folder: DataFolder, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who hears that a change was not saved takes the old state for what a start will find."""
    folder.save(STATE)
    real = os.open

    def few(path: object, flags: int, *args: int, **keys: int) -> int:
        if flags & os.O_DIRECTORY or path == file.parent:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, flags, *args, **keys)  # type: ignore[call-overload, no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", few)
        with pytest.raises(StoreError, match="Too many open files"):
            folder.save(attrs.evolve(STATE, epoch=9))
    assert STATE == folder.load("garage", "home/garage")


def test_a_state_in_doubt_ends_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The new file has its name, and the folder cannot be synced. A zone that a node gave back to its
    child in memory would be its own after a start.
    """
    told: list[str] = []
    folder = DataFolder(tmp_path / "data", on_failed=lambda error: told.append(str(error)))
    folder.save(STATE)

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FileInDoubt):
        folder.save(attrs.evolve(STATE, epoch=9))
    folder.close()
    file = tmp_path / "data" / "state.json"
    assert [f"{file}: not known whether it was written: Input/output error"] == told


def test_half_written_file_is_not_looked_at(folder: DataFolder, file: Path) -> None:
    """A crash in the middle of a write leaves a fragment beside the old file."""
    folder.save(STATE)
    file.with_suffix(".new").write_text('{"format": 1, "no')

    assert STATE == folder.load("garage", "home/garage")


def big(count: int) -> NodeState:
    """A node that has delegated so much."""
    entries = tuple(
        Delegation(cut=cut(f'zone"{n}', epoch=n + 1), below=(cut(f'zone"{n}/below'),))
        for n in range(count)
    )
    table = DelegationState(delegations=entries, epochs={e.cut.apex: e.cut.epoch for e in entries})
    return NodeState(node="n", zone="", table=table, above={"a": 1}, incarnation=7)


def test_text_of_a_state_is_all_of_it() -> None:
    """Whatever was kept from the states before: changed, added, removed."""
    text, state = StateText(), big(20)
    entries = list(state.table.delegations)
    for changed in (
        entries,
        [attrs.evolve(entries[0], below=()), *entries[1:]],
        entries[5:],
        [*entries[5:], Delegation(cut=cut("new"))],
        [],
        entries,
    ):
        table = attrs.evolve(state.table, delegations=tuple(changed))
        state = attrs.evolve(state, table=table, epoch=state.epoch + 1)
        found = json.loads(text.of(state))
        assert found.pop("format") == FORMAT
        assert cattrs.structure(found, NodeState) == state


def test_only_what_has_changed_is_encoded() -> None:
    """A change of one cut among thousands is not encoded as thousands."""
    text, state = StateText(), big(2_000)
    text.of(state)
    entries = list(state.table.delegations)
    entries[7] = attrs.evolve(entries[7], below=())
    with mock.patch(
        "txbroker.delegation.state.node_state.cattrs.unstructure", side_effect=cattrs.unstructure
    ) as encoded:
        text.of(attrs.evolve(state, table=attrs.evolve(state.table, delegations=tuple(entries))))
    assert [Delegation, NodeState] == [type(call.args[0]) for call in encoded.call_args_list]
