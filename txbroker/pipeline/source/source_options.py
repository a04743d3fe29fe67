"""
The options of the data source and of the sink; every mistake is one line.

Spark hands options on as texts under lower-case keys; here they have the names that users write.
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
"""What Spark calls the source, and the sink."""

RESERVED = (
    *("tls", "caFile", "certFile", "keyFile", "serverName"),
    *("username", "user", "password", "token"),
)
"""For nodes that have TLS and accounts; none has yet."""

SOURCE = (
    *("root", "filter", "startingOffsets", "endingOffsets"),
    *("maxRecordsPerBatch", "failOnDataLoss", "pushDown"),
)
SINK = ("root", "mqtt", "query")
SPARKS = ("checkpointLocation", "queryName")
"""What Spark hands a sink of its own options."""

MAX_RECORDS = 1_000_000
"""Records of a streaming batch, unless `maxRecordsPerBatch` says otherwise."""

LAST_PORT = 65_535


@attrs.frozen(kw_only=True)
class OffsetBound:
    """
    Where reading begins or ends: `earliest`, `latest`, at a time (UTC, microseconds), or at
    positions; exactly one of them.
    """

    is_earliest: bool = False
    is_latest: bool = False
    time: int | None = None
    positions: Positions | None = None


@attrs.frozen(kw_only=True)
class SourceOptions:
    """
    What to read; `filter` "" stands for all, topics that begin with $ included. `start` is None
    where the option is not given: earliest in a batch, latest in a stream. `end` is for batches
    alone, `max_records` for streams. `push_down`: the DataFrame is used once, so filters of the
    query may reach the nodes (see `source.PushingReader`).
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
    Where to publish: `root`, a node's gRPC address, or `mqtt`, its MQTT address. `query` names what
    writes in a batch; empty: a name of its own each time.
    """

    root: str
    mqtt: str | None = None
    query: str = ""


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of the source; raises `PipelineError`."""
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
    """The options of the sink; raises `PipelineError`."""
    given = _known(options, SINK, SPARKS)
    mqtt = given.get("mqtt")
    return SinkOptions(
        root=_address("root", given.get("root")),
        mqtt=None if mqtt is None else _address("mqtt", mqtt),
        query=given.get("query", ""),
    )


def parse_time(text: str) -> datetime | None:
    """A time in ISO 8601 with its zone; None when it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def microseconds(moment: datetime) -> int:
    """A time with its zone as microseconds of UTC since 1970, exactly."""
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


# -- one option each


def _known(
    options: Mapping[str, str], names: tuple[str, ...], sparks: tuple[str, ...]
) -> dict[str, str]:
    """The options under our names; raises `PipelineError` for others."""
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
