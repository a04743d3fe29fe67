"""What a node writes is for its user alone: no other user of the machine reads it."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient

from .commands import output


def test_nobody_else_has_rights_to_what_a_node_writes(tmp_path: Path) -> None:
    """Journal, tables, outbox, ledger, state, and a backup; whatever umask the node is given."""
    before = os.umask(0o000)
    try:
        root = NodeProcess(tmp_path, topology("root", zone="", ledger=True, data="far/away/root"))
        a = NodeProcess(tmp_path, topology("a", zone="a", parent=root.grpc))
        with root, a:
            a.wait_event("join.granted")
            with RawClient(root.mqtt) as sub, RawClient(root.mqtt) as pub:
                sub.connect("sub", clean=False)
                sub.subscribe(("#", 1))
                sub.disconnect()
                pub.connect("pub")
                pub.publish("a/t", b"there", qos=1)
                a.kill()
                root.wait_event("zone.unreachable", zone="a")
                for topic in ("t", "a/t"):
                    pub.publish(topic, b"private", qos=2, retain=True)
            (tmp_path / "copies").mkdir(mode=0o700)
            output("backup", root.grpc, tmp_path / "copies" / "one")
    finally:
        os.umask(before)
    found = 0
    for folder in (tmp_path / "far", a.data, tmp_path / "copies"):
        for path in (folder, *folder.rglob("*")):
            found += 1
            assert not path.lstat().st_mode & 0o077, path
    assert found > 30
    assert any("outbox" in str(path) and path.is_file() for path in root.data.rglob("*"))
