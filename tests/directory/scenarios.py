"""A whole site in memory, and what clients do there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.support.site import Connection, Node, Site
from txbroker.mqtt.wire.packets import Will

WILL = Will(topic="w", payload=b"gone", qos=1, retain=False)
NAMES = ("a", "b", "c", "d")


def site(names: Iterable[str] = NAMES, seed: int = 1, **keys: Any) -> Site:
    """All nodes are started, and know each other."""
    made = Site(names, seed, **keys)
    made.start(len(made.nodes))
    made.run(3.0)
    return made


def connect(site: Site, node: str, client_id: str = "x", **options: Any) -> Connection:
    """A client's connection, accepted or refused."""
    connection = site.nodes[node].connect(client_id, **options)
    site.run_until(lambda: connection.is_answered)
    return connection


def subscribe(site: Site, connection: Connection, piece: str) -> None:
    """Something that the session has to keep."""
    acked: list[bool] = []
    connection.add(piece, lambda: acked.append(True))
    site.run_until(lambda: bool(acked))


def keepers(site: Site, client_id: str = "x") -> tuple[str, ...]:
    return site.nodes["a"].directory.members.keepers(client_id)


def id_kept_by(site: Site, *, but_not: str) -> str:
    """A client id of which that node keeps no entry."""
    names = (f"id{number}" for number in range(1_000))
    return next(name for name in names if but_not not in keepers(site, name))


def tables(node: Node) -> dict[str, int]:
    """Those of a node's directory that are not empty."""
    directory = node.directory
    sizes = {
        "entries": len(directory.replica.entries),
        "own": len(directory.replicator.own),
        "moved": len(directory.replicator.gone),
        "tombstones": len(directory.ownership.tombstone_ids),
        "arriving": len(directory.ownership.arriving),
        "discards": len(directory.clearings),
        "wills": directory.own_wills.count,
    }
    return {name: size for name, size in sizes.items() if size}
