"""SHELL: the small file beside the segments of a journal part; it names the part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from txbroker.model.errors import StoreError
from txbroker.model.log_position import JournalId
from txbroker.storage import checked_file

FORMAT = 2
"""Version of `part.json`; a start refuses a newer one."""

UNCHECKED = 1
"""The last format without a checksum."""

_WHAT = "a part of a journal"
_META = "part.json"


@attrs.frozen(kw_only=True)
class PartMeta:
    """The part's key; `predecessor`: see `JournalPart`."""

    key: JournalId
    predecessor: tuple[JournalId, int] | None = None


def save(folder: Path, meta: PartMeta) -> None:
    """Make the file durable; raises `StoreError`."""
    before = meta.predecessor
    raw: dict[str, Any] = {
        "format": FORMAT,
        "zone": meta.key.zone,
        "epoch": meta.key.epoch,
        "predecessor": before and [before[0].zone, before[0].epoch, before[1]],
    }
    checked_file.save(folder / _META, raw)


def load(folder: Path, data: Path) -> PartMeta | None:
    """
    Load the file; None if the folder is empty, as the process ended while it created the part.

    `data`: see `checked_file.load`. Raises `StoreError`.
    """
    file = folder / _META
    raw = checked_file.load(file, what=_WHAT, known=FORMAT, unchecked=UNCHECKED, data=data)
    if raw is None:
        if any(folder.glob("*.log")):
            raise StoreError(f"{file}: missing; restore the folder from a backup")
        return None
    try:
        before = raw["predecessor"]
        return PartMeta(
            key=JournalId(zone=raw["zone"], epoch=raw["epoch"]),
            predecessor=before and (JournalId(zone=before[0], epoch=before[1]), before[2]),
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StoreError(
            f"{file}: not readable as {_WHAT} ({type(error).__name__}); restore the"
            " folder from a backup"
        ) from error
