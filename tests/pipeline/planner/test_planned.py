"""Nodes and topology files out of a plan; and nodes that are started from such files."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nodes import ROOT, free_port
from txbroker.config import Address, inspect_files, load_files
from txbroker.model.errors import PipelineError
from txbroker.pipeline.planner.cuts import LoadTree, choose_cuts, may_be_zone
from txbroker.pipeline.planner.planned import (
    PlannedHost,
    PlannedPorts,
    PresentNode,
    members_of,
    plan_nodes,
    write_files,
)

HOUSE = PresentNode(
    node="house", zone="", grpc=Address("10.0.0.1", 7001), ports=frozenset({1883, 7001})
)
EAST = PlannedHost(name="east", address="10.0.0.2")


def test_parents_are_the_nearest_zones_above() -> None:
    """Those of today, or new ones; never a pure edge."""
    kitchen = PresentNode(node="kitchen", zone="home/kitchen", grpc=Address("10.0.0.1", 7002))
    porch = PresentNode(node="porch", zone=None, grpc=Address("10.0.0.1", 7003))
    zones = dict.fromkeys(("home/kitchen/oven", "garden", "garden/shed/door"), "east")
    nodes = {
        node.zone: node
        for node in plan_nodes(zones, [EAST], [HOUSE, kitchen, porch], PlannedPorts())
    }

    assert kitchen.grpc == nodes["home/kitchen/oven"].parent
    assert HOUSE.grpc == nodes["garden"].parent
    assert nodes["garden"].grpc == nodes["garden/shed/door"].parent


def test_ports_are_counted_up_and_those_taken_left_out() -> None:
    """On each address by itself; new nodes beside the root have none of its ports."""
    beside = PlannedHost(name="beside", address="10.0.0.1")
    zones = {"a": "east", "b": "east", "c": "beside"}
    a, b, c = plan_nodes(zones, [EAST, beside], [HOUSE], PlannedPorts())

    assert ("tcp:1883:interface=10.0.0.2", 7001, 8001) == (a.mqtt, a.grpc.port, a.link.port)
    assert ("tcp:1884:interface=10.0.0.2", 7002, 8002) == (b.mqtt, b.grpc.port, b.link.port)
    assert ("tcp:1884:interface=10.0.0.1", 7002, 8001) == (c.mqtt, c.grpc.port, c.link.port)
    with pytest.raises(PipelineError, match=r"no port is left on 10\.0\.0\.2"):
        plan_nodes(zones, [EAST, beside], [HOUSE], PlannedPorts(grpc=65535))


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        ("10.0.0.2", "tcp:1883:interface=10.0.0.2"),
        ("east.example", "tcp:1883"),
        ("::1", r"tcp6:1883:interface=\:\:1"),
    ],
)
def test_endpoints_of_names_and_addresses(address: str, endpoint: str, tmp_path: Path) -> None:
    """A name binds all interfaces, as Twisted binds addresses only; `check` takes all of them."""
    hosts = [PlannedHost(name="new", address=address)]
    (node,) = plan_nodes({"a": "new"}, hosts, [HOUSE], PlannedPorts())

    assert endpoint == node.mqtt
    write_files(tmp_path, [node], hosts, [])


def test_names_are_good_and_differ() -> None:
    """In topics, in files and from the ones there are."""
    house = PresentNode(node="a-b", zone="", grpc=Address("10.0.0.1", 7001))
    zones = dict.fromkeys(("a/b", "a b", "a-b", "..", "ä/ö", "x" * 300), "east")
    names = [node.node for node in plan_nodes(zones, [EAST], [house], PlannedPorts())]

    assert {"a-b-2", "a-b-3", "a-b-4", "zone", "zone-2", "x" * 60} == set(names)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="+#"), max_size=8)


@settings(max_examples=60, deadline=None)
@given(apexes=st.sets(texts.filter(may_be_zone), max_size=6))
def test_any_apex_survives_the_file(
    tmp_path_factory: pytest.TempPathFactory, apexes: set[str]
) -> None:
    """Whatever a client may publish to, the file names that zone."""
    folder = tmp_path_factory.mktemp("any")
    nodes = plan_nodes(dict.fromkeys(apexes, "east"), [EAST], [HOUSE], PlannedPorts())
    configs, errors = inspect_files(write_files(folder, nodes, [EAST], []))

    assert () == errors
    assert apexes == {config.zone for config in configs}


def test_files_of_an_earlier_plan_are_replaced(tmp_path: Path) -> None:
    """Others stay; and what does not go with today's files is told."""
    (tmp_path / "host-9.yaml").write_text("# mine\n")
    west = PlannedHost(name="west", address="10.0.0.3")
    hosts = [EAST, west]
    write_files(tmp_path, plan_nodes({"a": "west"}, hosts, [HOUSE], PlannedPorts()), hosts, [])
    assert {"host-2.yaml", "host-9.yaml"} == {file.name for file in tmp_path.iterdir()}
    nodes = plan_nodes({"a": "east"}, hosts, [HOUSE], PlannedPorts())
    assert [tmp_path / "host-1.yaml"] == write_files(tmp_path, nodes, hosts, [])
    assert {"host-1.yaml", "host-9.yaml"} == {file.name for file in tmp_path.iterdir()}

    with pytest.raises(PipelineError, match="do not go with today's: .*this name is taken"):
        write_files(tmp_path / "b", nodes, hosts, [tmp_path / "host-1.yaml"])
    with pytest.raises(PipelineError, match=r"host-9.yaml.* cannot be written"):
        write_files(tmp_path / "host-9.yaml", nodes, hosts, [])


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    for _ in range(100):
        first = free_port()
        try:
            sockets = [socket.create_server(("127.0.0.1", first + n)) for n in range(1, count)]
        except OSError:
            continue
        for server in sockets:
            server.close()
        return first
    raise AssertionError("no free ports in a row")


