"""
SHELL: a root that hears of another root before it, whose disk is lost.

Its own journal gives the offsets of the lost one a second time, and at the same epoch: sessions
elsewhere would take new messages for old ones. Each node says which root it has heard of. A root
that hears of another one, at its own epoch or a later one, takes an epoch that nobody has used, for
all that it has taken so far as well, and starts again with that. Until then it answers nobody who
would mix up the two (protocol rule 30).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txbroker.delegation.peer_checks import check_near
from txbroker.delegation.state.node_grant import NodeGrant
from txbroker.delegation.state.node_state import KnownRoot
from txbroker.model.errors import PeerError, StoreError
from txbroker.rpc.streams import brief
from txbroker.runtime.structured_log import get_logger, tell_repeated
from txbroker.v1 import control_pb2

log = get_logger()


class LostRoot:
    """`restart` ends the node in good order and starts it again in the same process."""

    def __init__(self, standing: NodeGrant, *, restart: Callable[[], None]) -> None:
        self._standing = standing
        self._restart = restart

    def judge(self, peer: str, says: Any) -> str | None:
        """
        Why the peer has to ask again later, from the root that `says` (an Announce, an
        OpenLinkRequest, a ReadRequest) names; None: nothing is in its way. Raises `PeerError` for
        a lie.
        """
        standing = self._standing
        told = checked_root(says, standing)
        if told is None:
            return None
        if not standing.renumbering:  # else it still serves at the epoch that was used before
            if not standing.is_reused(told):
                return None
            if not standing.may_renumber:
                raise PeerError(
                    f"another root {told.identity!r} at epoch {told.epoch}, and this one has taken"
                    " the place of too many; delete `data` of the node that says so"
                )
            self._renumber(peer, told)
        return "the root has lost its disk and takes a new epoch"

    def _renumber(self, peer: str, told: KnownRoot) -> None:
        standing, before = self._standing, self._standing.epoch
        try:
            standing.renumber(told)
        except StoreError as error:
            tell_repeated(log.error, "state.unsaved", kind="renumber", reason=str(error))
            return
        log.warning(
            "root.renumbered",
            zone=standing.zone,
            epoch=standing.epoch,
            before=before,
            peer=brief(peer),
            reason="the node knows an earlier root, which used this epoch; the node starts again",
        )
        self._restart()


def root_to_wire(root: KnownRoot | None) -> control_pb2.Root | None:
    """For a message that says which root a node has heard of."""
    if root is None:
        return None
    return control_pb2.Root(zone=root.zone, epoch=root.epoch, identity=root.identity)


def checked_root(says: Any, standing: NodeGrant) -> KnownRoot | None:
    """
    The root that the message names; None: none, or an older node's message. Raises `PeerError` for
    one whose epoch is far above what this node knows: no true one would be believed after it.
    """
    if not says.HasField("root") or not says.root.identity:
        return None
    told = KnownRoot(zone=says.root.zone, epoch=says.root.epoch, identity=says.root.identity)
    heard = standing.root
    known = heard.epoch if heard is not None and heard.zone == told.zone else 0
    check_near("root.epoch", told.epoch, max(known, standing.known_epoch(told.zone)))
    return told
