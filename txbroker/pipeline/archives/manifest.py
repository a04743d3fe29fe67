"""
CORE: the commits of an archive. Which files it consists of, as values; nothing here opens a file.

- A *version* of an archive is the outcome of all its manifests up to that number. Each manifest is
  a `ArchiveChange`; every `WHOLE_EVERY`th also holds the whole `ArchiveState` behind it, so that
  nobody reads further back than that.
- A file is *named* from the commit that adds it to the one that removes it. Removed files stay on
  disk for a while, for readers that began before; `ArchiveState.removed` remembers since when.
- Files that no commit ever named (*orphans*, of attempts that failed) are deleted the same way: one
  commit condemns them, and only after the grace time are they gone. A writer that would name a
  condemned file is told `ChangeVerdict.LOST`. So nothing that a commit names is ever deleted,
  however slow a writer is; times only decide how long things lie about.
- A batch of a streaming query is known by the query's id and its number. What was committed once is
  `ChangeVerdict.DONE` when it comes again.
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
"""The version of the manifests' format that this code writes, and the newest that it reads."""
WHOLE_EVERY = 32
"""A manifest whose version is a multiple of this holds the whole state."""

_MAX_NAME = 200
_SHORT_NAME = 160

Position = tuple[int, int]
"""Epoch and offset, compared as a pair."""


class BadManifest(ValueError):
    """A manifest cannot be used; the text says why, without the file."""


class ChangeVerdict(enum.Enum):
    """What becomes of a change at a state."""

    FITS = "fits"
    DONE = "done"
    """Its batch was committed before."""
    LOST = "lost"
    """A file that it names or removes is no longer there for it."""


# -- the parts


@attrs.frozen(kw_only=True, slots=True)
class DataFile:
    """
    A Parquet file of rows of one zone and one day, ordered by epoch and offset. What these are is
    said by the layout of the rows (`writer.Layout`); of the rows of ledgers, "zone" is a ledger.

    `path` is relative to the archive; `first` and `last` are the (epoch, offset) of its first and
    its last row; `earliest` and `latest` bound the times in it, in microseconds since 1970.
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
        """As it stands in a manifest."""
        return attrs.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """What `to_json` gave; raises KeyError, TypeError or ValueError."""
        fields = {field.name: value[field.name] for field in attrs.fields(cls)}
        for name in ("first", "last"):
            epoch, offset = fields[name]
            fields[name] = (int(epoch), int(offset))
        return cls(**fields)


@attrs.frozen(kw_only=True, slots=True)
class ArchiveChange:
    """
    What one commit does, at `time` (microseconds since 1970).

    `removed` were named before, `orphans` never were, `forgotten` are removed ones that are gone
    from the disk. `query` is "" for a commit that is no batch of a streaming query. `settings`
    replace those of the state where given.
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
        """As it stands in a manifest."""
        return attrs.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """What `to_json` gave; raises KeyError, TypeError or ValueError."""
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
    An archive at a version; version 0 is one that does not exist yet.

    `files` and `removed` by path, the latter with the time of removal; `positions` says of each
    zone where to read on, `times` the latest time of its rows; `batches` has the last batch of each
    streaming query. `settings` are of the job that writes here; `kind` of them says what the rows
    are.
    """

    version: int = 0
    files: Mapping[str, DataFile] = attrs.field(factory=dict)
    removed: Mapping[str, int] = attrs.field(factory=dict)
    positions: Mapping[str, Position] = attrs.field(factory=dict)
    times: Mapping[str, int] = attrs.field(factory=dict)
    batches: Mapping[str, int] = attrs.field(factory=dict)
    settings: Mapping[str, Any] = attrs.field(factory=dict)

    def has_batch(self, query: str, batch: int) -> bool:
        """Whether this batch of a query, or a later one, is committed."""
        return batch <= self.batches.get(query, -1)

    def judge(self, change: ArchiveChange) -> ChangeVerdict:
        """What becomes of `change` here."""
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
        """The next version. The change fits (`judge`)."""
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
        """As it stands in a manifest."""
        value = attrs.asdict(self, recurse=False)
        value["files"] = [file.to_json() for file in self.files.values()]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """What `to_json` gave; raises KeyError, TypeError or ValueError."""
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
    """Whether the manifest of this version holds the whole state."""
    return version % WHOLE_EVERY == 0


def base_of(version: int) -> int:
    """The version to read from, to get to `version`: of its last whole, or 0."""
    return version - version % WHOLE_EVERY


def encode(state: ArchiveState, change: ArchiveChange) -> bytes:
    """
    The manifest of the commit of `change` that led to `state`: a line with the format and a
    checksum, then the contents.
    """
    contents = {"version": state.version, "change": change.to_json()}
    if is_whole(state.version):
        contents["state"] = state.to_json()
    body = json.dumps(contents, separators=(",", ":")).encode()
    head = json.dumps({"format": FORMAT, "crc32": zlib.crc32(body)}).encode()
    return b"%s\n%s\n" % (head, body)


def decode(data: bytes, version: int) -> tuple[ArchiveChange, ArchiveState | None]:
    """
    A manifest that should be of `version`: its change, and where it is whole the state behind it.

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
    The folder of a zone, or of a value of another column that stands in its place. An apex whose
    percent-encoding no file system takes is cut and told apart by a hash; `%~` occurs in no
    encoding.
    """
    name = quote(apex, safe="") or "%2E"
    if len(name) > _MAX_NAME:
        name = f"{name[:_SHORT_NAME]}%~{hashlib.sha256(apex.encode()).hexdigest()[:32]}"
    return f"{column}={name}"


@attrs.frozen(kw_only=True, slots=True)
class FilesWanted:
    """
    What a reader asks for; None is anything. `topics` is an MQTT filter, `since` and `until` are
    microseconds since 1970 (`until` exclusive), `start` and `end` positions of zones (`end`
    exclusive), of which a zone that is not named has none.
    """

    zones: frozenset[str] | None = None
    topics: str | None = None
    since: int | None = None
    until: int | None = None
    start: Mapping[str, Position] | None = None
    end: Mapping[str, Position] | None = None

    def may_be_in(self, file: DataFile) -> bool:
        """Whether the file may hold such rows."""
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
    """The files that may hold what is wanted."""
    return (file for file in files if wanted.may_be_in(file))


def outlived(files: Iterable[DataFile], ages: Mapping[str, int], age: int, now: int) -> list[str]:
    """
    Paths of the files whose every row is older than its zone's entry in `ages`, or than `age`
    where it has none; all in microseconds.
    """
    return [file.path for file in files if file.latest < now - ages.get(file.zone, age)]
