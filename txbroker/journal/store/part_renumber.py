"""
SHELL: gives a journal part another epoch, with all stored offsets of the part.

A root that has lost its disk begins again at epoch 1. Nodes that come back report its earlier
epoch. Records accepted since must not lie at positions of the lost journal. So the part gets an
unused epoch when the node starts, before any other reader of the data. Each step is repeatable:
after a crash the next start does the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from txbroker.journal.store import part_meta
from txbroker.journal.store.part_folders import list_folders
from txbroker.model.errors import StoreError
from txbroker.model.log_position import JournalId
from txbroker.storage.files import sync_folder
from txbroker.storage.tables import LogTables
from txbroker.v1 import state_pb2

_PLACED: dict[str, Callable[[], Message]] = {
    "sessions": state_pb2.StoredSession,
    "filters": state_pb2.StoredSubscription,
    "windows": state_pb2.StoredWindow,
    "kept": state_pb2.StoredKept,
}
"""Tables whose messages name parts as a `StoredPart` only."""


def renumber_parts(journal: Path, old: JournalId, new: JournalId, *, data: Path) -> None:
    """
    Give the part its new epoch in every part file that names it; raises `StoreError`.

    `journal`: the folder of all parts. `data`: see `part_meta.load`.
    """
    try:
        for folder in list_folders(journal):
            found = part_meta.load(folder, data)
            if found is not None:
                _renumber_part(folder, found, old, new)
    except OSError as error:
        raise StoreError(f"{journal}: cannot be renumbered: {error.strerror}") from error


def _renumber_part(folder: Path, found: part_meta.PartMeta, old: JournalId, new: JournalId) -> None:
    before = found.predecessor
    if before is not None and before[0] == old:
        before = (new, before[1])
    renumbered = part_meta.PartMeta(key=new if found.key == old else found.key, predecessor=before)
    if renumbered != found:
        part_meta.save(folder, renumbered)
    # After a crash the file may have the new epoch, and the folder not yet.
    if renumbered.key == new and folder.name == str(old.epoch):
        folder.rename(folder.with_name(str(new.epoch)))
        sync_folder(folder.parent)


def renumber_tables(tables: LogTables, old: JournalId, new: JournalId) -> None:
    """Give the part its new epoch in all tables that store its offsets, in one commit."""
    for name, kind in _PLACED.items():
        for key, value in tables.table(name).items():
            message = kind()
            message.ParseFromString(value)
            _visit(message, old, new)
            _put(tables, name, key, value, message)
    for name, key, point in (
        ("zone", b"checkpoint", state_pb2.Checkpoint()),
        ("zone", b"ceiling", state_pb2.StoredCeiling()),
        ("positions", old.zone.encode(), state_pb2.Checkpoint()),
    ):
        known = tables.table(name).get(key)
        if known is not None:
            point.ParseFromString(known)
            point.epoch = new.epoch if point.epoch == old.epoch else point.epoch
            _put(tables, name, key, known, point)
    _rename(tables, "passages", f"{old.zone} {old.epoch} ", f"{new.zone} {new.epoch} ")
    _rename(tables, "ages", f"{old.epoch} {old.zone}", f"{new.epoch} {new.zone}", is_whole=True)


def _put(tables: LogTables, name: str, key: bytes, before: bytes, message: Message) -> None:
    value = message.SerializeToString()
    if value != before:
        tables.table(name).put(key, value)


def _visit(message: Message, old: JournalId, new: JournalId) -> None:
    if isinstance(message, state_pb2.StoredPart):
        if (message.zone, message.epoch) == old:
            message.epoch = new.epoch
        return
    for field, found in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in found if field.is_repeated else (found,):
                _visit(inner, old, new)


def _rename(tables: LogTables, name: str, old: str, new: str, *, is_whole: bool = False) -> None:
    table = tables.table(name)
    for key, value in table.items():
        text = key.decode()
        if text == old if is_whole else text.startswith(old):
            table.delete(key)
            table.put((new + text.removeprefix(old)).encode(), value)
