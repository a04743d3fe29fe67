"""`txbroker backup`: a copy of a running node's data, and a node that starts with the copy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nodes import NodeProcess, free_port, topology
from tests.support.rawclient import RawClient
from txbroker.data.backups import MARKER

from .commands import as_json, failure, output, wait_until, wrong_usage


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """A root, and a child `a` that has joined."""
    root = NodeProcess(tmp_path, topology("root", zone=""))
    a = NodeProcess(tmp_path, topology("a", zone="a", parent=root.grpc))
    with root, a:
        a.wait_event("join.granted")
        yield root, a


def router(root: NodeProcess, a: NodeProcess, name: str) -> None:
    """A message each way through both nodes."""
    with RawClient(root.mqtt) as at_root, RawClient(a.mqtt) as at_a:
        for client, where in ((at_root, "root"), (at_a, "a")):
            client.connect(f"{name} {where}")
            client.subscribe((f"{name}/t", 1), (f"a/{name}", 1))
        at_root.publish(f"a/{name}", qos=1)
        at_a.publish(f"{name}/t", qos=1)
        for client in (at_root, at_a):
            assert {f"a/{name}", f"{name}/t"} == {message.topic for message in client.take(2)}


@pytest.mark.parametrize("restored", ["a", "root"])
def test_a_node_starts_with_the_copy(
    nodes: tuple[NodeProcess, NodeProcess], tmp_path: Path, restored: str
) -> None:
    """Also when it had lived on, and its own data is lost; others talk to it as before."""
    root, a = nodes
    node = a if restored == "a" else root
    router(root, a, "before")
    copy = tmp_path / "copies" / "latest"
    copy.parent.mkdir()

    said = output("backup", node.grpc, copy)

    assert said.startswith(f"{copy}: ") and said.endswith(" MiB\n")
    node.wait_event("backup.done", folder=str(copy))
    for number in range(3):  # lives of which the copy knows nothing
        node.terminate()
        node.start()
        router(root, a, f"life {number}")
    node.kill()
    shutil.rmtree(node.data)
    node.document["data"] = str(copy)
    node.start()

    node.wait_event("node.restored")
    wait_until(lambda: not (copy / MARKER).exists(), what="it is a copy no more")
    router(root, a, "after")
    assert {"": "root", "a": "a"} == {r["zone"]: r["node"] for r in as_json("tree", root.grpc)}
    node.terminate()
    node.start()
    router(root, a, "later")
    assert not node.has_event("node.restored")


def test_what_the_node_had_is_there_again(
    nodes: tuple[NodeProcess, NodeProcess], tmp_path: Path
) -> None:
    """
    Sessions, what waits for them, retained messages, as of the backup. Who has seen later messages
    takes new ones for new, wherever its session is.
    """
    root, a = nodes
    here, there = RawClient(root.mqtt), RawClient(a.mqtt)
    for client, name in ((here, "here"), (there, "there")):
        client.connect(name, clean=False)
        client.subscribe(("t", 1))
    here.disconnect()
    with RawClient(root.mqtt) as pub:
        pub.connect("pub")
        for payload in (b"1", b"2", b"3"):
            pub.publish("t", payload, qos=1, retain=True)
        output("backup", root.grpc, tmp_path / "copy")
        for number in range(10):
            pub.publish("t", b"lost %d" % number, qos=1)
    assert [b"1", b"2", b"3"] == [message.payload for message in there.take(13)][:3]
    root.kill()
    shutil.rmtree(root.data)
    root.document["data"] = str(tmp_path / "copy")
    root.start()

    with RawClient(root.mqtt) as pub, RawClient(root.mqtt) as late:
        pub.connect("pub")
        for payload in (b"4", b"5"):
            pub.publish("t", payload, qos=1)
        late.connect("late")
        late.subscribe(("t", 1))
        late.expect_publish("t", b"3", retain=True)
    assert [b"4", b"5"] == [message.payload for message in there.take(2)]
    with RawClient(root.mqtt) as here:
        assert here.connect("here", clean=False)
        assert [b"%d" % n for n in range(1, 6)] == [message.payload for message in here.take(5)]
        here.ping()
    there.close()


def test_a_backup_that_cannot_be_made(
    nodes: tuple[NodeProcess, NodeProcess], tmp_path: Path
) -> None:
    """One line, at the node too, and nothing is left."""
    root, _ = nodes

    for folder, words in (
        (tmp_path, "there is something already"),
        (tmp_path / "no" / "where", "no such folder on the node's machine"),
        (root.data / "copy", "inside the data"),
    ):
        line = failure("backup", root.grpc, folder)
        assert line.startswith(f"Error: {root.grpc}: ") and words in line
        event = root.wait_event("backup.failed", folder=str(folder))
        assert words in str(event["reason"])
    assert not (root.data / "copy").exists()


def test_a_folder_is_meant_where_the_command_runs(
    nodes: tuple[NodeProcess, NodeProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where the node does."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    output("backup", nodes[1].grpc, "copy")

    assert (tmp_path / "here/copy/state.json").exists()


def test_mistakes(tmp_path: Path) -> None:
    """One line each."""
    nobody = f"127.0.0.1:{free_port()}"
    assert f"{nobody} cannot be reached" in failure("backup", nobody, tmp_path / "copy")
    assert "port 0" in wrong_usage("backup", "127.0.0.1:0", tmp_path / "copy")
