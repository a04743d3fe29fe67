"""SHELL: implements `txbroker repair`: truncates damaged logs at their last good entry."""

from __future__ import annotations

import json
import os
from pathlib import Path

from txbroker.data.data_directory import has_lost_state, missing_folders
from txbroker.delegation.state import node_state
from txbroker.journal.store import part_meta
from txbroker.journal.store.part_folders import is_dropped
from txbroker.model.errors import StoreError
from txbroker.storage import atomic_file, checked_file, newest_segment
from txbroker.storage.files import sync_folder
from txbroker.storage.recovery import (
    SegmentScan,
    find_fault,
    is_last_missing,
    is_segment_name,
    list_segments,
    scan_segment,
)
from txbroker.storage.segment import Segment, pack_segment, segment_path

_SMALL_FILES = {node_state.STATE: node_state.UNCHECKED, "part.json": part_meta.UNCHECKED}

_BACKUP = "restore it from a backup"

_MOST = 1 << 32
"""The most entries of one segment: so many batches, each with so many records."""


class IncompleteRepair(StoreError):
    """Files of a data folder are beyond repair; `done` has a line for each repaired one."""

    def __init__(self, reason: str, done: list[str]) -> None:
        super().__init__(reason)
        self.done = done


def repair(data: Path) -> list[str]:
    """
    Repair a node's data, as `repair_files` does, and look for parts that are missing.

    Return one line for each damaged log or file. No other process may use the data meanwhile.
    Raises `StoreError`, and `IncompleteRepair` once all other files are repaired.
    """
    lines, lost = _repair_all(data)
    return _require_none(lost + _missing(data), lines)


def repair_files(folder: Path) -> list[str]:
    """
    Check all logs in and below `folder` from end to end; truncate damaged ones.

    A log is truncated at its last good entry; its rest moves to files `*.cut` beside the log. Entry
    numbers that the rest may hold are not reused. The folder may be a part of a node's data. Return
    and raise as `repair` does.
    """
    lines, lost = _repair_all(folder)
    return _require_none(lost, lines)


def _require_none(lost: list[str], lines: list[str]) -> list[str]:
    if lost:
        raise IncompleteRepair("; ".join(lost), lines)
    return lines


def _repair_all(folder: Path) -> tuple[list[str], list[str]]:
    """Return a line for each repaired log or file, and one for each that is beyond repair."""
    lines: list[str] = []
    lost: list[str] = []
    for path, _, names in sorted(os.walk(folder)):
        if is_dropped(Path(path).name):
            continue
        for name, unchecked in _SMALL_FILES.items():
            try:
                lines += checked_file.repair(Path(path, name), unchecked=unchecked)
            except StoreError as error:
                lost.append(str(error))
        if any(is_segment_name(name) or name == newest_segment.NAME for name in names):
            try:
                lines += _repair_log(Path(path))
            except OSError as error:
                raise StoreError(f"{path}: cannot be repaired: {error.strerror}") from error
    return lines, lost


def _missing(data: Path) -> list[str]:
    """Return a line for each part of the data that is missing: nothing can replace it."""
    state = data / node_state.STATE
    if not state.exists():
        is_lost = has_lost_state(data)
        return [f"{state}: missing, with no copy; {_BACKUP}"] if is_lost else []
    lacks = missing_folders(data, owns_zone=_owns_zone(state))
    return [f"{lack}: missing; {_BACKUP}" for lack in lacks]


def _owns_zone(state: Path) -> bool:
    """True if the state is one of a node with a zone."""
    try:
        return json.loads(state.read_bytes())["zone"] is not None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False  # the check of the file itself tells


def _repair_log(folder: Path) -> list[str]:
    found = list_segments(folder)
    latest = newest_segment.read(folder)
    scans = [scan_segment(segment, has_head) for segment, has_head in found]
    fault = find_fault(scans)
    is_missing = is_last_missing(found, latest)
    if fault is None and not is_missing:
        return []
    good, bad = scans[:fault], [] if fault is None else scans[fault:]
    if bad and bad[0].has_head:
        good.append(bad[0])  # its beginning is good, unless it is empty
    following = _following(good, bad)
    highest = max(latest + _MOST if is_missing else 0, following, *(scan.highest for scan in bad))
    begun = good[-1].segment.first if good else 0
    if highest > following or not good:
        # The empty segment must precede the cut. After a crash in between, no other file would name
        # the highest used number.
        begun = _create_segment_at(folder, good[-1].segment if good else None, following, highest)
    lines = _cut_off(bad, following)
    if is_missing:
        path = segment_path(folder, latest)
        lines.append(f"{path}: is missing; the log goes on with entry {begun}")
    newest_segment.write(folder, begun)
    sync_folder(folder)
    return lines


def _following(good: list[SegmentScan], bad: list[SegmentScan]) -> int:
    """Return the number behind the last good entry."""
    if good:
        return good[-1].next
    return bad[0].next if bad else 1


def _cut_off(bad: list[SegmentScan], following: int) -> list[str]:
    """
    Move everything behind the last good entry aside; the first segment loses its bad rest only.
    """
    if not bad:
        return []
    lines = [f"{bad[0].segment.path}: cut off after entry {following - 1}"]
    if bad[0].has_head:
        lines += _save_rest(bad[0])
        bad = bad[1:]
    for scan in reversed(bad):
        kept_in = _free_name(scan.segment.path)
        scan.segment.path.rename(kept_in)
        lines.append(f"{kept_in}: {scan.size} bytes were cut off")
    return lines


def _save_rest(scan: SegmentScan) -> list[str]:
    """Move the rest of a segment behind its last good entry into a file of its own."""
    path, size = scan.segment.path, scan.size - scan.position
    if not size:
        return []
    kept_in = _free_name(path)
    with path.open("r+b") as file, kept_in.open("xb") as rest:
        file.seek(scan.position)
        while block := file.read(1024 * 1024):
            rest.write(block)
        rest.flush()
        os.fsync(rest.fileno())
        sync_folder(path.parent)
        file.truncate(scan.position)
        os.fsync(file.fileno())
    return [f"{kept_in}: {size} bytes were cut off"]


def _free_name(path: Path) -> Path:
    number = 1
    while (name := path.with_suffix(f".{number}.cut")).exists():
        number += 1
    return name


def _create_segment_at(folder: Path, before: Segment | None, following: int, first: int) -> int:
    """
    Create an empty segment durably, so that the log continues with the number `first`; return it.

    The number is higher if a segment of that name exists.
    """
    while segment_path(folder, first).exists():
        first += 1
    segment = Segment(
        path=segment_path(folder, first),
        first=first,
        previous=before.first if before else 0,
        follows=following if before else first,
    )
    # The header is written at once: a segment without one reads as torn, and hides that others are
    # missing.
    atomic_file.replace(segment.path, [pack_segment(segment)])
    return first
