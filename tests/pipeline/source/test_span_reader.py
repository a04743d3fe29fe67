"""A span whose node goes away: what came is handed on, and one line says the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install 'txbroker[pipeline]'")

from tests.pipeline.site import numbered, publish
from tests.support.nodes import NodeProcess, topology
from txbroker.model.errors import PipelineError
from txbroker.pipeline.source import span_reader
from txbroker.pipeline.source.pushdown import ReadFilter
from txbroker.pipeline.source.ranges import ReadSpan
from txbroker.pipeline.source.span_reader import SpanReader


def test_a_node_that_stays_away_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the zone, what is missing of it and where it was; the rest was handed on."""
    monkeypatch.setattr(span_reader, "PATIENCE", 1.0)
    with NodeProcess(tmp_path, topology("solo", zone="")) as node:
        publish(node, numbered("a", 0, 20))
        # Its records end before the span does, so the reader asks again.
        span = ReadSpan(zone="", epoch=1, start=1, end=41, node="solo", address=node.grpc)
        batches = SpanReader(node.grpc, span, ReadFilter(filter="a"), fail_on_loss=True).batches()

        assert 20 == next(batches).num_rows
        node.kill()
        with pytest.raises(PipelineError) as caught:
            next(batches)

    said = str(caught.value)
    assert said.startswith("zone '', epoch 1: the offsets 21 to 40 cannot be read: ")
    assert said.endswith(
        f"{node.grpc} cannot be reached; is it a node's gRPC address, and does the node run?"
    )
