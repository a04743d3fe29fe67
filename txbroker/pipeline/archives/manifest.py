"""
CORE: the commits of an archive as values: which files the archive consists of. Opens no file.

- A *version* of an archive is the result of all its manifests up to that number. Each manifest is
  an `ArchiveChange`. Every `WHOLE_EVERY`th manifest also holds the resulting `ArchiveState`, so
  that no reader reads further back.
- A file is *named* from the commit that adds it to the commit that removes it. Removed files stay
  on the disk for a while, for readers that began earlier. `ArchiveState.removed` has the removal
  times.
- Files that no commit ever named (*orphans*, of failed attempts) are deleted likewise. A commit
  condemns them, and a vacuum deletes them after the grace time. A writer that would name a
  condemned file gets `ChangeVerdict.LOST`. So a named file is never deleted, however slow a writer
  is. Times only decide how long unneeded files stay.
- The query's id and the batch's number identify a batch of a streaming query. A batch that is
  committed already gets `ChangeVerdict.DONE`.
"""

from __future__ import annotations

import enum
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self
from urllib.parse import quote

import attrs

from txbroker.model.topics import may_match_within

FORMAT = 1
"""Format version of the manifests that this code writes, and the newest that it reads."""
WHOLE_EVERY = 32
"""A manifest whose version is a multiple of this holds the whole state."""

_MAX_NAME = 200
_SHORT_NAME = 160

Position = tuple[int, int]
"""Epoch and offset, compared as a pair."""


class BadManifest(ValueError):
    """A manifest is unusable; the text gives the reason without the file."""


class ChangeVerdict(enum.Enum):
    """The verdict on a change at a state."""

    FITS = "fits"
    DONE = "done"
    """The change's batch is committed already."""
    LOST = "lost"
    """A file that the change names or removes is no longer available to it."""


# -- the parts


@attrs.frozen(kw_only=True, slots=True)
class DataFile:
    """
    A Parquet file with rows of one zone and one day, ordered by epoch and offset.

    The layout of the rows (`writer.FileLayout`) defines these; for rows of ledgers, "zone" is a
    ledger. `path` is relative to the archive. `first` and `last` are the (epoch, offset) of the
    first and the last row. `earliest` and `latest` bound the rows' times, in microseconds since
    1970.
    """

    path: str
    zone: str
    day: str
    rows: int
    bytes: int
    first: Position
    last: Position
    earliest: int
    latest: int

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value for a manifest."""
        return attrs.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Parse a value of `to_json`; raises KeyError, TypeError or ValueError."""
        fields = {field.name: value[field.name] for field in attrs.fields(cls)}
        for name in ("first", "last"):
            epoch, offset = fields[name]
            fields[name] = (int(epoch), int(offset))
        return cls(**fields)


@attrs.frozen(kw_only=True, slots=True)
class ArchiveChange:
    """
    The changes of one commit at `time` (microseconds since 1970).

    `removed` files were named before; `orphans` never were. `forgotten` files are removed ones that
    were deleted from the disk. `query` is "" for a commit without a batch of a streaming query.
    `settings`, if given, replace those of the state.
    """

    time: int
    added: tuple[DataFile, ...] = ()
    removed: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    query: str = ""
    batch: int = 0
    settings: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value for a manifest."""
        return attrs.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Parse a value of `to_json`; raises KeyError, TypeError or ValueError."""
        return cls(
            time=int(value["time"]),
            added=tuple(map(DataFile.from_json, value["added"])),
            removed=tuple(value["removed"]),
            orphans=tuple(value["orphans"]),
            forgotten=tuple(value["forgotten"]),
            query=str(value["query"]),
            batch=int(value["batch"]),
            settings=value["settings"],
        )


