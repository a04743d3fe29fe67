"""An owner is back: its outbox drains, and whoever publishes meanwhile is live again."""

from __future__ import annotations

from tests.support.edge_bench import Client, EdgeBench
from txbroker.edge.sessions.edge import ATTEMPTS


def test_outbox_gets_no_more_when_only_the_disk_is_waited_for() -> None:
    """
    A client that goes on has something on its way to the disk at any time. If what it says then
    went behind that, an outbox would never be at its end.
    """
    bench = EdgeBench("a")
    client = Client(bench, "c")
    for _ in range(ATTEMPTS):
        bench.edge.on_failed(bench.route("a"))
    client.publish("a/x", "1")
    bench.settle()
    client.publish("a/x", "2")
    port = bench.online("a")
    bench.work()
    _, answered = port.asked.pop(0)
    answered({})
    bench.work()
    client.publish("a/x", "3")
    bench.settle()
    drained = [e[-1] for e in bench.take() if e[:2] == ("a", "drained")]
    port.streams[0].user.on_accepted(2)
    bench.settle()
    live = [e[-1] for e in bench.take() if e[:2] == ("a", "publish")]

    assert (["1", "2"], ["3"], {}) == (drained, live, bench.outboxes.logs)
