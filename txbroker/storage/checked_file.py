"""
SHELL: small JSON files that carry a checksum, each with a copy that `txbroker repair` puts back.

The first field is the CRC-32 of all that follows it. A flipped bit in such a file changes an epoch
or an address; nothing else would notice.
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
    Make the file hold `raw`, which has a field `format`, durably; then the copy, unsynced.

    Raises `StoreError`, and then the old file still holds.
    """
    save_text(path, to_text(raw))


def to_text(raw: object) -> str:
    """JSON, compact: with an indent Python encodes ten times slower, and the loop waits."""
    return json.dumps(raw, separators=(",", ":"))


def save_text(path: Path, text: str) -> None:
    """The same as `save` of what has this text."""
    rest = b'",' + text.encode()[1:]
    data = b"%b%08x%b" % (_BEGINNING, crc32(rest), rest)
    atomic_file.replace(path, [data])
    copy, fresh = _copy_of(path), path.with_suffix(".copy.new")
    try:
        fresh.write_bytes(data)
        fresh.replace(copy)
    except OSError:
        # An outdated copy would bring back an epoch that has ended.
        with contextlib.suppress(OSError):
            copy.unlink(missing_ok=True)
            fresh.unlink(missing_ok=True)


def load(path: Path, *, what: str, known: int, unchecked: int, data: Path) -> dict[str, Any] | None:
    """
    The fields of the file, which holds `what`; None where neither the file nor a copy is there.

    Formats up to `unchecked` carry no checksum, above `known` they are refused. `data` is the
    folder that `repair` takes. Raises `StoreError`.
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


def repair(path: Path) -> list[str]:
    """Put the copy in the place of a file that is damaged or missing; a line says so."""
    copy = _copy_of(path)
    if not copy.exists() or _is_whole(path.read_bytes() if path.exists() else b""):
        return []
    found = copy.read_bytes()
    if not _is_whole(found):
        return []
    atomic_file.replace(path, [found])
    return [f"{path}: put back from {copy}"]


def _copy_of(path: Path) -> Path:
    return path.with_suffix(".copy")


def _is_whole(found: bytes) -> bool:
    """True if these are the bytes of a file as `save` wrote it."""
    said = found[len(_BEGINNING) : _REST]
    return found.startswith(_BEGINNING) and said == b"%08x" % crc32(found[_REST:])


def _remedy(path: Path, data: Path) -> str:
    """What the operator can do; the copy helps where it is whole."""
    with contextlib.suppress(OSError):
        if _is_whole(_copy_of(path).read_bytes()):
            return f"put its copy back with: txbroker repair {data}"
    return "restore the file from a backup, or use another `data` folder"
