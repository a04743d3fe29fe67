"""
The order of a durable session over a cut: real processes.

Its window was full as its zone was cut, so what lies on both sides of the cut waits for it. Its
client comes back at any node: the new owner of the zone has one part at hand, and reads the other
one from afar.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.nodes import NodeProcess, fixed_node
from tests.support.rawclient5 import RawClient5
from tests.support.wire5 import RECEIVE_MAXIMUM

COUNT = 20


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, NodeProcess]]:
    """The root, a zone, and the zone below it that is still to come."""

    make = partial(fixed_node, tmp_path)
    root = make("root", zone="")
    above = make("above", zone="p", parent=root.grpc)
    found = [root, above, make("below", zone="p/n", parent=above.grpc)]
    try:
        root.start()
        above.start()
        above.wait_event("join.granted", 30.0)
        yield {node.name: node for node in found}
    finally:
        for node in reversed(found):
            node.close()


@pytest.mark.parametrize("there", ["root", "above", "below"])
def test_order_over_a_cut(nodes: dict[str, NodeProcess], there: str) -> None:
    with RawClient5(nodes["root"].mqtt) as pub:
        pub.connect("pub")
        with RawClient5(nodes["above"].mqtt) as sub:
            sub.connect("sub", expiry=60, properties=[(RECEIVE_MAXIMUM, 1)])
            sub.subscribe(("p/n/#", 1))
            for number in range(COUNT):
                pub.publish("p/n/x", b"%d" % number, qos=1)
            assert sub.expect_publish().payload == b"0"
            nodes["below"].start()
            nodes["below"].wait_event("join.granted", 30.0)
            for number in range(COUNT, 2 * COUNT):
                pub.publish("p/n/x", b"%d" % number, qos=1)
        with RawClient5(nodes[there].mqtt, timeout=30.0) as sub:
            sub.connect("sub", clean=False, expiry=60)
            found = [message.payload for message in sub.take(2 * COUNT)]
    assert found == [b"%d" % number for number in range(2 * COUNT)]
