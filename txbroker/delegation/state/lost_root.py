"""
SHELL: detects that this root has replaced an earlier root, whose disk is lost.

The new root's journal assigns the lost root's offsets a second time, at the same epoch. Sessions
elsewhere would mistake new messages for old ones. So each node names its known root. A root may
hear of another root, at its own epoch or later. Then it renumbers: its journal gets an epoch that
no root has used, and the root restarts. Until then the root does not answer nodes that would
confuse the two roots (protocol rule 30).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txbroker.delegation.grant_state import KnownRoot
from txbroker.delegation.join_child import check_root
from txbroker.delegation.node_grant import NodeGrant
from txbroker.model.errors import PeerError, StoreError
from txbroker.rpc.streams import brief
from txbroker.runtime.structured_log import get_logger, log_limited
from txbroker.v1 import control_pb2

log = get_logger()


class LostRoot:
    """
    Judges the root that each peer names; `restart` ends the node in good order and starts it again.
    """

    def __init__(self, node_grant: NodeGrant, *, restart: Callable[[], None]) -> None:
        self._node_grant = node_grant
        self._restart = restart

    def judge(self, peer: str, says: Any) -> str | None:
        """
        Return the reason why the peer must ask again later; None if the peer may proceed.

        `says` is the peer's message with the root's name: an Announce, an OpenLinkRequest or a
        ReadRequest. Raises `PeerError` for a lie.
        """
        node_grant = self._node_grant
        told = checked_root(says, node_grant)
        if told is None:
            return None
        # a renumbering root still serves at the epoch that was used before
        if not node_grant.renumbering:
            if not node_grant.is_reused(told):
                return None
            if not node_grant.may_renumber:
                raise PeerError(
                    f"another root {told.identity!r} at epoch {told.epoch}, and this one has taken"
                    " the place of too many; delete `data` of the node that says so"
                )
            self._renumber(peer, told)
        return "the root has lost its disk and takes a new epoch"

    def _renumber(self, peer: str, told: KnownRoot) -> None:
        node_grant, before = self._node_grant, self._node_grant.epoch
        try:
            node_grant.renumber(told)
        except StoreError as error:
            log_limited(log.error, "state.write_failed", kind="renumber", reason=str(error))
            return
        log.warning(
            "root.epoch_replaced",
            zone=node_grant.zone,
            epoch=node_grant.epoch,
            before=before,
            peer=brief(peer),
            reason="the node knows an earlier root, which used this epoch; the node starts again",
        )
        self._restart()


def root_to_wire(root: KnownRoot | None) -> control_pb2.Root | None:
    """Return the known root for a message."""
    if root is None:
        return None
    return control_pb2.Root(zone=root.zone, epoch=root.epoch, identity=root.identity)


def root_from_wire(says: Any) -> KnownRoot | None:
    """Return the root that a message names; None: no root, or an older node's message."""
    if not says.HasField("root") or not says.root.identity:
        return None
    return KnownRoot(zone=says.root.zone, epoch=says.root.epoch, identity=says.root.identity)


def checked_root(says: Any, node_grant: NodeGrant) -> KnownRoot | None:
    """Return the root that a message names, checked; raises `PeerError`."""
    told = root_from_wire(says)
    check_root(node_grant, told)
    return told
