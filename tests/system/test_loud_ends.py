"""
A node is never deaf: where a step fails that others wait for, it ends with one line and status 1.

A module that Python imports at its start breaks one function of the node, for one topic.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import wire
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from txbroker.storage import checked_file

from .commands import wait_until

BREAK = """
from txbroker.{module} import {owner}

before = {owner}.{method}


def broken(self, *args, **options):
    if is_armed(self, *args):
        raise RuntimeError("broken for a test")
    return before(self, *args, **options)


def is_armed(*args):
    return any("boom" in repr(value) for value in args) or {armed}


{owner}.{method} = broken
"""

PLACES = {
    "commit": (
        "journal.store.journal_parts",
        "JournalPart",
        "_stage",
        'any(getattr(p, "payload", b"") == b"boom" for p in args[0]._gathered)',
    ),
    "delivery": ("authority.authority", "Authority", "_settle", "False"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_step_that_fails_ends_the_node(tmp_path: Path, place: str) -> None:
    """It does not go on without acknowledging anything; what was acknowledged is there again."""
    module, owner, method, armed = PLACES[place]
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        BREAK.format(module=module, owner=owner, method=method, armed=armed)
    )
    node = NodeProcess(tmp_path, topology("n", zone=""), env={"PYTHONPATH": str(broken)})
    with node.start():
        with RawClient(node.mqtt) as sub, RawClient(node.mqtt) as pub:
            sub.connect("sub", clean=False)
            sub.subscribe(("#", 1))
            sub.disconnect()
            pub.connect("pub")
            pub.publish("t", b"before", qos=1, retain=True)
            pub.send(wire.publish("t", b"boom", qos=1, packet_id=7, retain=True))
            assert 1 == node.wait(10.0)
        assert "broken for a test" in str(node.wait_event("node.failed"))
        del node.env["PYTHONPATH"]
        node.start()
        with RawClient(node.mqtt) as sub:
            assert sub.connect("sub", clean=False)
            assert b"before" == sub.take(1)[0].payload


FULL = """
from txbroker.delegation.node_grant import NodeGrant
from txbroker.model.errors import StoreError

before = NodeGrant.finish_renumbering
calls = []


def full(self):
    calls.append(1)
    if len(calls) < 3:
        raise StoreError("no room for the state")
    before(self)


NodeGrant.finish_renumbering = full
"""


def test_a_renumbering_on_a_full_disk_ends_nobody(tmp_path: Path) -> None:
    """It is finished when there is room. Until then a root answers no node that knew another."""
    full = tmp_path / "full"
    full.mkdir()
    (full / "sitecustomize.py").write_text(FULL)
    node = NodeProcess(tmp_path, topology("n", zone=""), env={"PYTHONPATH": str(full)})
    with node.start():
        node.terminate()
        state = json.loads((node.data / "state.json").read_text())
        del state["checksum"]
        checked_file.save(node.data / "state.json", state | {"epoch": 5, "renumbering": 1})
        node.start()
        for _ in range(2):
            node.wait_event("state.write_failed", reason="no room for the state")
        wait_until(lambda: not state_of(node)["renumbering"], what="it is finished")
        assert node.running and 5 == state_of(node)["epoch"]


def state_of(node: NodeProcess) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((node.data / "state.json").read_text())
    return state
