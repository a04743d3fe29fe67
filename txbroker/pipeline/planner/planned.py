"""
SHELL: makes nodes and topology files of planned zones and hosts.

A node owns one zone, so a host with several zones runs several nodes. A host has one file with one
document per node, and `txbroker run FILE` starts all of them. The files of present nodes do not
change: a node that joins takes its zone over from the present owner.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import yaml

from txbroker.config import Address, NodeConfig, inspect_files
from txbroker.config.endpoints import parse_endpoint
from txbroker.config.tree_rules import canonical
from txbroker.model.errors import PipelineError
from txbroker.pipeline.planner.cuts import above
from txbroker.pipeline.source.source_options import LAST_PORT

PROPOSED = "Proposed by txbroker pipeline plan."
"""Text in the first line of a file that a later plan may replace."""

LONGEST_NAME = 60
"""Maximum characters of a node's name that come from its apex."""


@attrs.frozen(slots=True, kw_only=True)
class PresentNode:
    """
    A present node: its zone (None: a pure edge), and its gRPC address for other nodes.

    `ports` are the ports that the node is known to bind.
    """

    node: str
    zone: str | None
    grpc: Address
    ports: frozenset[int] = frozenset()

    @property
    def host(self) -> str:
        """The machine, by the node's address for others; all loopback addresses are one machine."""
        return canonical(self.grpc.host) or self.grpc.host


@attrs.frozen(slots=True, kw_only=True)
class PlannedHost:
    """A machine to add: its name in the plan, and its address."""

    name: str
    address: str


@attrs.frozen(slots=True, kw_only=True)
class PlannedPorts:
    """The first port of each kind for new nodes of a host; further ports count up from there."""

    mqtt: int = 1883
    grpc: int = 7001
    link: int = 8001


@attrs.frozen(slots=True, kw_only=True)
class PlannedNode:
    """A document of a topology file to write; `host` is the `name` of its host."""

    node: str
    zone: str
    host: str
    parent: Address
    mqtt: str
    grpc: Address
    link: Address

    def document(self) -> dict[str, object]:
        """Return the document's keys and values, in the order for readers."""
        return {
            "node": self.node,
            "zone": self.zone,
            "parent": str(self.parent),
            "mqtt": [self.mqtt],
            "grpc": str(self.grpc),
            "link": str(self.link),
            "data": f"var/{self.node}",
        }


def members_of(configs: Iterable[NodeConfig]) -> list[PresentNode]:
    """Return the nodes of topology files."""
    return [
        PresentNode(
            node=config.node,
            zone=config.zone,
            grpc=Address(config.dial_host, config.grpc.port),
            ports=frozenset(_bound(config)),
        )
        for config in configs
    ]


def plan_nodes(
    zones: Mapping[str, str],
    hosts: Sequence[PlannedHost],
    members: Sequence[PresentNode],
    ports: PlannedPorts,
) -> list[PlannedNode]:
    """
    Return a node for each zone (apex to name of a host), joined to the nearest zone above it.

    Names and ports differ from those of `members`. Raises `PipelineError` if a host has no port
    left.
    """
    names = {member.node for member in members}
    addresses = {host.name: host.address for host in hosts}
    free = {
        address: _FreePorts(address, members, ports) for address in sorted(set(addresses.values()))
    }
    joined = {
        member.zone: member.grpc
        for member in members
        if member.zone is not None and member.grpc.port
    }
    nodes: list[PlannedNode] = []
    # Parents must come first: their addresses are needed by the zones below.
    for apex in sorted(zones):
        address = addresses[zones[apex]]
        name = _free_name(apex, names)
        names.add(name)
        parent = next((joined[upper] for upper in above(apex) if upper in joined), None)
        if parent is None:
            raise PipelineError(f"no node with a gRPC port owns a zone above {apex!r}")
        joined[apex] = Address(address, free[address].allocate(ports.grpc))
        node = PlannedNode(
            node=name,
            zone=apex,
            host=zones[apex],
            parent=parent,
            mqtt=_endpoint(address, free[address].allocate(ports.mqtt)),
            grpc=joined[apex],
            link=Address(address, free[address].allocate(ports.link)),
        )
        nodes.append(node)
    return nodes


def write_files(
    folder: Path, nodes: Sequence[PlannedNode], hosts: Sequence[PlannedHost], today: Sequence[Path]
) -> list[Path]:
    """
    Write one topology file for each host that has nodes; return their paths.

    Files of an earlier plan in the folder are replaced. All files are checked as by `txbroker
    check`, together with the files of the present nodes (`today`). Raises `PipelineError` if a file
    cannot be written, or fails the check.
    """
    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("host-*.yaml"):
            if PROPOSED in old.read_text(encoding="utf-8", errors="replace").partition("\n")[0]:
                old.unlink()
        for number, host in enumerate(hosts, 1):
            own = [node.document() for node in nodes if node.host == host.name]
            if own:
                file = folder / f"host-{number}.yaml"
                file.write_text(_text(host, own), encoding="utf-8")
                files.append(file)
    except OSError as error:
        raise PipelineError(
            f"{folder}: cannot be written: {error.strerror}; name another folder"
        ) from None
    _, errors = inspect_files([*today, *files])
    if errors:
        raise PipelineError(f"the planned files do not go with today's: {errors[0]}")
    return files


# internal


def _text(host: PlannedHost, documents: Sequence[Mapping[str, object]]) -> str:
    head = f"# Runs on {host.address}. {PROPOSED}\n"
    return head + "---\n".join(
        # YAML takes some hidden characters for line ends, which would change the apex: escape them.
        yaml.safe_dump(document, sort_keys=False, allow_unicode=str(document["zone"]).isprintable())
        for document in documents
    )


def _free_name(apex: str, taken: set[str]) -> str:
    """Return an unused name for the node of a zone, valid in topics, files and terminals."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", apex).strip("-")[:LONGEST_NAME] or "zone"
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    return free


def _endpoint(address: str, port: int) -> str:
    """Return the MQTT endpoint; Twisted binds addresses only, so a host name binds all."""
    if ":" in address:
        escaped = address.replace(":", r"\:")
        return f"tcp6:{port}:interface={escaped}"
    return f"tcp:{port}:interface={address}" if re.fullmatch(r"[0-9.]+", address) else f"tcp:{port}"


def _bound(config: NodeConfig) -> Iterator[int]:
    yield config.grpc.port
    if config.link is not None:
        yield config.link.port
    for description in config.mqtt:
        yield parse_endpoint(description).port


class _FreePorts:
    """The ports of one address, each of which is given out once."""

    def __init__(self, address: str, members: Sequence[PresentNode], ports: PlannedPorts) -> None:
        self._address = address
        machine = canonical(address)
        self._taken = {
            port for member in members if member.host == machine for port in member.ports
        }
        self._taken |= {member.grpc.port for member in members if member.host == machine}
        self._next = {first: first for first in (ports.mqtt, ports.grpc, ports.link)}

    def allocate(self, first: int) -> int:
        """Return the next free port from `first` on; raises `PipelineError`."""
        port = self._next[first]
        while port in self._taken:
            port += 1
        if port > LAST_PORT:
            raise PipelineError(f"no port is left on {self._address}; begin with lower ones")
        self._taken.add(port)
        self._next[first] = port + 1
        return port
