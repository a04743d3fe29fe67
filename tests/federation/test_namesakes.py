"""
Two nodes of one name: the second one is refused with one line while the first one lives.

A name is an address of publishes, sessions and grants. Two nodes of one name would be two owners of
one zone at one epoch, and two edges whose publishes are taken for repeats of one another.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from tests.support.nodes import NodeProcess, free_port, topology
from tests.support.rawclient import RawClient
from tests.system.commands import output, wait_until
from txbroker.storage import checked_file
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2_grpc import ControlStub

Make = Callable[..., NodeProcess]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[NodeProcess] = []

    def node(name: str, folder: str = "first", **keys: object) -> NodeProcess:
        made.append(NodeProcess(tmp_path / folder, topology(name, **keys)))  # type: ignore[arg-type]
        return made[-1]

    yield node
    for process in reversed(made):
        process.close()
    for process in made:
        for line in process.lines:
            assert "Traceback" not in line, line


def copy_folder(node: NodeProcess, copy: NodeProcess) -> None:
    """What a node has, which may run: what it replaces or gets now is there for a moment only."""
    shutil.copytree(node.data, copy.data, ignore=shutil.ignore_patterns("*.new", "incoming"))


def joined(*nodes: NodeProcess) -> None:
    for node in nodes:
        node.start()
        node.wait_event("join.granted")


def refused(node: NodeProcess) -> str:
    """It ends with one line."""
    node.start(ready=False)
    assert 1 == node.wait(20.0)
    events = node.events[node._run_start :]
    said = [str(e["reason"]) for e in events if e["event"] == "node.refused"]
    assert 1 == len(said)
    return said[0]


def works(at: NodeProcess, client_id: str) -> None:
    """A message in the zone `a` at this node."""
    with RawClient(at.mqtt) as client:
        client.connect(client_id)
        topic = f"a/{client_id}"  # an outbox may hold something of another one
        client.subscribe((topic, 1))
        client.publish(topic, b"here", qos=1)
        assert b"here" == client.take(1)[0].payload


def test_second_edge_of_a_name_is_refused(make: Make) -> None:
    """At the same parent and elsewhere in the tree; the first one's stream stays up."""
    root = make("root", zone="").start()
    a = make("a", zone="a", parent=root.grpc)
    edge = make("edge", parent=root.grpc)
    joined(a, edge)
    wait_until(lambda: a.has_event("join.granted"), what="a")

    for parent in (root, a):
        second = make("edge", f"second at {parent.name}", parent=parent.grpc)
        line = refused(second)
        assert f"another node 'edge' lives at {edge.grpc}" in line

    assert 1 == sum(e["event"] == "join.granted" for e in edge.events)
    edge.kill()
    again = make("edge", "second at root", parent=root.grpc)
    joined(again)


def test_second_owner_of_a_name_in_another_branch_is_refused(make: Make) -> None:
    """Zones of two parents; the second parent has the name from the members of the tree."""
    root = make("root", zone="").start()
    a, b = make("a", zone="a", parent=root.grpc), make("b", zone="b", parent=root.grpc)
    room = make("room", zone="a/room", parent=a.grpc)
    joined(a, b, room)

    line = refused(make("room", "second", zone="b/room", parent=b.grpc))

    assert f"another node 'room' lives at {room.grpc}" in line
    assert not room.has_event("zone.fenced")


@pytest.mark.parametrize("hot", [False, True])
def test_copied_folder_ends_before_it_takes_a_client_while_the_first_lives(
    make: Make, hot: bool
) -> None:
    """What it acknowledged would wait in an outbox of a node whom no owner lets in."""
    root = make("root", zone="").start()
    a = make("a", zone="a", parent=root.grpc)
    joined(a)
    if not hot:
        a.terminate()
    copy = make("a", "copy", zone="a", parent=root.grpc)
    copy_folder(a, copy)
    if not hot:
        joined(a)
    works(a, "before")

    assert f"another node 'a' lives at {a.grpc}" in refused(copy)
    assert not copy.has_event("node.ready")
    works(a, "after")
    assert 1 == sum(e["event"] == "join.granted" for e in a.events[a._run_start :])
    a.kill()
    joined(copy)
    works(copy, "at last")


