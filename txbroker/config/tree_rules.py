"""
Rules between the nodes of a tree, as far as the caller has its topology files.

A parent that is not among the given nodes may exist elsewhere, so its absence
is no mistake. The known part of such a tree is checked all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from txbroker.config.endpoints import parse_endpoint
from txbroker.config.values import Address, NodeConfig
from txbroker.model.errors import ConfigError
from txbroker.model.topics import is_within

_LOOPBACK = "127.0.0.1"
_ANY = ""


def check(configs: Sequence[NodeConfig]) -> tuple[ConfigError, ...]:
    """Return every mistake between the given nodes; an empty tuple if the nodes agree."""
    return tuple(_errors(configs))


def reaches(address: Address, config: NodeConfig) -> bool:
    """True if dialling `address` ends at the node's gRPC address, as far as names prove it."""
    if config.grpc.port == 0 or address.port != config.grpc.port:
        return False
    bound = canonical(config.grpc.host)
    dialled = canonical(address.host)
    if bound == _ANY and config.advertise is None:
        return dialled in (_ANY, _LOOPBACK)
    return dialled in (bound, canonical(config.dial_host))


def canonical(host: str) -> str:
    """Return one text for all names of a host: one for loopback, "" for all interfaces."""
    if host.lower() in ("localhost", "ip6-localhost", "::1", _LOOPBACK):
        return _LOOPBACK
    if host in ("", "0.0.0.0", "::"):
        return _ANY
    return host.lower().rstrip(".")


def _error(config: NodeConfig, key: str, value: object, problem: str, remedy: str) -> ConfigError:
    return config.error(key, value, f"{problem} (node {config.node})", remedy)


def _errors(configs: Sequence[NodeConfig]) -> Iterator[ConfigError]:
    doubles = tuple(_twice(configs))
    yield from doubles
    if any(error.key == "node" for error in doubles):
        return  # the file was most likely given twice, and each node would clash with itself
    parents = {
        index: parent
        for index in range(len(configs))
        if (parent := _parent_index(configs, index)) is not None
    }
    rings = tuple(_cycles(configs, parents))
    yield from rings
    # In a ring one of two nodes is always outside the other's zone, a second error for one mistake.
    if not rings:
        for index, parent in parents.items():
            yield from _below_parent(configs[index], configs[parent])
    yield from _ports(configs)


def _parent_index(configs: Sequence[NodeConfig], index: int) -> int | None:
    address = configs[index].parent
    if address is None:
        return None
    found = (
        other for other, config in enumerate(configs) if other != index and reaches(address, config)
    )
    return next(found, None)


def _twice(configs: Sequence[NodeConfig]) -> Iterator[ConfigError]:
    """Yield clashes of values that must be unique: names, zones, and the store of each node."""
    for first, second in combinations(configs, 2):
        where = f"node {first.node} in {first.source}"
        if first.node == second.node:
            problem = f"this name is taken by {where}"
            yield _error(second, "node", second.node, problem, "give each node its own name")
            continue
        if first.zone is not None and first.zone == second.zone:
            problem = f"this zone is owned by {where}"
            remedy = "give each zone to one node; leave zone out for a pure edge"
            yield _error(second, "zone", second.zone, problem, remedy)
        if _machine(first) == _machine(second):
            yield from _shared_data(first, second, where)


def _shared_data(first: NodeConfig, second: NodeConfig, where: str) -> Iterator[ConfigError]:
    one, other = first.data_place, second.data_place
    if one == other:
        problem = f"this directory is used by {where}"
        yield _error(second, "data", str(second.data), problem, "give each node its own")
    elif other.is_relative_to(one) or one.is_relative_to(other):
        relation = "lies in" if other.is_relative_to(one) else "contains"
        problem = f"this directory {relation} the one of {where}"
        yield _error(second, "data", str(second.data), problem, "name directories side by side")


def _cycles(configs: Sequence[NodeConfig], parents: dict[int, int]) -> Iterator[ConfigError]:
    done: set[int] = set()
    for start in range(len(configs)):
        walk: list[int] = []
        at: int | None = start
        while at is not None and at not in done:
            done.add(at)
            walk.append(at)
            at = parents.get(at)
        if at in walk:
            ring = [configs[index].node for index in walk[walk.index(at) :]]
            config = configs[at]
            problem = f"the parents form a ring: {' -> '.join([*ring, ring[0]])}"
            remedy = "let one of them join a node outside of the ring"
            yield _error(config, "parent", str(config.parent), problem, remedy)


def _below_parent(child: NodeConfig, parent: NodeConfig) -> Iterator[ConfigError]:
    # A zone between the two is no mistake: the parent refers the child to that zone's node.
    if parent.zone is None:
        problem = f"its parent {parent.node} owns no zone"
        remedy = "name the gRPC address of a node that owns one"
        yield _error(child, "parent", str(child.parent), problem, remedy)
        return
    if child.zone is None or child.zone == parent.zone:
        return
    if not is_within(child.zone, parent.zone):
        problem = f"outside the zone {parent.zone!r} of its parent {parent.node}"
        remedy = f"name a zone below {parent.zone!r}, or another parent"
        yield _error(child, "zone", child.zone, problem, remedy)


# -- ports


def _machine(config: NodeConfig) -> str:
    """
    Return the identity of a node's machine: the address that other nodes dial.

    Files for several machines may be checked together, and one port on two machines is no mistake.
    """
    return canonical(config.dial_host)


def _ports(configs: Sequence[NodeConfig]) -> Iterator[ConfigError]:
    taken: list[tuple[NodeConfig, str, str, str, int]] = []
    for config in configs:
        for key, value, interface, port in _bound(config):
            if port == 0:
                continue
            for other, other_key, machine, other_interface, other_port in taken:
                same_machine = other is config or machine == _machine(config)
                same_interface = interface == other_interface or _ANY in (
                    interface,
                    other_interface,
                )
                if port == other_port and same_machine and same_interface:
                    problem = f"port {port} is already {other_key} of node {other.node}"
                    yield _error(config, key, value, problem, "give each listener its own port")
                    break
            taken.append((config, key, _machine(config), interface, port))


def _bound(config: NodeConfig) -> Iterator[tuple[str, str, str, int]]:
    """Yield key, value, interface and port of each port that the node binds."""
    for description in config.mqtt:
        listener = parse_endpoint(description)
        if not listener.path:
            yield "mqtt", description, canonical(listener.interface), listener.port
    yield "grpc", str(config.grpc), canonical(config.grpc.host), config.grpc.port
    if config.link is not None:
        yield "link", str(config.link), canonical(config.link.host), config.link.port
