"""Delayed wills of MQTT 5.0 whose node dies: its keepers know the delay, and so does the node."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient5 import RawClient5
from tests.support.wire5 import WILL_DELAY, Will

from .test_wills import wait_told

DELAY = 8


@pytest.mark.parametrize("comes_back", [False, True], ids=["stays away", "comes back"])
def test_delay_counts_when_the_node_is_dead(tmp_path: Path, comes_back: bool) -> None:
    """Of a node that stays away, or restarts; a session that ends at once has no delay."""
    keys = {"will_after": "1s"}
    with NodeProcess(tmp_path, topology("root", zone="", **keys)) as root:
        document = topology("edge", parent=root.grpc, **keys)
        with NodeProcess(tmp_path, document) as edge, RawClient5(root.mqtt, timeout=60.0) as watch:
            edge.wait_event("join.granted", 30.0)
            watch.connect("watch")
            watch.subscribe(("wills/#", 1))
            with RawClient5(edge.mqtt) as late, RawClient5(edge.mqtt) as early:
                for client, name, expiry in ((late, "late", 600), (early, "early", 0)):
                    delay = [(WILL_DELAY, DELAY)]
                    will = Will(topic=f"wills/{name}", payload=b"", qos=1, properties=delay)
                    client.connect(name, expiry=expiry, will=will)
                wait_told(root)
                begun = time.monotonic()
                edge.kill()
            if comes_back:
                edge.start()
            found = {}
            for message in watch.take(2):
                found[message.topic] = time.monotonic() - begun
            # A keeper counts from the last word of the node, which told something each second.
            assert found["wills/late"] >= DELAY - 2
            if not comes_back:
                assert found["wills/early"] < found["wills/late"]
            if not comes_back:
                edge.start()
            watch.ping()
