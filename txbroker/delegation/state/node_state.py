"""
SHELL: the durable state of a node in one small file, synced before any other node hears of it.

The file has the delegation table, the epochs, the node's own grant and its parent's address. Each
save replaces the whole file, so a crash leaves the old or the new state.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

import attrs
import cattrs

from txbroker.delegation.delegation_table import Delegation
from txbroker.delegation.grant_state import NodeState
from txbroker.delegation.state.received_zone_file import ReceivedZoneFile
from txbroker.model.errors import StoreError
from txbroker.runtime import machine_check
from txbroker.storage import checked_file
from txbroker.storage.atomic_file import FileInDoubt
from txbroker.storage.files import DiskFull

FORMAT = 3
"""Version of the file; a start refuses a newer one."""

STATE = "state.json"
"""The name of the file."""

LOCK = "lock"
"""A file that the node's process has locked."""

RESERVE = "reserve"
"""A file of zeros that is deleted when the disk is full. A start must be able to save its state."""

UNCHECKED = 2
_WHAT = "a node's state"
_SMALLEST = 64 * 1024


class StateText:
    """
    Encodes states as the file's text, and caches the text of each unchanged delegation.

    A state of 10,000 delegations took 24 ms to encode, and one delegation changes at a time.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Delegation, str]] = {}

    def of(self, state: NodeState) -> str:
        """Return JSON with all fields of the state and the format."""
        table = state.table
        known = {entry.cut.apex: self._entry(entry) for entry in table.delegations}
        self._known = known
        small = attrs.evolve(table, delegations=(), epochs={})
        fields = cattrs.unstructure(attrs.evolve(state, table=small))
        rest = {**fields.pop("table"), "epochs": table.epochs}
        del rest["delegations"]
        outer = checked_file.to_text({"format": FORMAT, **fields})
        inner = checked_file.to_text(rest)
        delegations = ",".join(text for _, text in known.values())
        return f'{outer[:-1]},"table":{inner[:-1]},"delegations":[{delegations}]}}}}'

    def _entry(self, entry: Delegation) -> tuple[Delegation, str]:
        known = self._known.get(entry.cut.apex)
        if known is not None and known[0] is entry:
            return known
        return entry, checked_file.to_text(cattrs.unstructure(entry))


def _remedy(state: NodeState, node: str) -> str:
    """Return the remedy for a folder that another node, or this one with another zone, has used."""
    if state.node != node:
        return "give each node a `data` folder of its own"
    return (
        "set another `data` folder; to give what the zone has to its parent, first start the node"
        " with the zone of this folder, and retire it (txbroker retire)"
    )


def _near_data(path: Path) -> Path | None:
    """Return the `data` folder of another node that contains `path`, or lies in it; else None."""
    place = Path(os.path.realpath(path))
    try:
        inside = [Path(entry.path) for entry in os.scandir(place) if entry.is_dir()]
    except OSError:
        inside = []
    return next((folder for folder in (*place.parents, *inside) if _is_data(folder)), None)


def _is_data(folder: Path) -> bool:
    return all(os.path.isfile(folder / name) for name in (LOCK, STATE))


class DataFolder:
    """The `data` folder of one node, locked against a second process."""

    def __init__(
        self, path: Path, on_failed: Callable[[StoreError], None] = lambda _: None
    ) -> None:
        """
        Make the folder if missing, and lock it; raises `StoreError`.

        `on_failed` runs if a save leaves in doubt which state a start would load: the node must
        end.
        """
        self._path = path
        self._on_failed = on_failed
        self._file = path / STATE
        self.incoming = ReceivedZoneFile(path / "incoming")
        self._lock = self._lock_folder()
        self._reserve = path / RESERVE
        self._text = StateText()

    def load(self, node: str, zone: str | None) -> NodeState:
        """Load the last saved state, or return a new node's; raises `StoreError`."""
        raw = checked_file.load(
            self._file, what=_WHAT, known=FORMAT, unchecked=UNCHECKED, data=self._path
        )
        if raw is None:
            return NodeState(node=node, zone=zone)
        del raw["format"]
        try:
            state = cattrs.structure(raw, NodeState)
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,  # null in place of an object
            cattrs.BaseValidationError,
        ) as error:
            raise StoreError(
                f"{self._file}: not readable as {_WHAT} ({type(error).__name__});"
                " restore the file from a backup, or use another `data` folder"
            ) from error
        if (state.node, state.zone) != (node, zone):
            raise StoreError(
                f"{self._file}: belongs to node {state.node!r} with zone {state.zone!r}, not to"
                f" {node!r} with {zone!r}; {_remedy(state, node)}"
            )
        return state

    def copied_at(self, state: NodeState) -> float | None:
        """
        Return the latest time (UTC seconds) at which this folder can have been copied.

        None: the folder is the original that wrote the state, not a copy.
        """
        if state.place in (0, self.place):
            return None
        return self._file.stat().st_mtime

    @property
    def place(self) -> int:
        """
        Return the lock file's inode: the number differs in a copy of the folder, but not after a
        move.
        """
        return os.fstat(self._lock.fileno()).st_ino

    def save(self, state: NodeState) -> None:
        """Make the state durable; raises `StoreError`, and then the old state still holds."""
        try:
            self._save_text(self._text.of(state))
        except FileInDoubt as error:
            self._on_failed(error)
            raise
        self._reserve_space()

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()

    def _save_text(self, text: str) -> None:
        try:
            checked_file.save_text(self._file, text)
        except DiskFull:
            with contextlib.suppress(OSError):
                self._reserve.unlink(missing_ok=True)
            checked_file.save_text(self._file, text)

    def _reserve_space(self) -> None:
        """Reserve the bytes of the next state, if the disk has room; else keep the old reserve."""
        had = 0
        try:
            wanted = max(_SMALLEST, 2 * self._file.stat().st_size)
            had = self._reserve.stat().st_size if self._reserve.exists() else 0
            if had < wanted:
                fd = os.open(self._reserve, os.O_WRONLY | os.O_CREAT, 0o600)
                try:
                    os.posix_fallocate(fd, 0, wanted)
                finally:
                    os.close(fd)
        except OSError:
            # A start on a full disk needs what the old reserve holds.
            if not had:
                with contextlib.suppress(OSError):
                    self._reserve.unlink(missing_ok=True)

    def _lock_folder(self) -> IO[str]:
        other = _near_data(self._path)
        if other is not None:
            # A copy or a move of the outer folder would take the inner one, in use, along.
            where = (
                "lies in it"
                if other.is_relative_to(os.path.realpath(self._path))
                else "contains it"
            )
            raise StoreError(
                f"{self._path}: {other}, the `data` folder of another node, {where}; set `data` to"
                " a folder beside that"
            )
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as opened:
                lock = opened.enter_context((self._path / LOCK).open("w"))
                machine_check.lock_folder(lock, self._path)
                machine_check.check_disk(lock, self._path)
                opened.pop_all()
        except OSError as error:
            raise StoreError(
                f"{self._path}: cannot be used: {error.strerror}; set `data` to a folder that can"
                " be written"
            ) from error
        return lock
