"""
SHELL: the folders of journals' parts: which there are, and how one goes.

A part that is half deleted looks like a damaged one. So its folder gets another name first, by
which everybody knows that it is nobody's; the next start does the rest.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from txbroker.storage.files import sync_folder

_DROPPED = ".dropped"


def list_folders(journal: Path) -> list[Path]:
    """The folders of parts in a folder of journals, in order; not those that are being deleted."""
    return [path for path in sorted(journal.glob("*/*")) if not is_dropped(path.name)]


def is_dropped(name: str) -> bool:
    """True if a folder of that name in a journal is being deleted."""
    return name.endswith(_DROPPED)


def delete(folder: Path) -> None:
    """Delete the folder of a part with all that is in it; raises `OSError`."""
    gone = folder.with_name(folder.name + _DROPPED)
    if gone.exists():
        shutil.rmtree(gone)  # of an earlier time, when the disk failed in the middle
    folder.rename(gone)
    sync_folder(folder.parent)
    shutil.rmtree(gone)


def sweep(journal: Path) -> None:
    """After a start: delete the rest of what was being deleted; raises `OSError`."""
    for path in journal.glob("*/*"):
        if is_dropped(path.name):
            shutil.rmtree(path)
