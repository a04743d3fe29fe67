"""SHELL: logs nodes whose links have another format than this node's."""

from __future__ import annotations

from txbroker.link.frames import LINK_VERSION
from txbroker.runtime.log_once import LogOnce
from txbroker.runtime.structured_log import get_logger, log_limited

log = get_logger()


class LinkFormats:
    """
    The link formats of other nodes; `ours` is this node's format.

    Each node asks, or is asked, again and again.
    """

    def __init__(self, ours: int = LINK_VERSION) -> None:
        self.ours = ours
        self._told = LogOnce()

    def is_ours(self, node: str, version: int, zone: str) -> bool:
        """
        True if the node's link format allows a link for `zone`.

        A mismatch is logged once at both nodes, until the formats match or change. A node that
        names no format (0) has one from before formats had numbers.
        """
        if version == self.ours:
            self._told.forget(node)
            return True
        if self._told.is_news(node, version):
            older = f"node {node!r}" if version < self.ours else "this node"
            log_limited(
                log.warning,
                "link.format_mismatch",
                kind=node,
                peer=node,
                zone=zone,
                reason=f"node {node!r} has link format {version}, this node {self.ours}: what is"
                f" published waits; stop {older} and start it with the other's txbroker",
            )
        return False
