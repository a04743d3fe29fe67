"""Sessions that move: what their earlier nodes are told."""

from __future__ import annotations

from tests.support.edge_bench import Client, EdgeBench
from tests.support.roaming import MemoryTable
from txbroker.edge.moving import Moving
from txbroker.edge.roaming import Successions
from txbroker.mqtt.session import Incoming

SENT = (("before", 1, "a", 5), 7)
"""As what the node that had the session before sent a publish."""


def moved_with_a_publish_in_doubt(bench: EdgeBench) -> Client:
    """A session that was at another node, which died over a QoS 2 publish; it is sent again."""
    client = Client(bench, "c", clean=False)
    flow = Incoming(packet_id=1, qos=2, origin=SENT, is_in_doubt=True)
    client.session.restore((), (), [flow], 0)
    client.publish("a/x", "1", qos=2)
    return client


def test_node_before_keeps_its_stream_until_the_outbox_has_asked_for_it() -> None:
    """The client was answered when the publish was in the outbox; what became of it is open."""
    bench = EdgeBench("a")
    moving = Moving(bench.edge, Successions(), MemoryTable())
    client = moved_with_a_publish_in_doubt(bench)

    def resolved() -> list[bool]:
        return [moving.is_resolved("c", node) for node in ("before", "other")]

    in_doubt = resolved()
    bench.edge.publisher.on_unreachable(bench.route("a"))
    bench.settle()
    (flow,) = client.session.open_publishes()
    in_outbox = flow.taken, resolved()
    owner = bench.online("a")
    bench.settle()
    ((keys, answered),) = owner.asked
    answered({**dict.fromkeys(keys, 0), SENT[0]: SENT[1]})
    bench.settle()

    assert [False, True] == in_doubt
    assert (True, [False, True]) == in_outbox
    assert SENT[0] in keys
    assert [True, True] == resolved()
    assert not any("drained" in event for event in bench.events)
