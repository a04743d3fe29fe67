"""Who dials for a zone, and how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import grpc
import grpc.aio
import pytest

from tests.support.cluster import on_loop
from tests.support.edge_bench import EdgeBench
from tests.support.recorders import cut
from txbroker.link.dialer import Dialer


class Owner:
    """Of a zone that is forgotten just as a call fails, which swallows the end of the dial."""

    def __init__(self) -> None:
        self.dialer: Dialer
        self.route: Any = None
        self.end: Callable[[Any], None]
        self.calls = 0

    def stub(self, *_: object) -> Owner:
        return self

    async def OpenLink(self, *_: object, **__: object) -> None:
        self.calls += 1
        self.end(self.route)
        none = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, none, none, "just starting")


@pytest.mark.parametrize("is_served_here", [False, True])
@on_loop
async def test_a_dial_that_was_ended_while_it_failed_ends(is_served_here: bool) -> None:
    """It went on beside the one for the route that the zone had next, and each took its links."""
    bench, owner = EdgeBench(), Owner()
    standing = SimpleNamespace(identity="i", life="l", grpc="me:1", root=None)
    tasks = SimpleNamespace(start=asyncio.ensure_future)
    nothing: Any = SimpleNamespace(end=lambda: None, when_relieved=lambda _: None)
    owner.dialer = dialer = Dialer(
        connections=mock.Mock(),
        node_grant=standing,  # type: ignore[arg-type]
        dialing=nothing,
        channels=owner,  # type: ignore[arg-type]
        tasks=tasks,  # type: ignore[arg-type]
    )
    dialer.wire(bench.edge)
    bench.edge._connector = dialer
    owner.end = bench.edge.on_serving if is_served_here else dialer.disconnect
    owner.route = route = bench.edge.zones.add(cut("a"))
    route.need_marks(is_needed=True)
    dialer.connect(route)
    (dial,) = dialer._dials.values()
    await asyncio.wait({dial}, timeout=5.0)

    assert (True, 1) == (dial.done(), owner.calls)
    assert is_served_here == route.is_local