def test_zones_move_to_the_nodes_of_the_files(tmp_path: Path) -> None:
    """A skewed tree under one node; its plan is started, and every zone is where it was planned."""
    mqtt, grpc = free_port(), free_port()
    today = tmp_path / "house.yaml"
    document = {
        "node": "house",
        "zone": "",
        "mqtt": [f"tcp:{mqtt}:interface=127.0.0.1"],
        "grpc": f"127.0.0.1:{grpc}",
        "data": "var/house",
    }
    today.write_text(yaml.safe_dump(document))
    loads = {f"plant/s{rank}": 60.0 / rank for rank in range(1, 6)}
    loads |= {"": sum(loads.values()), "plant": sum(loads.values())}
    members = members_of(load_files([today]))
    cuts = choose_cuts(LoadTree(loads=loads, zones={"": "127.0.0.1"}), ["one", "two"], zones=1)
    hosts = [PlannedHost(name=name, address="127.0.0.1") for name in ("one", "two")]
    ports = PlannedPorts(mqtt=free_ports(2), grpc=free_ports(2), link=free_ports(2))
    nodes = plan_nodes(cuts.hosts, hosts, members, ports)
    files = write_files(tmp_path / "out", nodes, hosts, [today])
    planned = {"": "house"} | {node.zone: node.node for node in nodes}

    assert 3 == len(planned) and 2 == len(files)
    command = [sys.executable, "-m", "txbroker.cli"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (tmp_path / "nodes.log").open("w") as log:
        running = subprocess.Popen(
            [*command, "run", str(today), *map(str, files)], env=environment, stderr=log
        )
    try:
        tree: dict[str, str] = {}
        deadline = time.monotonic() + 30
        while tree != planned and time.monotonic() < deadline:
            asked = subprocess.run(
                [*command, "tree", "--json", f"127.0.0.1:{grpc}"],
                env=environment,
                capture_output=True,
                text=True,
            )
            rows = json.loads(asked.stdout) if asked.returncode == 0 else []
            tree = {row["zone"]: row["node"] for row in rows if row["alive"]}
        assert planned == tree, (tmp_path / "nodes.log").read_text()[-3000:]
        heaviest = max(cuts.loads, key=lambda apex: cuts.loads[apex])
        published = subprocess.run(
            [*command, "pub", f"127.0.0.1:{mqtt}", "-t", f"{heaviest}/x", "-m", "1", "-q", "1"],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert 0 == published.returncode, published.stderr
    finally:
        running.send_signal(signal.SIGTERM)
        assert 0 == running.wait(20)
