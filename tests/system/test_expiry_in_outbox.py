"""Messages that expire while they wait in an outbox for an owner that is away (MQTT 5.0)."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient5 import RawClient5
from tests.support.wire5 import MESSAGE_EXPIRY, first


def test_an_outbox_takes_off_the_time(tmp_path: Path) -> None:
    """What has expired there is not delivered; the rest comes with what is left."""
    with NodeProcess(tmp_path, topology("root", zone="")) as root:
        keys = {"parent": root.grpc}
        with NodeProcess(tmp_path, topology("a", zone="a", **keys)) as child:
            child.wait_event("join.granted", 30.0)
            with RawClient5(root.mqtt) as pub:
                pub.connect("pub")
                pub.publish("a/first", b"0", qos=1)  # the way to the owner is known
                child.kill()
                for name, expiry in (("short", 1), ("long", 100)):
                    properties = [(MESSAGE_EXPIRY, expiry)]
                    pub.publish(f"a/{name}", b"1", qos=1, retain=True, properties=properties)
                time.sleep(2.5)
                child.start()
                root.wait_event("outbox.drained", 30.0)
                with RawClient5(child.mqtt) as sub:
                    sub.connect("sub")
                    sub.subscribe(("a/#", 1))
                    found = sub.expect_publish("a/long", b"1")
                    left = first(found.properties, MESSAGE_EXPIRY)
                    assert isinstance(left, int) and 80 <= left <= 98
