"""Options: what they mean, and every mistake in one line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from txbroker.model.errors import PipelineError
from txbroker.pipeline.source.positions import ZonePosition
from txbroker.pipeline.source.source_options import (
    MAX_RECORDS,
    RESERVED,
    OffsetBound,
    SourceOptions,
    microseconds,
    parse_time,
    sink_options,
    source_options,
)

ROOT = {"root": "127.0.0.1:7001"}


def test_defaults() -> None:
    assert SourceOptions(root="127.0.0.1:7001") == source_options(ROOT)
    assert MAX_RECORDS == source_options(ROOT).max_records


def test_all_of_them_whatever_their_case() -> None:
    given = {
        "ROOT": "[::1]:1",
        "filter": "+/a",
        "startingoffsets": "EARLIEST",
        "endingOffsets": '{"a": {"epoch": 1, "offset": 2}}',
        "maxrecordsperbatch": "5",
        "failOnDataLoss": "False",
        "pushDown": "true",
    }

    assert SourceOptions(
        root="[::1]:1",
        filter="+/a",
        start=OffsetBound(is_earliest=True),
        end=OffsetBound(positions={"a": ZonePosition(1, 2)}),
        max_records=5,
        fail_on_loss=False,
        push_down=True,
    ) == source_options(given)


@pytest.mark.parametrize("name", RESERVED)
@pytest.mark.parametrize("parse", [source_options, sink_options])
def test_what_nodes_do_not_have_yet_is_refused(name: str, parse: object) -> None:
    assert callable(parse)
    with pytest.raises(PipelineError, match=f"^option {name}: reserved until"):
        parse({**ROOT, name: "x"})


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"root": "x:0"}, "option root: 'x:0': "),
        ({"root": "x:70000"}, "option root: 'x:70000': "),
        ({"endingOffsets": "earliest"}, "option endingOffsets: 'earliest': wanted: latest, an ISO"),
        ({"filter": ""}, "option filter: '': "),
        ({"path": "x"}, "option path: unknown; the options are root, filter, "),
    ],
)
def test_mistakes_of_a_source(options: dict[str, str], line: str) -> None:
    with pytest.raises(PipelineError) as caught:
        source_options({**ROOT, **options})

    assert str(caught.value).startswith(line)


def test_without_a_root() -> None:
    for parse in (source_options, sink_options):
        with pytest.raises(PipelineError, match="^option root is missing; a node's gRPC address"):
            parse({})


def test_a_sink_knows_what_spark_adds() -> None:
    options = sink_options({**ROOT, "checkpointlocation": "/x", "mqtt": "h:1883", "query": "q"})

    assert ("h:1883", "q") == (options.mqtt, options.query)


def test_times_are_exact() -> None:
    moment = datetime(2026, 11, 21, 20, 0, 0, 123_457, timezone(timedelta(hours=1)))

    assert moment == parse_time("2026-11-21T20:00:00.123457+01:00")
    assert None is parse_time("2026-11-21T20:00:00")
    assert 1_795_287_600_123_457 == microseconds(moment)
    assert -1 == microseconds(datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC))
