"""
SHELL: lists and deletes the folders of journal parts.

A half deleted part looks like a damaged one. So its folder first gets a name that marks it as
dropped; the next start deletes the rest.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from txbroker.storage.files import sync_folder

_DROPPED = ".dropped"


def list_folders(journal: Path) -> list[Path]:
    """Return the part folders in a journal's folder, in order, without dropped ones."""
    return [path for path in sorted(journal.glob("*/*")) if not is_dropped(path.name)]


def is_dropped(name: str) -> bool:
    """True if a folder of that name in a journal is being deleted."""
    return name.endswith(_DROPPED)


def delete(folder: Path) -> None:
    """Delete the folder of a part with all its files; raises `OSError`."""
    clear(set_aside(folder))


def set_aside(folder: Path) -> Path:
    """Give the folder of a part its name as a dropped one; return it. Raises `OSError`."""
    gone = folder.with_name(folder.name + _DROPPED)
    if gone.exists():
        shutil.rmtree(gone)  # left by an earlier delete that a disk failure interrupted
    return folder.rename(gone)


def clear(gone: Path) -> None:
    """Delete a folder that was set aside; raises `OSError`, and the next start deletes the rest."""
    sync_folder(gone.parent)
    shutil.rmtree(gone)


def sweep(journal: Path) -> None:
    """Delete the rest of dropped folders, after a start; raises `OSError`."""
    for path in journal.glob("*/*"):
        if is_dropped(path.name):
            shutil.rmtree(path)
