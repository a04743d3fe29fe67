"""History that a zone holds for its first subscriber (`hold_first`), on real nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from tests.support.rawclient5 import RawClient5

COUNT = 600
"""More than one turn gives, and than is held until a SUBACK leaves."""


@pytest.mark.parametrize("where", ["owner", "other"])
def test_first_subscriber_gets_what_came_before(tmp_path: Path, where: str) -> None:
    """In order, at the owner and over a link; the second one nothing, after restarts, too."""
    with NodeProcess(tmp_path, topology("root", zone="")) as root:
        document = topology("a", zone="a", parent=root.grpc, hold_first=["a/+/motion", "a/door"])
        with NodeProcess(tmp_path, document) as child:
            child.wait_event("join.granted", 30.0)
            with RawClient(root.mqtt) as pub:
                pub.connect("pub")
                pub.publish("a/hall/light", b"no", qos=1)
                pub.publish("a/door", b"shut", qos=1)
                for number in range(COUNT):
                    pub.publish("a/hall/motion", b"%d" % number, qos=1)
            child.kill()
            child.start()
            at = {"owner": child, "other": root}[where].mqtt
            with RawClient5(at) as first, RawClient5(at) as second:
                first.connect("first", expiry=600 if where == "owner" else 0)
                first.subscribe(("a/#", 1) if where == "owner" else ("a/+/motion", 1))
                found = first.take(COUNT + (where == "owner"))
                if where == "owner":
                    assert b"shut" == found.pop(0).payload
                assert [b"%d" % n for n in range(COUNT)] == [one.payload for one in found]
                assert {(False, 1)} == {(one.retain, one.qos) for one in found}
                second.connect("second")
                second.subscribe(("a/#", 1), ("a/+/motion", 1))
                with RawClient(child.mqtt) as pub:
                    pub.connect("pub")
                    pub.publish("a/hall/motion", b"live", qos=1)
                if where == "other":
                    assert b"shut" == second.take(1)[0].payload
                assert b"live" == second.take(1)[0].payload
                assert b"live" == first.take(1)[0].payload
