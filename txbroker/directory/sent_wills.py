"""
The wills that this node published for unreachable nodes, each until its node was notified.

A node that returns would otherwise publish these wills itself. The records stand by node: each
second the directory asks for one node's wills, of a hundred thousand.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from txbroker.directory.directory_ports import DurableTable
from txbroker.directory.entry import pack, unpack
from txbroker.directory.requests import WillSent

CHUNK = 100
"""Wills that one turn publishes, and that one message names."""

SENT_LIMIT = 100_000
"""Upper bound of published wills of unreachable nodes in the table."""


class SentWills:
    """
    The durable record of the module.

    Invariant: `_by_node` has the wills of `_order`, whose first one is the oldest.
    """

    def __init__(self, table: DurableTable) -> None:
        self._table = table
        self._order: dict[tuple[str, str], None] = {}
        self._by_node: dict[str, dict[str, WillSent]] = {}
        for _, value in table.items():
            (node, client_id, life, number), _ = unpack(value)
            self._put(node, WillSent(client_id=client_id, life=life, number=number))

    def add(self, node: str, will: WillSent) -> None:
        """Record a published will; beyond `SENT_LIMIT` the oldest record is deleted."""
        self._put(node, will)
        name = node, will.client_id
        self._table.put(_key(*name), pack([*name, will.life, will.number]))
        if len(self._order) > SENT_LIMIT:
            self._forget(*next(iter(self._order)))

    def __len__(self) -> int:
        return len(self._order)

    def nodes(self) -> tuple[str, ...]:
        """Return the nodes to notify."""
        return tuple(self._by_node)

    def of(self, node: str) -> tuple[WillSent, ...]:
        """Return at most `CHUNK` wills of which that node must be notified."""
        return tuple(islice(self._by_node.get(node, {}).values(), CHUNK))

    def acknowledge(self, node: str, wills: Iterable[WillSent]) -> None:
        """Delete the wills of which the node was notified."""
        for will in wills:
            if self._by_node.get(node, {}).get(will.client_id) == will:
                self._forget(node, will.client_id)

    # internal

    def _put(self, node: str, will: WillSent) -> None:
        self._order[node, will.client_id] = None
        self._by_node.setdefault(node, {})[will.client_id] = will

    def _forget(self, node: str, client_id: str) -> None:
        of_node = self._by_node[node]
        del self._order[node, client_id], of_node[client_id]
        if not of_node:
            del self._by_node[node]
        self._table.delete(_key(node, client_id))


def _key(node: str, client_id: str) -> bytes:
    return f"{node}/{client_id}".encode()