@attrs.frozen(kw_only=True, slots=True)
class ArchiveState:
    """
    An archive at a version; version 0 stands for an archive that does not exist yet.

    - `files`, `removed`: by path; `removed` has the time of removal.
    - `positions`: the next position to read of each zone.
    - `times`: the latest time of each zone's rows.
    - `batches`: the last batch of each streaming query.
    - `settings`: of the job that writes to the archive; `kind` is the kind of the rows.
    """

    version: int = 0
    files: Mapping[str, DataFile] = attrs.field(factory=dict)
    removed: Mapping[str, int] = attrs.field(factory=dict)
    positions: Mapping[str, Position] = attrs.field(factory=dict)
    times: Mapping[str, int] = attrs.field(factory=dict)
    batches: Mapping[str, int] = attrs.field(factory=dict)
    settings: Mapping[str, Any] = attrs.field(factory=dict)

    def has_batch(self, query: str, batch: int) -> bool:
        """True if this batch of a query, or a later one, is committed."""
        return batch <= self.batches.get(query, -1)

    def judge(self, change: ArchiveChange) -> ChangeVerdict:
        """Return the verdict on `change` at this state."""
        if change.query and self.has_batch(change.query, change.batch):
            return ChangeVerdict.DONE
        new = {file.path for file in change.added} | set(change.orphans)
        fits = (
            not (new & self.files.keys())
            and not (new & self.removed.keys())
            and self.files.keys() >= set(change.removed)
            and self.removed.keys() >= set(change.forgotten)
        )
        return ChangeVerdict.FITS if fits else ChangeVerdict.LOST

    def apply(self, change: ArchiveChange) -> ArchiveState:
        """Return the next version; the verdict of `judge` must be `ChangeVerdict.FITS`."""
        removed = {
            path: time for path, time in self.removed.items() if path not in change.forgotten
        }
        removed.update(dict.fromkeys((*change.removed, *change.orphans), change.time))
        files = {**self.files, **{file.path: file for file in change.added}}
        for path in change.removed:
            del files[path]
        positions, times = dict(self.positions), dict(self.times)
        for file in change.added:
            behind = (file.last[0], file.last[1] + 1)
            positions[file.zone] = max(positions.get(file.zone, behind), behind)
            times[file.zone] = max(times.get(file.zone, file.latest), file.latest)
        batches = dict(self.batches)
        if change.query:
            batches[change.query] = change.batch
        return ArchiveState(
            version=self.version + 1,
            files=files,
            removed=removed,
            positions=positions,
            times=times,
            batches=batches,
            settings=self.settings if change.settings is None else change.settings,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value for a manifest."""
        value = attrs.asdict(self, recurse=False)
        value["files"] = [file.to_json() for file in self.files.values()]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Parse a value of `to_json`; raises KeyError, TypeError or ValueError."""
        files = [DataFile.from_json(file) for file in value["files"]]
        return cls(
            version=int(value["version"]),
            files={file.path: file for file in files},
            removed=dict(value["removed"]),
            positions={
                zone: (int(epoch), int(offset))
                for zone, (epoch, offset) in value["positions"].items()
            },
            times=dict(value["times"]),
            batches=dict(value["batches"]),
            settings=dict(value["settings"]),
        )


# -- manifests as bytes


def is_whole(version: int) -> bool:
    """True if the manifest of this version holds the whole state."""
    return version % WHOLE_EVERY == 0


def base_of(version: int) -> int:
    """Return the version of the last whole manifest at or before `version`, or 0."""
    return version - version % WHOLE_EVERY


def encode(state: ArchiveState, change: ArchiveChange) -> bytes:
    """
    Encode the manifest of the commit of `change` that led to `state`.

    The first line has the format and a checksum; the contents follow.
    """
    contents = {"version": state.version, "change": change.to_json()}
    if is_whole(state.version):
        contents["state"] = state.to_json()
    body = json.dumps(contents, separators=(",", ":")).encode()
    head = json.dumps({"format": FORMAT, "crc32": zlib.crc32(body)}).encode()
    return b"%s\n%s\n" % (head, body)


def decode(data: bytes, version: int) -> tuple[ArchiveChange, ArchiveState | None]:
    """
    Decode the manifest of `version`: its change, and the state of a whole manifest, or None.

    Raises `BadManifest`.
    """
    head, _, body = data.partition(b"\n")
    try:
        header = json.loads(head)
        newer = int(header["format"])
        checksum = int(header["crc32"])
    except (ValueError, KeyError, TypeError):
        raise BadManifest("damaged, its first line is none of a manifest") from None
    if newer > FORMAT:
        raise BadManifest(
            f"format {newer} of a newer txbroker, this one reads up to {FORMAT}; upgrade txbroker"
        )
    body = body.removesuffix(b"\n")
    if zlib.crc32(body) != checksum:
        raise BadManifest("damaged, its checksum differs")
    try:
        contents = json.loads(body)
        if contents["version"] != version:
            raise BadManifest(f"damaged, it is of version {contents['version']}")
        change = ArchiveChange.from_json(contents["change"])
        return change, ArchiveState.from_json(contents["state"]) if is_whole(version) else None
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, BadManifest):
            raise
        raise BadManifest(f"damaged ({error!r})") from None


# -- names and choices


def zone_folder(apex: str, column: str = "zone") -> str:
    """
    Return the folder name of a zone, or of a value of another grouping column.

    A percent-encoded apex too long for file systems is cut, and a hash distinguishes it. No
    encoding contains `%~`.
    """
    name = quote(apex, safe="") or "%2E"
    if len(name) > _MAX_NAME:
        name = f"{name[:_SHORT_NAME]}%~{hashlib.sha256(apex.encode()).hexdigest()[:32]}"
    return f"{column}={name}"


@attrs.frozen(kw_only=True, slots=True)
class FilesWanted:
    """
    The selection of a reader; None selects everything.

    `topics` is an MQTT filter. `since` and `until` (exclusive) are microseconds since 1970. `start`
    and `end` (exclusive) are positions by zone, and limit only the zones that they name.
    """

    zones: frozenset[str] | None = None
    topics: str | None = None
    since: int | None = None
    until: int | None = None
    start: Mapping[str, Position] | None = None
    end: Mapping[str, Position] | None = None

    def may_be_in(self, file: DataFile) -> bool:
        """True if the file may hold selected rows."""
        if self.zones is not None and file.zone not in self.zones:
            return False
        if self.topics is not None and not may_match_within(self.topics, file.zone):
            return False
        if self.since is not None and file.latest < self.since:
            return False
        if self.until is not None and file.earliest >= self.until:
            return False
        if self.start is not None and file.last < self.start.get(file.zone, file.last):
            return False
        return self.end is None or file.first < self.end.get(file.zone, (file.first[0] + 1, 0))


def select(files: Iterable[DataFile], wanted: FilesWanted) -> Iterator[DataFile]:
    """Return the files that may hold selected rows."""
    return (file for file in files if wanted.may_be_in(file))


def outlived(files: Iterable[DataFile], ages: Mapping[str, int], age: int, now: int) -> list[str]:
    """
    Return the paths of files whose every row is too old at `now`.

    The limit is the zone's entry in `ages`, or `age` without one; all in microseconds.
    """
    return [file.path for file in files if file.latest < now - ages.get(file.zone, age)]
