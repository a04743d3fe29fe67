"""Wills of clients that are gone, and whose zone is away: they are bounded like all that waits."""

from __future__ import annotations

import pytest

from tests.support.edge_bench import Client, EdgeBench
from txbroker.edge.routing.edge_limits import EdgeLimits
from txbroker.edge.sessions import connection_wills
from txbroker.mqtt.wire.packets import Connect, Will

HELD = 100_000


def will(topic: str = "a/w", *, qos: int = 1, size: int = 0) -> Will:
    return Will(topic=topic, payload=b"x" * size, qos=qos, retain=False)


def bench() -> EdgeBench:
    """Zone `a` is away, the root's is here; what cannot be sent waits in memory."""
    made = EdgeBench("a", limits=EdgeLimits(holds=True, held=HELD))
    made.online("", "a")
    return made


def may_begin(bench: EdgeBench, testament: Will | None) -> bool:
    packet = Connect(client_id="late", clean_session=True, will=testament)
    return not bench.edge.clients.why_full(packet)


def leave(bench: EdgeBench, count: int, size: int) -> None:
    """One client comes so many times, and vanishes."""
    for _ in range(count):
        Client(bench, "c", will=will(size=size)).leave(will=True)


@pytest.mark.parametrize(("count", "size", "most"), [(3, 40_000, 10_000), (5, 0, 5)])
def test_no_client_begins_whose_will_would_be_too_much(
    monkeypatch: pytest.MonkeyPatch, count: int, size: int, most: int
) -> None:
    """By bytes or by number; others do, and it does when the zone is back."""
    monkeypatch.setattr(connection_wills, "WILLS", most)
    held = bench()
    leave(held, count - 2, size)
    assert may_begin(held, will())
    leave(held, 2, size)

    others = (None, will(qos=0), will("elsewhere"))
    assert [False, True, True, True] == [may_begin(held, one) for one in (will(), *others)]
    held.online("a")
    held.edge.publisher.on_accepted(held.route("a"), count)
    assert may_begin(held, will())


def test_wills_that_leave_at_once_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that were published nothing waits, however many they were."""
    monkeypatch.setattr(connection_wills, "WILLS", 2)
    held = bench()
    for _ in range(5):
        Client(held, "c", will=will("elsewhere")).leave(will=True)
    held.edge.publisher.on_accepted(held.route(""), 5)
    leave(held, 1, 0)

    assert may_begin(held, will())
