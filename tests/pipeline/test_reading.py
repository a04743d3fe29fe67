"""A span whose node goes away: what came is handed on, and one line says the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install 'txbroker[pipeline]'")

from tests.pipeline.site import numbered, publish
from tests.support.nodes import NodeProcess, topology
from txbroker.errors import PipelineError
from txbroker.pipeline import reading
from txbroker.pipeline.pushdown import Wanted
from txbroker.pipeline.ranges import Span
from txbroker.pipeline.reading import Reading


def test_a_node_that_stays_away_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the zone, what is missing of it and where it was; the rest was handed on."""
    monkeypatch.setattr(reading, "PATIENCE", 1.0)
    with NodeProcess(tmp_path, topology("solo", zone="")) as node:
        publish(node, numbered("a", 0, 20))
        # Its records end before the span does, so the reader asks again.
        span = Span(zone="", epoch=1, start=1, end=41, node="solo", address=node.grpc)
        batches = Reading(node.grpc, span, Wanted(filter="a"), fail_on_loss=True).batches()

        assert 20 == next(batches).num_rows
        node.kill()
        with pytest.raises(PipelineError) as caught:
            next(batches)

    said = str(caught.value)
    assert said.startswith("zone '', epoch 1: the offsets 21 to 40 cannot be read: ")
    assert said.endswith(
        f"{node.grpc} cannot be reached; is it a node's gRPC address, and does the node run?"
    )
