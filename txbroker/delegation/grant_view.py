"""
A node's place in the tree, as the node knows it: its grant, its parent, the zones around its own.

`NodeGrant` changes it. Whoever only asks needs no more than this view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txbroker.delegation.delegation_table import DelegationTable
from txbroker.delegation.grant_state import KnownParent, KnownRoot, NodeState, Strays
from txbroker.delegation.zone_snapshot import StagedZone
from txbroker.model.errors import PeerError
from txbroker.model.log_position import JournalId
from txbroker.model.zone_cut import ZoneCut

MOST_RENUMBERED = 8
"""
The most renumberings of a root because of an earlier root; one lost disk costs one renumbering.
Without a bound, a node that invents roots would restart this root for ever.
"""


class GrantView:
    """
    A node's state; `grpc` is the address that others dial, `parent` that of the topology file.

    `arrived`: the state that a handover brought. `table`: what the node has delegated.
    """

    def __init__(
        self, state: NodeState, grpc: str, parent: str | None, staged_zone: StagedZone | None
    ) -> None:
        self.grpc = grpc
        self.table = DelegationTable(state.zone, state.table)
        self._state = state
        self._configured_parent = parent
        self._is_refused = False
        self._staged_zone = staged_zone

    @property
    def node(self) -> str:
        """Return the node's name."""
        return self._state.node

    @property
    def zone(self) -> str | None:
        """Return the apex of the zone that the topology file names; None: a pure edge."""
        return self._state.zone

    @property
    def identity(self) -> str:
        """
        Return the data folder's random identity: two nodes of one name have different identities.
        """
        return self._state.identity

    @property
    def incarnation(self) -> int:
        """Return the number of the process's present life."""
        return self._state.incarnation

    @property
    def epoch(self) -> int:
        """Return the epoch at which the node holds its zone, or last held it; 0: never."""
        return self._state.epoch

    @property
    def serving(self) -> bool:
        """True if the node holds its zone and may serve it without asking its parent first."""
        state = self._state
        awaits_grant = state.restored and self.parent is not None
        return state.serving and not (
            state.fenced or state.divergent or self._is_refused or awaits_grant
        )

    @property
    def holds(self) -> bool:
        """True if the node believes that its grant at `epoch` is still valid, served now or not."""
        return self._state.serving

    @property
    def held_part(self) -> JournalId | None:
        """Return the journal part of the held grant; None if the node holds none."""
        state = self._state
        return JournalId(state.zone or "", state.epoch) if state.serving else None

    @property
    def ended(self) -> int:
        """
        Return the greatest ended epoch of the zone, as far as this node knows.

        The epoch of a grant that the node still claims has not ended, even while the zone is not
        served. An edge that hears of an end asks another node and forgets its position here.
        """
        is_open = self._state.serving and not self._state.divergent
        return self.epoch - 1 if is_open else self.epoch

    @property
    def fenced(self) -> bool:
        """True if the node had begun a hand-back of that epoch and does not know the outcome."""
        return self._state.fenced

    @property
    def restored(self) -> bool:
        """True if the data is a copy from an earlier time and no grant has followed."""
        return self._state.restored

    @property
    def prepared(self) -> int:
        """
        Return the epoch of a handover to this node whose outcome the node does not know; or 0.
        """
        staged_zone = self._staged_zone
        if staged_zone is None or staged_zone.apex != self.zone or staged_zone.epoch <= self.epoch:
            return 0
        return staged_zone.epoch

    @property
    def divergent(self) -> int:
        """Return the epoch of an unsettled branch that the parent has cut off; or 0."""
        return self._state.divergent

    @property
    def absorbing(self) -> StagedZone | None:
        """Return the received state that is committed and not yet absorbed into the store."""
        return self._staged_zone if self._state.absorbing is not None else None

    @property
    def lineage(self) -> tuple[ZoneCut, ...]:
        """Return the zones above, root first."""
        return self._state.lineage

    @property
    def cut(self) -> ZoneCut:
        """Return the node's own zone as other nodes know it; meaningless for a pure edge."""
        return ZoneCut(apex=self.zone or "", epoch=self.epoch, node=self.node, grpc=self.grpc)

    @property
    def parent(self) -> str | None:
        """
        Return the address to join: the parent that the tree last reported, else the topology
        file's.
        """
        state = self._state
        if state.parent is not None and state.configured_parent == self._configured_parent:
            return state.parent
        return self._configured_parent

    @property
    def known_parent(self) -> KnownParent | None:
        """Return the node at `parent`, as last reported; None: any node that answers there."""
        known = self._state.known_parent
        return known if known is not None and known.grpc == self.parent else None

    @property
    def root(self) -> KnownRoot | None:
        """
        Return the root of the tree: this node, or the root that it last heard of; None: unknown.
        """
        if self.parent is None and self.zone is not None:
            return KnownRoot(zone=self.zone, epoch=self.epoch, identity=self._root_identity)
        return self._state.root

    def is_reused(self, told: KnownRoot | None) -> bool:
        """
        True if this node is the root, and uses an epoch of an earlier root `told` again.

        `told` is the root that another node has heard of. An epoch of an earlier life of this data
        counts as well.
        """
        if self.parent is not None or told is None or told.zone != self.zone:
            return False
        if told.identity == self._root_identity:
            return told.epoch > self.epoch  # this data is a copy from an earlier time
        return told.epoch >= self._first_in_doubt(told)

    def lineage_of_children(self) -> tuple[ZoneCut, ...]:
        """Return the lineage of this node's children, root first."""
        return self.lineage if self.zone is None else (*self.lineage, self.cut)

    def ended_around(self, apex: str) -> dict[str, int]:
        """
        Return the ended zones around `apex`, above or below this node, with their last epochs.
        """
        return {**self._ended_above(), **self.table.ended_around(apex)}

    def known_epoch(self, apex: str) -> int:
        """Return the greatest known epoch of a zone above, below or this node's own; or 0."""
        own = self.epoch if apex == self.zone else 0
        return max(own, self._state.above.get(apex, 0), self.table.epoch_of(apex))

    def is_outdated(self, cut: ZoneCut) -> bool:
        """True if a zone around this node's own is known to have had a later epoch than `cut`."""
        return cut.epoch < self._state.above.get(cut.apex, 0)

    @property
    def renumbering(self) -> tuple[tuple[JournalId, JournalId], ...]:
        """Return the parts to renumber, each with its new part."""
        state = self._state
        if not state.renumbering or state.zone is None:
            return ()
        # All new epochs lie above the old ones.
        new = (e for e in (*state.lives, state.epoch) if e > state.renumbering)
        shift = state.epoch - state.renumbering
        return tuple((JournalId(state.zone, e - shift), JournalId(state.zone, e)) for e in new)

    @property
    def may_renumber(self) -> bool:
        """True if the bound on renumbering is not reached."""
        return self._state.renumbered < MOST_RENUMBERED

    @property
    def strays(self) -> tuple[Strays, ...]:
        """
        Return the records that were accepted for other nodes' zones and must go to the owners.
        """
        return self._state.strays

    @property
    def is_copy(self) -> bool:
        """True if the data is, or once was, a copy: later delegations may be forgotten."""
        return bool(self._state.copy or self._state.begun)

    @property
    def lives(self) -> tuple[int, ...]:
        """Return the epochs at which earlier lives of this copy held the zone, in order."""
        return self._state.lives

    @property
    def parent_name(self) -> str:
        """Return the last reported name of the node at `parent`; "" if unknown."""
        known = self.known_parent
        names = (cut.node for cut in self.lineage if cut.grpc == self.parent)
        return known.node if known is not None else next(names, "")

    # internal

    def _first_in_doubt(self, told: KnownRoot) -> int:
        """
        Return the first own epoch that the root `told` may have used.

        The present epoch, if `told` was a life of this data; else the first life's epoch.
        """
        identity, _, _ = told.identity.partition(".")
        lives = () if identity == self.identity else self._state.lives
        return min((*lives, self.epoch))

    @property
    def _root_identity(self) -> str:
        state = self._state
        return f"{state.identity}.{state.copy}" if state.copy else state.identity

    def _ended_above(self) -> dict[str, int]:
        standing = {cut.apex for cut in self.lineage}
        return {a: epoch for a, epoch in self._state.above.items() if a not in standing}

    def _check_present(self, lineage: Iterable[ZoneCut]) -> None:
        for cut in lineage:
            if self.is_outdated(cut):
                raise PeerError(f"zone {cut.apex!r} of the parent's lineage has ended")

    def _heard(self, lineage: tuple[ZoneCut, ...], ended: Mapping[str, int]) -> dict[str, int]:
        above = dict(self._state.above)
        for apex, epoch in [*((cut.apex, cut.epoch) for cut in lineage), *ended.items()]:
            above[apex] = max(above.get(apex, 0), epoch)
        return above
