"""
SHELL: checks that a job can resume from the checkpoint of its query.

Spark reads the newest file of each log in the checkpoint, and trusts it. Spark's errors about a
damaged file name neither the file nor a remedy, so a job checks first.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from txbroker.model.errors import PipelineError

_VERSION = "v1"


def check_checkpoint(folder: Path) -> None:
    """
    Raise `PipelineError` with the file's name if the checkpoint is damaged.

    A missing or new checkpoint is good. The source checks whether the offsets are positions.
    """
    offsets, commits = (_numbers(folder / name) for name in ("offsets", "commits"))
    try:
        metadata = folder / "metadata"
        if offsets or commits or metadata.exists():
            _object(metadata, _text(metadata), "id")
        if offsets:
            newest = folder / "offsets" / str(offsets[-1])
            _object(newest, _lines(newest)[-1])
        if commits:
            newest = folder / "commits" / str(commits[-1])
            _object(newest, _lines(newest)[-1])
        if commits and (not offsets or offsets[-1] < commits[-1]):
            raise PipelineError(f"{folder / 'offsets' / str(commits[-1])}: is missing")
    except PipelineError as error:
        raise PipelineError(
            f"{error}; delete {folder}: the job then goes on where its results end"
        ) from None


def _numbers(folder: Path) -> list[int]:
    """Return the numbers of the batches of a log, in order."""
    return sorted(int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal())


def _lines(file: Path) -> list[str]:
    """Return the lines after the version of a log's file, at least one; raises `PipelineError`."""
    lines = _text(file).splitlines()
    if len(lines) < 2 or lines[0] != _VERSION:
        raise PipelineError(f"{file}: damaged, it does not begin as Spark's logs do")
    return lines[1:]


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError as error:
        raise PipelineError(f"{file}: cannot be read: {error.strerror}") from None


def _object(file: Path, text: str, *keys: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not value.keys() >= set(keys):
        raise PipelineError(f"{file}: damaged")
    return value
