"""
SHELL: stores small JSON files with a checksum and a copy that `txbroker repair` restores.

The first field is the CRC-32 of all bytes after it. A flipped bit in such a file changes an epoch
or an address, and only the checksum detects it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

from txbroker.model.errors import StoreError
from txbroker.storage import atomic_file

_BEGINNING = b'{"checksum":"'
_DIGITS = 8
_REST = len(_BEGINNING) + _DIGITS


def save(path: Path, raw: Mapping[str, Any]) -> None:
    """
    Store `raw`, which has a field `format`, in the file durably; then write the copy, unsynced.

    Raises `StoreError`; the old file then stays.
    """
    save_text(path, to_text(raw))


def to_text(raw: object) -> str:
    """Encode compact JSON: with an indent Python is ten times slower, and blocks the loop."""
    return json.dumps(raw, separators=(",", ":"))


def save_text(path: Path, text: str) -> None:
    """Store the text that `to_text` returned, as `save` does."""
    rest = b'",' + text.encode()[1:]
    data = b"%b%08x%b" % (_BEGINNING, crc32(rest), rest)
    atomic_file.replace(path, [data])
    copy, fresh = _copy_of(path), path.with_suffix(".copy.new")
    try:
        fresh.write_bytes(data)
        fresh.replace(copy)
    except OSError:
        # An outdated copy would restore an epoch that has ended.
        with contextlib.suppress(OSError):
            copy.unlink(missing_ok=True)
            fresh.unlink(missing_ok=True)


def load(path: Path, *, what: str, known: int, unchecked: int, data: Path) -> dict[str, Any] | None:
    """
    Return the fields of the file; None if neither the file nor a copy exists.

    `what` names the content for error messages. Formats up to `unchecked` have no checksum; formats
    above `known` are refused. `data` is the folder for `txbroker repair`. Raises `StoreError`.
    """
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        if not _copy_of(path).exists():
            return None
        raise StoreError(f"{path}: missing; {_remedy(path, data)}") from None
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be read: {error.strerror}; let the user that runs txbroker"
            " read it, or use another `data` folder"
        ) from error
    try:
        raw = json.loads(found)
        version = raw["format"]
        if version > known:
            raise StoreError(
                f"{path}: format {version} is newer than this version's {known};"
                " start the newer txbroker, or use another `data` folder"
            )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"not readable as {what} ({type(error).__name__})"
        raise StoreError(f"{path}: {reason}; {_remedy(path, data)}") from error
    if (version > unchecked or "checksum" in raw) and not _is_whole(found):
        raise StoreError(f"{path}: damaged, its checksum does not match; {_remedy(path, data)}")
    raw.pop("checksum", None)
    return dict(raw)


def repair(path: Path, *, unchecked: int) -> list[str]:
    """
    Replace a damaged or missing file with its copy; return a line for each damaged file.

    Formats up to `unchecked` have no checksum. A crash of the machine may take the unsynced copy:
    raises `StoreError` for a damaged file without a whole copy.
    """
    if not exists(path):
        return []
    copy = _copy_of(path)
    found = path.read_bytes() if path.exists() else b""
    if _is_whole(found):
        return []
    kept = copy.read_bytes() if copy.exists() else b""
    if _is_whole(kept):
        atomic_file.replace(path, [kept])
        return [f"{path}: put back from {copy}"]
    if _is_of_unchecked_format(found, unchecked):
        return []
    raise StoreError(f"{path}: damaged, with no copy; restore the file from a backup")


def exists(path: Path) -> bool:
    """True if the file or its copy exists, damaged or not."""
    return path.exists() or _copy_of(path).exists()


def _copy_of(path: Path) -> Path:
    return path.with_suffix(".copy")


def _is_whole(found: bytes) -> bool:
    """True if `found` is the content of a file that `save` wrote."""
    said = found[len(_BEGINNING) : _REST]
    return found.startswith(_BEGINNING) and said == b"%08x" % crc32(found[_REST:])


def _is_of_unchecked_format(found: bytes, unchecked: int) -> bool:
    """True if `found` is the content of a file from before checksums."""
    try:
        raw = json.loads(found)
        return raw["format"] <= unchecked and "checksum" not in raw
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _remedy(path: Path, data: Path) -> str:
    """Return the operator's remedy: `txbroker repair` if the copy is whole, or a backup."""
    with contextlib.suppress(OSError):
        if _is_whole(_copy_of(path).read_bytes()):
            return f"put its copy back with: txbroker repair {data}"
    return "restore the file from a backup, or use another `data` folder"
