"""
The reader of topology files: YAML to `NodeConfig`, with the line of every key for the messages.

The module owns files, documents, keys, and the rules for several keys of one document.
`value_hooks` has the rules of one value, `tree_rules` the rules across documents.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import yaml

from txbroker.config.tree_rules import check, reaches
from txbroker.config.value_hooks import CONVERTER, BadValue, kind
from txbroker.config.values import (
    NOT_KEYS,
    ExpiryRule,
    Limits,
    NodeConfig,
    RetentionLimits,
    SessionBounds,
)
from txbroker.model.errors import ConfigError
from txbroker.model.topics import may_match_within

_EXAMPLE = "see examples/home_topology for whole files"
_MAX_PACKET_IDS = 65_535
_MAX_FILE_BYTES = 16 * 1024 * 1024
_NESTED = {"limits": Limits, "session_limits": SessionBounds, "retention": RetentionLimits}
_LISTS = {"expiry": ExpiryRule}


def load_file(path: Path | str) -> tuple[NodeConfig, ...]:
    """Read all nodes of one file; raises `ConfigError` for the first mistake in it."""
    return load_files([path])


def load_files(paths: Iterable[Path | str]) -> tuple[NodeConfig, ...]:
    """
    Read all nodes of several files, checked together; raises `ConfigError` for the first mistake.
    """
    configs, errors = inspect_files(paths)
    if errors:
        raise errors[0]
    return configs


def inspect_files(
    paths: Iterable[Path | str],
) -> tuple[tuple[NodeConfig, ...], tuple[ConfigError, ...]]:
    """
    Read files; return the readable configs and every mistake: in single documents, then between
    them.

    Rules between documents are checked only if all documents are readable. Otherwise a missing
    document would make others look wrong.
    """
    configs: list[NodeConfig] = []
    errors: list[ConfigError] = []
    for path in paths:
        try:
            documents = _documents(Path(path))
        except ConfigError as error:
            errors.append(error)
            continue
        for document in documents:
            try:
                configs.append(document.node())
            except ConfigError as error:
                errors.append(error)
    return tuple(configs), tuple(errors) or check(configs)


def select(configs: Sequence[NodeConfig], name: str | None) -> NodeConfig:
    """
    Return the config that a process will run: the named one, or the only one.

    Raises `ConfigError` with the names of all nodes.
    """
    source = configs[0].source if configs else Path()
    nodes = ", ".join(config.node for config in configs)
    if name is None and len(configs) == 1:
        return configs[0]
    for config in configs:
        if config.node == name:
            return config
    problem = "several nodes in this file" if name is None else "no such node in this file"
    raise ConfigError(source, "node", name, f"choose with --node one of: {nodes}", problem=problem)


# -- documents


@attrs.define(slots=True, kw_only=True)
class _Document:
    """A YAML document: its mapping, and the line of each key (dotted)."""

    source: Path
    keys: Mapping[str, Any]
    lines: Mapping[str, int]
    first_line: int

    def error(self, key: str, value: object, problem: str, remedy: str) -> ConfigError:
        """
        Return an error at that key's line, or at the document's first line if the key is missing.
        """
        outer = key.partition("[")[0]
        line = self.lines.get(key, self.lines.get(outer, self.first_line))
        return ConfigError(self.source, key, value, remedy, problem=problem, line=line)

    def node(self) -> NodeConfig:
        """Return the node that this document describes; raises `ConfigError`."""
        values = self.structure(NodeConfig, self.keys, "")
        base = self.source.absolute().parent
        values |= {"data": base / values["data"], "source": self.source, "lines": self.lines}
        config = NodeConfig(**values)
        self._check(config)
        return config

    def structure(self, target: type, given: object, prefix: str) -> dict[str, Any]:
        """Read each key of `given` as the type of that attribute of `target`."""
        if not isinstance(given, Mapping):
            key = prefix.rstrip(".")
            names = ", ".join(field.name for field in attrs.fields(target))
            raise self.error(key, given, f"{kind(given)} where a mapping belongs", f"keys: {names}")
        fields = {field.name: field for field in attrs.fields(target) if field.name not in NOT_KEYS}
        for key in given:
            if key not in fields:
                raise self._unknown(prefix, key, given[key], list(fields))
        values: dict[str, Any] = {}
        for name, field in fields.items():
            if name in given:
                values[name] = self._value(prefix + name, given[name], field.type)
            elif field.default is attrs.NOTHING:
                raise self.error(prefix + name, None, "this key is missing", _EXAMPLE)
        return values

    def _value(self, key: str, given: object, target: Any) -> object:
        if key in _NESTED:
            return _NESTED[key](**self.structure(_NESTED[key], given, f"{key}."))
        if key in _LISTS:
            return self._list(key, given, _LISTS[key])
        if given is None:
            remedy = 'write "" for the root zone, or ' if key == "zone" else "give it a value, or "
            raise self.error(key, None, "no value", f"{remedy}leave the key out")
        try:
            return CONVERTER.structure(given, _without_none(target))
        except BadValue as bad:
            raise self.error(key, bad.value, bad.problem, bad.remedy) from None

    def _list(self, key: str, given: object, target: type) -> tuple[object, ...]:
        """Read a list of mappings; mistakes in it are told at the line of its key."""
        if not isinstance(given, list):
            names = ", ".join(field.name for field in attrs.fields(target))
            remedy = f"write a list of mappings with the keys {names}"
            raise self.error(key, given, f"{kind(given)} where a list belongs", remedy)
        return tuple(
            target(**self.structure(target, one, f"{key}[{number}]."))
            for number, one in enumerate(given)
        )

    def _unknown(self, prefix: str, key: object, value: object, known: list[str]) -> ConfigError:
        near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
        remedy = f"did you mean {prefix}{near[0]}?" if near else f"known keys: {', '.join(known)}"
        return self.error(f"{prefix}{key}", value, "unknown key", remedy)

    def _check(self, config: NodeConfig) -> None:
        """Check the rules for several keys of one document."""
        zone, parent = config.zone, config.parent
        if parent is None and zone is None:
            remedy = "add the gRPC address of a node that owns a zone"
            raise self.error("parent", None, "a node without a zone needs a parent", remedy)
        if parent is None and zone != "":
            remedy = 'add the parent\'s gRPC address, or write zone: "" for the root'
            raise self.error("zone", zone, "only the root zone has no parent", remedy)
        if parent is not None and zone == "":
            remedy = "leave parent out, or name a zone below the root"
            raise self.error("zone", zone, "the root zone has no parent", remedy)
        if parent is not None and parent.port == 0:
            remedy = "write the port of the parent's grpc"
            raise self.error("parent", str(parent), "port 0 cannot be dialled", remedy)
        if parent is not None and reaches(parent, config):
            remedy = "write the parent's grpc here, not this node's"
            raise self.error("parent", str(parent), "the node would be its own parent", remedy)
        if zone and zone.count("/") + 1 > config.limits.levels:
            problem = f"deeper than the {config.limits.levels} levels of limits.levels"
            raise self.error("zone", zone, problem, "name a zone with fewer levels")
        self._check_filters(config)
        for key in ("inflight", "receive_maximum", "topic_aliases"):
            value = getattr(config.limits, key)
            if value > _MAX_PACKET_IDS:
                problem = "MQTT has two bytes for it"
                raise self.error(f"limits.{key}", value, problem, f"at most {_MAX_PACKET_IDS}")

    def _check_filters(self, config: NodeConfig) -> None:
        """Check that the filters of owners' keys match topics of the node's zone."""
        filters = {f"expiry[{n}].filter": rule.filter for n, rule in enumerate(config.expiry)}
        filters |= {f"hold_first[{n}]": one for n, one in enumerate(config.hold_first)}
        zone = config.zone
        for key, topic_filter in filters.items():
            if zone is None:
                remedy = "write it at the owner of these topics"
                raise self.error(key, topic_filter, "this node owns no zone", remedy)
            if not may_match_within(topic_filter, zone):
                remedy = f"name topics within {zone!r}, or write it at their owner"
                raise self.error(key, topic_filter, "matches no topic of the zone", remedy)
        if config.hold_first and config.journal == "none":
            problem = "keeps nothing for a first subscriber"
            raise self.error("journal", "none", problem, "write qos12 or all, for hold_first")


def _without_none(target: Any) -> Any:
    """Return `X` of `X | None`: a present key has a value."""
    options = [option for option in getattr(target, "__args__", ()) if option is not type(None)]
    is_optional = type(None) in getattr(target, "__args__", ())
    return options[0] if is_optional else target


# -- YAML


def _documents(path: Path) -> list[_Document]:
    """Return all documents of a file, without empty ones; raises `ConfigError`."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
        text = raw.decode()
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise ConfigError(path, "", None, "name a topology file", problem=problem) from None
    except UnicodeDecodeError:
        raise ConfigError(path, "", None, "save it as UTF-8", problem="not UTF-8 text") from None
    if len(raw) > _MAX_FILE_BYTES:
        raise ConfigError(path, "", None, "name a topology file", problem="too large for one")
    try:
        documents = list(_parse(path, text))
    except yaml.YAMLError as error:
        raise _syntax_error(path, error) from None
    except (ValueError, RecursionError) as error:
        # YAML's constructors raise these, e.g. for a date with month 13, or for lists nested
        # without end.
        remedy = "put such a value in quotes"
        raise ConfigError(path, "", None, remedy, problem=f"not usable YAML ({error})") from None
    if not documents:
        raise ConfigError(path, "", None, _EXAMPLE, problem="no node in this file")
    return documents


