"""
SHELL: recovers a log at the start of a process: which batches are whole, torn or corrupt.

In a crash unsynced writes reach the disk in any order, page by page, or not at all. Synced writes
stay. So a batch that fails its check was

- torn by a crash, if no later batch records its entry as synced. Also, either no valid batch
  follows, or a sector of zeros marks a page that never reached the disk;
- damaged later (corrupt) otherwise.

Recovery cuts a torn tail off, and refuses a corrupt log.

Each batch records up to which entry the log was synced at its write. So the scan begins at the last
segment. The scan ends where a batch proves all earlier entries synced: usually after one segment.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import attrs

from txbroker.storage import newest_segment
from txbroker.storage.files import SHORT, OpenFile, sync_folder
from txbroker.storage.segment import (
    BLOCK,
    SEGMENT_HEAD,
    CorruptLog,
    Segment,
    find_valid,
    is_cut_short,
    read_segment,
    seek,
    segment_path,
    walk,
)

_SECTOR = 512
_BLOCK = 1024 * 1024  # bytes per step of writing anew

OnTrimmed = Callable[[Path, int, int], None]
"""Callback for a trimmed log: file, last good entry, bytes cut."""


@attrs.define(kw_only=True)
class SegmentScan:
    """
    Result of the scan of one segment.

    `position` is the first position without a valid batch; `next` is the number after the last
    entry before it. `is_whole`: True if only zeros follow `position`. `resumes` is the position of
    the first valid batch behind `position`, or None. `highest` is the number after the last entry
    of any valid batch. `synced` is the highest entry that a valid batch records as synced. `time`
    is the time of the last batch before `position`, in UTC microseconds.
    """

    segment: Segment
    size: int
    has_head: bool
    next: int
    position: int = 0
    is_whole: bool = False
    resumes: int | None = None
    highest: int = 0
    synced: int = 0
    time: int = 0

    @property
    def holds_any(self) -> bool:
        """True if the segment holds any valid batch."""
        return self.position > SEGMENT_HEAD or self.resumes is not None


@attrs.frozen(kw_only=True)
class RecoveredLog:
    """The segments of a log, its next entry number, and the time of its last batch (or 0)."""

    segments: list[Segment]
    next: int
    time: int


def recover(folder: Path, data: Path, on_trimmed: OnTrimmed) -> RecoveredLog:
    """
    Recover the log in `folder`; all of it is durable on return.

    A torn tail is cut off durably, and `on_trimmed` is called. Raises `CorruptLog` for other
    damage.
    """
    found = list_segments(folder)
    latest = newest_segment.read(folder)
    check_last(folder, found, latest, data)
    if not found:
        return RecoveredLog(segments=[], next=1, time=0)
    check_chain(found, data)
    scans = _scan_back(found)
    segments = [segment for segment, _ in found]
    fault = find_fault(scans)
    synced = max(scan.synced for scan in scans)
    if fault is not None:
        _check_torn(scans, fault, synced, latest, data)
        _cut(folder, scans[fault:], on_trimmed)
        kept = fault + 1 if scans[fault].has_head else fault
        del segments[len(segments) - len(scans) + kept :]
        del scans[kept:]
    if not segments:
        return RecoveredLog(segments=[], next=1, time=0)
    following = scans[-1].next
    if synced < following - 1:
        for scan in scans:
            if scan.next - 1 > synced:
                _write_anew(scan.segment, synced)
        sync_folder(folder)
    return RecoveredLog(segments=segments, next=following, time=scans[-1].time)


def _write_anew(segment: Segment, synced: int) -> None:
    """
    Write the bytes behind the last synced entry once more, then sync them.

    After a failed sync the system regards these pages as clean. A second sync alone would succeed
    without having saved anything.
    """
    file = OpenFile(segment.path, os.O_RDWR)
    _, position = seek(file, segment, synced + 1)
    try:
        while block := os.pread(file.fd, min(_BLOCK, segment.end - position), position):
            position += os.pwrite(file.fd, block, position)
    except OSError as error:
        if error.errno not in SHORT:
            raise
        # A copy-on-write file system may lack room for the rewrite; then the sync alone decides.
    file.sync()


def list_segments(folder: Path) -> list[tuple[Segment, bool]]:
    """Return the segments of a folder in order, each with True if its header is valid."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if is_segment_name(entry.name))
    found: list[tuple[Segment, bool]] = []
    for name in names:
        path = folder / name
        size = path.stat().st_size
        segment = read_segment(path, size)
        if segment is None:
            guess = Segment(path=path, first=int(path.stem), previous=0, follows=0, end=size)
            found.append((guess, False))
        else:
            found.append((segment, True))
    return found


def is_segment_name(name: str) -> bool:
    """True if `name` is the file name of a segment."""
    return len(name) == 24 and name.endswith(".log") and name[:20].isdecimal()


def check_chain(found: list[tuple[Segment, bool]], data: Path) -> None:
    """Raise `CorruptLog` if a segment in the middle is missing."""
    place = find_gap(found)
    if place is not None:
        scan = scan_segment(*found[place - 1])
        problem = "the segment before it is missing"
        raise CorruptLog(found[place][0].path, scan.next - 1, data, problem=problem)


