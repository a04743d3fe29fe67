"""
The mapping of columns to topics: a small YAML file (see mappings/nine-rooms.yaml), and the readings
that it makes of a source's rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import yaml
from readings import Reading, Row, Source

_KEYS = {"time", "time_formats", "default", "groups"}


class MappingError(ValueError):
    """
    A mapping file that cannot be used; the text is one line: file, key, value, remedy.
    """


@attrs.frozen(kw_only=True, slots=True)
class TopicMapping:
    """
    The content of a mapping file: groups of columns with their topics, and how to read times.
    """

    path: Path
    time: str
    time_formats: tuple[str, ...]
    default: tuple[str, ...]
    groups: Mapping[str, Mapping[str, str]]

    def select(self, names: Sequence[str], source: Source) -> dict[str, str]:
        """
        Column → topic of the named groups, in the file's order. MappingError for a group that
        is not there, and for a column that the source lacks.
        """
        chosen: dict[str, str] = {}
        for name in names:
            if name not in self.groups:
                known = ", ".join(self.groups)
                raise MappingError(f"{self.path}: no group {name!r}; choose from {known}")
            chosen |= self.groups[name]
        for column in [self.time, *chosen]:
            if column not in source.columns:
                raise MappingError(
                    f"{self.path}: column {column!r} is not in {source.name}; "
                    "correct the name or choose other --groups"
                )
        return chosen

    def readings(self, source: Source, names: Sequence[str]) -> Iterator[Reading]:
        """
        The readings of the named groups, row by row, a row's in the file's order. Errors as
        `select`, at once; cells that hold no finite number (blank, NA) are passed over.
        """
        return self._read(source.rows, self.select(names, source))

    def _read(self, rows: Iterator[Row], chosen: Mapping[str, str]) -> Iterator[Reading]:
        for row in rows:
            time = self._time(row[self.time] or "")
            for column, topic in chosen.items():
                value = _number(row[column])
                if value is not None:
                    yield Reading(topic=topic, value=value, time=time)

    def _time(self, text: str) -> str:
        for pattern in self.time_formats:
            try:
                return datetime.strptime(text, pattern).isoformat()
            except ValueError:
                continue
        return text  # a form that nobody announced is passed on as it stands


def load_mapping(path: Path) -> TopicMapping:
    """
    Read and check a mapping file; MappingError names the first thing that is wrong with it.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MappingError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise MappingError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise MappingError(f"{path}: must hold the keys {', '.join(sorted(_KEYS))}")
    if unknown := {str(key) for key in document} - _KEYS:
        raise MappingError(f"{path}: unknown key {min(unknown)!r}; known: {sorted(_KEYS)}")
    groups = _groups(path, document.get("groups"))
    default = _strings(path, "default", document.get("default", list(groups)))
    for name in default:
        if name not in groups:
            raise MappingError(f"{path}: default: no group {name!r}; choose from {list(groups)}")
    return TopicMapping(
        path=path,
        time=_strings(path, "time", [document.get("time")])[0],
        time_formats=_strings(path, "time_formats", document.get("time_formats", [])),
        default=default,
        groups=groups,
    )


def _groups(path: Path, value: Any) -> dict[str, dict[str, str]]:
    if not isinstance(value, dict) or not all(isinstance(group, dict) for group in value.values()):
        raise MappingError(f"{path}: groups: must map a group's name to its column: topic pairs")
    column_of: dict[str, str] = {}
    for name, group in value.items():
        for column, topic in group.items():
            where = f"{path}: groups: {name}: {column}"
            if not isinstance(topic, str) or not topic or set(topic) & set("#+\0"):
                raise MappingError(f"{where}: {topic!r} is no topic; give one without wildcards")
            if topic in column_of:
                raise MappingError(f"{where}: {topic} is taken by {column_of[topic]}; use another")
            column_of[topic] = str(column)
    return {
        str(name): {str(column): topic for column, topic in group.items()}
        for name, group in value.items()
    }


def _strings(path: Path, key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise MappingError(f"{path}: {key}: {value!r} must be text")
    return tuple(value)


def _number(cell: str | None) -> float | None:
    try:
        value = float(cell or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