def test_image_of_a_disk_ends_when_it_meets_the_parent(make: Make) -> None:
    """Nothing tells it from the node before; from then on it is known for a copy."""
    root = make("root", zone="").start()
    a = make("a", zone="a", parent=root.grpc)
    joined(a)
    image = make("a", "image", zone="a", parent=root.grpc)
    copy_folder(a, image)
    state = image.data / "state.json"
    raw = json.loads(state.read_bytes())
    del raw["checksum"]
    checked_file.save(state, {**raw, "place": (image.data / "lock").stat().st_ino})

    for _ in range(2):
        assert f"another node 'a' lives at {a.grpc}" in refused(image)
    assert 1 == sum(event["event"] == "node.ready" for event in image.events)
    works(a, "after")
    a.kill()
    joined(image)
    works(image, "at last")


def test_copy_takes_clients_while_nobody_can_be_asked(make: Make) -> None:
    """A restored site has its clients, though its uplink is down."""
    root = make("root", zone="").start()
    a = make("a", zone="a", parent=root.grpc)
    joined(a)
    a.kill()
    root.kill()
    copy = make("a", "copy", zone="a", parent=root.grpc)
    copy_folder(a, copy)

    copy.start()
    with RawClient(copy.mqtt) as client:
        client.connect("early")
        client.publish("a/t", b"waits", qos=1)
    assert not copy.has_event("join.granted")
    root.start()
    copy.wait_event("join.granted")
    works(copy, "at last")


def test_copied_root_ends_while_the_first_lives(make: Make) -> None:
    """It has no parent that refuses it, and would be a second owner; the child stays."""
    root = make("root", zone="").start()
    a = make("a", zone="a", parent=root.grpc)
    joined(a)
    copy = make("root", "copy", zone="")
    copy_folder(root, copy)

    line = refused(copy)

    assert f"another node 'root' lives at {root.grpc}" in line
    works(a, "after")
    assert 1 == sum(e["event"] == "join.granted" for e in a.events)
    root.kill()
    again = make("root", "copy", zone="")
    again.document["grpc"] = copy.document["grpc"]
    again.start()
    wait_until(lambda: 2 == sum(e["event"] == "join.granted" for e in a.events), what="adopted")
    works(a, "at last")


def test_child_is_not_adopted_by_a_copy_of_its_living_parent(make: Make) -> None:
    """It says where its parent lives; a copy that cannot see that one hears of it so."""
    root = make("root", zone="").start()
    a = make("a", zone="a", parent=root.grpc)
    joined(a)
    request = control_pb2.AdoptRequest(zone="a", epoch=1)
    request.parent.node, request.parent.epoch, request.parent.grpc = "root", 1, "127.0.0.1:1"
    request.who.node, request.who.life = "root", "another one"

    with grpc.insecure_channel(a.grpc) as channel:
        reply = ControlStub(channel).Adopt(request, timeout=30.0)

    assert (False, root.grpc) == (reply.accepted, reply.other)
    works(a, "after")
    assert not a.has_event("parent.changed")


def test_restarted_node_replaces_its_dead_predecessor_at_once(make: Make) -> None:
    """Also one whose stream looks alive, as the machine has lost its power: frozen here."""
    root = make("root", zone="").start()
    edge = make("edge", parent=root.grpc)
    joined(edge)
    edge.pause()
    moved = make("edge", "moved", parent=root.grpc)
    copy_folder(edge, moved)
    moved.start()
    moved.wait_event("join.granted", 30.0)
    edge.kill()


def test_name_is_free_again_after_reclaim(make: Make) -> None:
    """The dead node's name goes to a new folder, with another address."""
    root = make("root", zone="").start()
    a = make("a", zone="a", parent=root.grpc)
    joined(a)
    a.kill()
    output("reclaim", root.grpc, "a")
    again = make("a", "again", zone="a", parent=root.grpc, grpc=f"127.0.0.1:{free_port()}")
    joined(again)
    works(again, "again")
    assert f"another node 'a' lives at {again.grpc}" in refused(a)
    works(again, "still")