def check_last(folder: Path, found: list[tuple[Segment, bool]], latest: int, data: Path) -> None:
    """Raise `CorruptLog` if segments after the last one found are missing."""
    if is_last_missing(found, latest):
        good = scan_segment(*found[-1]).next - 1 if found else 0
        path = segment_path(folder, latest)
        raise CorruptLog(path, good, data, problem="this segment is missing")


def is_last_missing(found: list[tuple[Segment, bool]], latest: int) -> bool:
    """True if the segment that begins with `latest` was durable and the folder lacks it."""
    return latest > (found[-1][0].first if found else 0)


def find_gap(found: list[tuple[Segment, bool]]) -> int | None:
    """Return the index of the first segment whose predecessor is missing, or None."""
    for place in range(1, len(found)):
        (before, _), (segment, has_head) = found[place - 1], found[place]
        if has_head and segment.previous != before.first:
            return place
    return None


def scan_segment(segment: Segment, has_head: bool) -> SegmentScan:
    """Check a whole segment; set its `end` and its index."""
    file = segment.open()
    scan = SegmentScan(segment=segment, size=segment.end, has_head=has_head, next=segment.first)
    if has_head:
        scan.position = SEGMENT_HEAD
        for head, _ in walk(file, segment.first, SEGMENT_HEAD, scan.size):
            if head.first < scan.next:
                break
            scan.time = head.time
            if segment.time is None:
                segment.time = head.time
            segment.index_batch(head.first, head.position)
            scan.next = head.first + head.entries
            scan.position = head.end
            scan.synced = max(scan.synced, head.synced)
    scan.highest = scan.next
    scan.is_whole = has_head and _is_zero(file, scan.position, scan.size)
    if not scan.is_whole:
        for head, _ in find_valid(file, segment.first, scan.position, scan.size):
            if scan.resumes is None:
                scan.resumes = head.position
            scan.synced = max(scan.synced, head.synced)
            scan.highest = max(scan.highest, head.first + head.entries)
    segment.end = scan.position
    segment.is_indexed = has_head
    return scan


def _is_zero(file: OpenFile, position: int, end: int) -> bool:
    while position < end:
        block = os.pread(file.fd, min(BLOCK, end - position), position)
        if not block:
            return True
        if block.count(0) != len(block):
            return False
        position += len(block)
    return True


def _scan_back(found: list[tuple[Segment, bool]]) -> list[SegmentScan]:
    """Scan segments backward, until a batch proves all earlier entries synced."""
    broken = next((place for place, (_, has_head) in enumerate(found) if not has_head), len(found))
    scans: list[SegmentScan] = []
    synced = 0
    for place in reversed(range(len(found))):
        segment, has_head = found[place]
        scan = scan_segment(segment, has_head)
        scans.insert(0, scan)
        synced = max(synced, scan.synced)
        if place < broken and synced >= segment.follows - 1:
            break
    return scans


def find_fault(scans: list[SegmentScan]) -> int | None:
    """Return the index of the first scan that ends in the wrong place, or None."""
    for place, scan in enumerate(scans):
        if not scan.has_head or not scan.is_whole:
            return place
        if place + 1 < len(scans):
            after = scans[place + 1]
            if after.has_head and after.segment.follows != scan.next:
                return place
    return None


def _check_torn(scans: list[SegmentScan], fault: int, synced: int, latest: int, data: Path) -> None:
    """Raise `CorruptLog` unless a crash explains the fault; the module docstring has the rule."""
    scan = scans[fault]
    following = scans[fault - 1].next if not scan.has_head and fault else scan.next
    is_last = scan.resumes is None and not any(later.holds_any for later in scans[fault + 1 :])
    was_durable = not scan.has_head and latest >= scan.segment.first
    if was_durable or synced >= following or not (is_last or _looks_unwritten(scan)):
        raise CorruptLog(scan.segment.path, following - 1, data)


def _looks_unwritten(scan: SegmentScan) -> bool:
    """True if a sector of zeros, or the end of the file, precedes the next valid batch."""
    file, position = scan.segment.open(), scan.position
    if scan.is_whole or is_cut_short(file, scan.segment.first, position, scan.size):
        return True
    end = scan.size if scan.resumes is None else scan.resumes
    while position < end:
        stop = position - position % _SECTOR + _SECTOR
        if _is_zero(file, position, min(stop, scan.size)):
            return stop <= end or scan.resumes is None
        position = stop
    return False


def _cut(folder: Path, scans: list[SegmentScan], on_trimmed: OnTrimmed) -> None:
    """Cut the log off, durably, at the end of the first scan."""
    torn = scans[0]
    size = sum(_used(scan) for scan in scans)
    for scan in reversed(scans):
        if scan is not torn or not torn.has_head:
            scan.segment.path.unlink()
    if torn.has_head:
        os.truncate(torn.segment.path, torn.position)
        file = torn.segment.open()
        os.fsync(file.fd)
    sync_folder(folder)
    if size:
        on_trimmed(torn.segment.path, torn.next - 1, size)


def _used(scan: SegmentScan) -> int:
    """Return the bytes behind the failing position, less zeros at the end of the file."""
    file = scan.segment.open()
    used = 0
    for position in range(scan.position, scan.size, BLOCK):
        block = os.pread(file.fd, BLOCK, position).rstrip(b"\0")
        if block:
            used = position + len(block) - scan.position
    return used