def _parse(path: Path, text: str) -> Iterator[_Document]:
    loader = yaml.SafeLoader(text)
    try:
        while loader.check_node():
            root = loader.get_node()
            assert root is not None  # `check_node` has found a document
            first_line = root.start_mark.line + 1
            lines = _key_lines(path, root)
            value = loader.construct_document(root)
            if value is None:
                continue
            if not isinstance(value, dict):
                problem = f"{kind(value)} where a mapping of keys belongs"
                raise ConfigError(path, "", None, _EXAMPLE, problem=problem, line=first_line)
            yield _Document(source=path, keys=value, lines=lines, first_line=first_line)
    finally:
        loader.dispose()


def _key_lines(path: Path, root: yaml.Node) -> dict[str, int]:
    """Return the line of each key, two levels deep; raises `ConfigError` for a repeated key."""
    lines: dict[str, int] = {}
    mappings = [("", root)]
    while mappings:
        prefix, mapping = mappings.pop()
        if not isinstance(mapping, yaml.MappingNode):
            continue
        for key, value in mapping.value:
            name, line = f"{prefix}{key.value}", key.start_mark.line + 1
            if name in lines:
                problem = f"this key is already on line {lines[name]}"
                remedy = "keep one of them, or put --- between two nodes"
                given = getattr(value, "value", None)
                given = given if isinstance(given, str) else "..."
                raise ConfigError(path, name, given, remedy, problem=problem, line=line)
            lines[name] = line
            if not prefix:
                mappings.append((f"{name}.", value))
    return lines


def _syntax_error(path: Path, error: yaml.YAMLError) -> ConfigError:
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "bad text")
    context = getattr(error, "context", None)
    mark = getattr(error, "problem_mark", None)
    return ConfigError(
        path,
        "",
        None,
        "check indentation, colons and quotes there",
        problem=f"not valid YAML: {problem}" + (f" {context}" if context else ""),
        line=mark.line + 1 if mark is not None else None,
    )
