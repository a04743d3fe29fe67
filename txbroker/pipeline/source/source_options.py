"""
Parses the options of the data source and of the sink; every mistake is one line.

Spark passes options as texts under lower-case keys. This module restores the names that users
write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime

import attrs

from txbroker.model.errors import PipelineError
from txbroker.model.topics import TopicError, validate_topic_filter
from txbroker.pipeline.source.positions import Positions, parse_positions

FORMAT = "txbroker"
"""Spark's name of the source and of the sink."""

RESERVED = (
    *("tls", "caFile", "certFile", "keyFile", "serverName"),
    *("username", "user", "password", "token"),
)
"""Options reserved for nodes with TLS and accounts; no node has them yet."""

SOURCE = (
    *("root", "filter", "startingOffsets", "endingOffsets"),
    *("maxRecordsPerBatch", "failOnDataLoss", "pushDown"),
)
SINK = ("root", "mqtt", "query")
SPARKS = ("checkpointLocation", "queryName")
"""Options of Spark's own that a sink receives."""

MAX_RECORDS = 1_000_000
"""Records of a streaming batch without the option `maxRecordsPerBatch`."""

LAST_PORT = 65_535


@attrs.frozen(kw_only=True)
class OffsetBound:
    """
    The begin or end of reading; exactly one field is set.

    The bound is `earliest`, `latest`, a time (UTC, microseconds), or positions.
    """

    is_earliest: bool = False
    is_latest: bool = False
    time: int | None = None
    positions: Positions | None = None


@attrs.frozen(kw_only=True)
class SourceOptions:
    """
    The options of the source.

    - `filter`: "" reads all topics, those that begin with $ included.
    - `start`: None if the option is missing: earliest in a batch, latest in a stream.
    - `end`: for batches only; `max_records`: for streams only.
    - `push_down`: True if the DataFrame is used once, so that filters of the query may reach the
      nodes (see `source.PushingReader`).
    """

    root: str
    filter: str = ""
    start: OffsetBound | None = None
    end: OffsetBound | None = None
    max_records: int = MAX_RECORDS
    fail_on_loss: bool = True
    push_down: bool = False


@attrs.frozen(kw_only=True)
class SinkOptions:
    """
    The options of the sink: `root` is a node's gRPC address, `mqtt` its MQTT address.

    `query` names the writer of a batch; an empty `query` means a new name for each write.
    """

    root: str
    mqtt: str | None = None
    query: str = ""


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of the source; raises `PipelineError`."""
    given = _known(options, SOURCE, ())
    topic_filter = given.get("filter")
    try:
        if topic_filter is not None:
            validate_topic_filter(topic_filter)
    except TopicError as error:
        raise _wrong("filter", str(topic_filter), f"{error} E.g. home/+/#") from None
    return SourceOptions(
        root=_address("root", given.get("root")),
        filter=topic_filter or "",
        start=_bound("startingOffsets", given),
        end=_bound("endingOffsets", given),
        max_records=_number("maxRecordsPerBatch", given.get("maxRecordsPerBatch")),
        fail_on_loss=_flag("failOnDataLoss", given.get("failOnDataLoss", "true")),
        push_down=_flag("pushDown", given.get("pushDown", "false")),
    )


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of the sink; raises `PipelineError`."""
    given = _known(options, SINK, SPARKS)
    mqtt = given.get("mqtt")
    return SinkOptions(
        root=_address("root", given.get("root")),
        mqtt=None if mqtt is None else _address("mqtt", mqtt),
        query=given.get("query", ""),
    )


def parse_time(text: str) -> datetime | None:
    """Parse an ISO 8601 time with its zone; return None for any other text."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def microseconds(moment: datetime) -> int:
    """Convert a time with its zone to microseconds since 1970, UTC, exactly."""
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


# -- one option each


def _known(
    options: Mapping[str, str], names: tuple[str, ...], sparks: tuple[str, ...]
) -> dict[str, str]:
    """Return the options under users' names; raises `PipelineError` for unknown options."""
    ours = {name.lower(): name for name in (*names, *sparks)}
    reserved = {name.lower(): name for name in RESERVED}
    given: dict[str, str] = {}
    for key, value in options.items():
        low = key.lower()
        if low in reserved:
            raise PipelineError(
                f"option {reserved[low]}: reserved until nodes have TLS and accounts; leave it out"
            )
        if low not in ours:
            raise PipelineError(f"option {key}: unknown; the options are {', '.join(names)}")
        given[ours[low]] = value
    return given


def _wrong(name: str, value: str, remedy: str) -> PipelineError:
    return PipelineError(f"option {name}: {value!r}: {remedy}")


def _address(name: str, value: str | None) -> str:
    what = "gRPC" if name == "root" else "MQTT"
    remedy = f"a node's {what} address is wanted, HOST:PORT"
    if value is None:
        raise PipelineError(f"option {name} is missing; {remedy}")
    host, colon, port = value.rpartition(":")
    if not host or not colon or not port.isdecimal() or not 0 < int(port) <= LAST_PORT:
        raise _wrong(name, value, remedy)
    return value


def _number(name: str, value: str | None) -> int:
    if value is None:
        return MAX_RECORDS
    if not value.strip().isdecimal() or int(value) < 1:
        raise _wrong(name, value, "a whole number from 1 on is wanted")
    return int(value)


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise _wrong(name, value, "true or false is wanted")
    return value.lower() == "true"


def _bound(name: str, given: Mapping[str, str]) -> OffsetBound | None:
    value = given.get(name)
    if value is None:
        return None
    if value.lower() == "earliest" and name == "startingOffsets":
        return OffsetBound(is_earliest=True)
    if value.lower() == "latest":
        return OffsetBound(is_latest=True)
    if value.lstrip().startswith("{"):
        return OffsetBound(positions=parse_positions(value, f"option {name}"))
    moment = parse_time(value)
    if moment is None:
        words = "earliest, latest" if name == "startingOffsets" else "latest"
        example = json.dumps({"home/kitchen": {"epoch": 3, "offset": 1200}})
        raise _wrong(
            name, value, f"wanted: {words}, an ISO 8601 time with its zone, or JSON: {example}"
        )
    return OffsetBound(time=microseconds(moment))
