"""SHELL: what is said of nodes whose links have another format than this node's."""

from __future__ import annotations

from txbroker.link.frames import LINK_VERSION
from txbroker.telemetry import get_logger, tell_repeated

log = get_logger()

NODES_REMEMBERED = 1_000
"""Nodes of another format that are logged once, and not each time that they ask."""


REMEMBERED = 1_000
"""Nodes of another format that are not told of again; beyond that the one told first is."""


class Formats:
    """
    The formats of other nodes, each of which asks, or is asked, again and again.

    `ours` is this node's format.
    """

    def __init__(self, ours: int = LINK_VERSION) -> None:
        self.ours = ours
        self._told: dict[str, int] = {}

    def is_ours(self, node: str, version: int, zone: str) -> bool:
        """
        Whether a link for `zone` with this node is possible; that it is not is logged once, at
        both of them, until it is or the format is yet another one.

        A node that names no format (0) has one from before they were named here.
        """
        if version == self.ours:
            self._told.pop(node, None)
            return True
        if self._told.get(node) != version:
            if len(self._told) >= REMEMBERED:
                del self._told[next(iter(self._told))]
            self._told[node] = version
            older = f"node {node!r}" if version < self.ours else "this node"
            if len(self._told) > NODES_REMEMBERED:
                self._told.pop(next(iter(self._told)))
            tell_repeated(
                log.warning,
                "link.other_format",
                kind=node,
                peer=node,
                zone=zone,
                reason=f"node {node!r} has link format {version}, this node {self.ours}: what is"
                f" published waits; stop {older} and start it with the other's txbroker",
            )
        return False
