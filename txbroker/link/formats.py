"""SHELL: what is said of nodes whose links have another format than this node's."""

from __future__ import annotations

from txbroker.link.frames import LINK_VERSION
from txbroker.runtime.log_once import LogOnce
from txbroker.runtime.structured_log import get_logger, tell_repeated

log = get_logger()


class LinkFormats:
    """
    The formats of other nodes, each of which asks, or is asked, again and again.

    `ours` is this node's format.
    """

    def __init__(self, ours: int = LINK_VERSION) -> None:
        self.ours = ours
        self._told = LogOnce()

    def is_ours(self, node: str, version: int, zone: str) -> bool:
        """
        Whether a link for `zone` with this node is possible; that it is not is logged once, at
        both of them, until it is or the format is yet another one.

        A node that names no format (0) has one from before they were named here.
        """
        if version == self.ours:
            self._told.forget(node)
            return True
        if self._told.is_news(node, version):
            older = f"node {node!r}" if version < self.ours else "this node"
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
