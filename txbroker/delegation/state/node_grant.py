"""
A node's place in the tree: its grant, its parent, what it delegated; and the durable form of it.

Every change here is saved before anybody is told of it. The composition and the control plane share
this one object, so that there is one truth about "who am I".

A zone that changes hands arrives in three steps, each durable (protocol rule 12): `receive` keeps
its state aside while the parent has not decided; `grant`, or `commit_hand_back` where it comes from
a child, makes the decision known; `absorbed` says that the state is where the zone is served from.
A node that dies between two of them does the rest when it starts.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from txbroker.delegation.delegation_table import DelegationTable
from txbroker.delegation.state.node_state import (
    DataFolder,
    KnownParent,
    KnownRoot,
    NodeState,
    Strays,
)
from txbroker.delegation.state.received_zone_file import StagedZone
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.errors import PeerError, StoreError
from txbroker.model.invariant import holds, ordered
from txbroker.model.log_position import JournalId
from txbroker.model.zone_cut import ZoneCut
from txbroker.runtime.flush_queue import run_all

ROOT_EPOCH = 1

LEFT_OUT = 1_000
"""
Epochs in one block that a grant skips if the used epochs are unknown. A zone may have been restored
that many times since the copy was made. A random choice picks one of as many blocks.
"""

LIVES = 1_000
"""
The most earlier lives of a copy that the state remembers; each life may have been restored from a
copy.
"""

MOST_RENUMBERED = 8
"""
The most renumberings of a root because of an earlier root; one lost disk costs one renumbering.
Without a bound, a node that invents roots would restart this root for ever.
"""


class NodeGrant:
    """
    The node's state in memory and on disk; `grpc` is the address that others dial.

    `life` tells this process from any other one that has, or had, the same data: a copied folder
    has the identity and the incarnation of the first one.

    Invariant: lives <= epoch, each at most the next; a zone is served at an epoch from 1 on.
    Invariant: the cuts of `table` are those of the state that was saved last.
    """

    def __init__(self, folder: DataFolder, state: NodeState, grpc: str, parent: str | None) -> None:
        self._folder = folder
        self._state = attrs.evolve(
            state,
            incarnation=state.incarnation + 1,
            identity=state.identity or secrets.token_hex(16),
        )
        self.life = secrets.token_hex(8)
        self.grpc = grpc
        self.table = DelegationTable(state.zone, state.table)
        self._configured_parent = parent
        self._is_fencing = False
        self._is_refused = False
        self._on_change: list[Callable[[], None]] = []
        self._staged_zone = folder.incoming.load()
        if parent is None and not state.serving:
            self._state = attrs.evolve(self._state, serving=True, epoch=ROOT_EPOCH)
        self.save()
        if self._staged_zone is not None and not self._is_of_use(self._staged_zone):
            self._forget_arrived()

    # queries

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

    # changes; each is saved when its method returns

    def when_changed(self, action: Callable[[], None]) -> None:
        """Run `action` after each change of lineage or of the cuts below."""
        self._on_change.append(action)

    def receive(self, staged_zone: StagedZone) -> None:
        """
        Make a zone's complete received state durable, in place of an undecided earlier one.

        The state may be large, so the caller runs this in a thread, one call at a time.
        """
        self._folder.incoming.save(staged_zone)
        self._staged_zone = staged_zone

    def grant(
        self,
        epoch: int,
        lineage: Iterable[ZoneCut],
        ended: Mapping[str, int] | None = None,
        below: Iterable[ZoneCut] = (),
    ) -> None:
        """
        Record the parent's grant of the zone (epoch 0: the parent accepted a pure edge).

        `ended`: the ends that the parent knows. `below`: the cuts below the zone that the parent
        knows, for a node whose data is a copy. A copy gets an epoch that no node has used: its
        lives since have assigned offsets of the known epoch. Raises `PeerError` for an epoch
        without data here, and for a parent whose own zone has ended since.
        """
        lineage = tuple(lineage)
        self._check_present(lineage)
        if self.restored and 0 < epoch < self.epoch + self.holds:
            raise PeerError(
                f"this node's data is a copy of epoch {self.epoch}, and the parent grants no later"
                " one; upgrade the parent"
            )
        if not self.restored and epoch not in (0, self.epoch, self.prepared):
            raise PeerError(f"this node has nothing of epoch {epoch}")
        changes: dict[str, Any] = {}
        if epoch > self.epoch and self._staged_zone is not None:
            self.table.replace_all(self._staged_zone.subtree)
            changes["absorbing"] = self.zone
        elif self.restored and epoch:
            self.table.recall(below)
            changes.update(self._renewed(epoch))
        self._set(
            serving=epoch > 0,
            epoch=epoch or self.epoch,
            lineage=lineage,
            above=self._heard(lineage, ended or {}),
            fenced=epoch > 0 and self._state.fenced and self._is_fencing,
            divergent=0,
            restored=False,
            **changes,
        )
        self._is_refused = False

    def insist(self) -> None:
        """
        Serve the restored copy at an operator's command: no newer data exists.

        The zone gets an epoch that the parent, which is away, will not have granted.
        """
        epoch = self.epoch + _left_out() + 1
        changes = self._renewed(epoch) if self.holds else {}
        self._set(restored=False, epoch=epoch, **changes)

    def commit_hand_back(self, apex: str, transition: EpochTransition) -> None:
        """
        Commit a child's hand-back of `apex`, whose state was received before.

        The zone is this node's again, and its topics make the transition `transition`.
        """
        assert self._staged_zone is not None and self._staged_zone.apex == apex
        self.table.release(apex, self._staged_zone.subtree)
        self.table.record_transition(transition)
        self._set(absorbing=apex)

    def absorbed(self) -> None:
        """Record that the store has absorbed the received state."""
        self._set(absorbing=None)
        self._forget_arrived()

    def set_fenced(self, fenced: bool) -> None:
        """
        Record that a hand-back has begun, or was rolled back.

        A node that dies in between asks its parent before it serves: only the parent knows whether
        it has committed (protocol rule 12).
        """
        self._is_fencing = fenced
        self._set(fenced=fenced)

    def record_loss(self) -> None:
        """Record that the zone and the delegations below it are no longer this node's."""
        self.table.forget_all()
        self._set(serving=False, fenced=False)

    def refuse(self) -> None:
        """
        Record the parent's refusal: the zone is not served until a grant, or until the next life.
        """
        self._is_refused = True

    def diverge(self, epoch: int) -> None:
        """
        Record that the parent has cut off this epoch's records; the branch stays until settled.
        """
        self._set(divergent=epoch)

    def record_settled(self) -> None:
        """Record that the branch is settled: the node holds no grant and may ask for its zone."""
        self.table.forget_all()
        self._set(serving=False, fenced=False, divergent=0)
        self._forget_arrived()

    def record_parent(self, parent: KnownParent) -> None:
        """Remember the parent that granted the zone."""
        if parent != self._state.known_parent:
            self._set(known_parent=parent)

    def record_root(self, told: KnownRoot | None) -> None:
        """Remember the root that another node names; an epoch that is not later is ignored."""
        known = self._state.root
        if told is None or self.parent is None:
            return
        if known is None or known.zone != told.zone or told.epoch > known.epoch:
            self._set(root=told)

    def renumber(self, told: KnownRoot) -> None:
        """
        Give new epochs to the parts of the root's journal that the root `told` may have used.

        The parts are this root's present one and those of earlier lives, from the first used epoch
        on. The new epochs lie above all of these; the next start moves the stored parts.
        """
        state = self._state
        first = self._first_in_doubt(told)
        shift = max(state.epoch, told.epoch) + 1 - first
        apex = state.zone or ""
        new = {e: e + shift for e in (*state.lives, state.epoch) if e >= first}
        for epoch in new:
            self.table.renumber(JournalId(apex, epoch), new[epoch])
        if len(new) > 1:
            # Without this transition, a session at the lost root's position would read the present
            # part only.
            self.table.prepend_part(apex, told.epoch, new[first])
        self._set(
            epoch=new[state.epoch],
            renumbering=state.epoch,
            renumbered=state.renumbered + 1,
            lives=tuple(new.get(life, life) for life in state.lives),
            strays=tuple(attrs.evolve(s, epoch=new.get(s.epoch, s.epoch)) for s in state.strays),
        )

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

    def finish_renumbering(self) -> None:
        """Record that all stored parts have their new epochs."""
        self._set(renumbering=0)

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

    def restore(self) -> None:
        """
        Begin the next epoch of a root whose data is a copy: no parent grants one.

        An earlier life may have used that epoch too; nodes that have heard of it say so
        (`is_reused`).
        """
        if self.parent is None and self.holds:
            changes = self._renewed(self.epoch + 1)
            self._set(epoch=self.epoch + 1, **changes)

    def skipped_epochs(self, apex: str) -> int:
        """
        Return the number of epochs above the known ones that a child's copy must skip.

        The table may have forgotten epochs of the zone if its own data is a copy or lacks the zone.
        """
        return _left_out() if self.is_copy or self.table.get(apex) is None else 0

    def renew(
        self,
        cut: ZoneCut,
        below: Iterable[ZoneCut],
        offset: int,
        *,
        since: int = 0,
        before: int = 0,
        earlier: Mapping[int, int] = MappingProxyType({}),
    ) -> tuple[Strays, ...]:
        """
        Renew a child's grant at `cut.epoch`; return the strays that must go to the child.

        `since`: see `Delegation`. `before`: the epoch at which a restored child last held the zone.
        Strays are records here of a zone whose delegation was forgotten: those of the own part up
        to `offset`, and those of `earlier` lives, which map each epoch to its last offset.
        """
        if 0 < before < cut.epoch:
            self.table.record_renewal(cut.apex, before, cut.epoch)
        strays: list[Strays] = []
        if self.table.get(cut.apex) is None:
            strays = [
                Strays(apex=cut.apex, after=0, through=earlier[epoch], epoch=epoch)
                for epoch in sorted(earlier)
            ]
            if offset > self._state.begun:
                strays.append(Strays(apex=cut.apex, after=self._state.begun, through=offset))
        self.table.commit(cut, below, since)
        self._set(strays=(*self._state.strays, *strays))
        return tuple(strays)

    def record_forwarded(self, strays: Strays, after: int) -> Strays | None:
        """
        Record that the owner has the strays up to the offset `after`; return the rest, or None.
        """
        left = attrs.evolve(strays, after=after) if after < strays.through else None
        others = tuple(known for known in self._state.strays if known != strays)
        self._set(strays=others if left is None else (*others, left))
        return left

    def set_parent(
        self, parent: ZoneCut, identity: str = "", ended: Mapping[str, int] | None = None
    ) -> None:
        """
        Join `parent` from now on; raises `PeerError` if that node's zone has ended since.

        `ended`: the ends that the new parent knows.
        """
        self._check_present([parent])
        self._set(
            parent=parent.grpc,
            configured_parent=self._configured_parent,
            known_parent=KnownParent(
                grpc=parent.grpc, node=parent.node, zone=parent.apex, identity=identity
            ),
            above=self._heard((), ended or {}),
        )

    @property
    def parent_name(self) -> str:
        """Return the last reported name of the node at `parent`; "" if unknown."""
        known = self.known_parent
        names = (cut.node for cut in self.lineage if cut.grpc == self.parent)
        return known.node if known is not None else next(names, "")

    def choose_ancestor(self) -> str:
        """
        Choose another parent, as the present one is lost; return its address, or "".

        The choice is the nearest known node above, else the topology file's parent. "": no other
        node is known.
        """
        above = next((cut for cut in reversed(self.lineage) if cut.grpc != self.parent), None)
        if above is not None and not self.is_outdated(above):
            self.set_parent(above)
            return above.grpc
        if self.parent == self._configured_parent:
            return ""
        self._set(parent=None)
        return self.parent or ""

    def set_lineage(self, lineage: Iterable[ZoneCut]) -> None:
        """Record the new zones above; raises `PeerError` if one of them has ended since."""
        lineage = tuple(lineage)
        self._check_present(lineage)
        self._set(lineage=lineage, above=self._heard(lineage, {}))

    def save(self) -> None:
        """
        Make the state and the delegation table durable, then run the watchers' actions.

        Raises `StoreError`, as all methods here that change state do. After an error everything,
        the table included, is as last saved.
        """
        self._set()

    def check(self) -> None:
        """State what a node may take itself to hold; after the end of a turn."""
        state = self._state
        self.table.check()
        ordered(self, 30, "lives <= epoch", *state.lives, state.epoch)
        is_at_epoch = state.epoch > 0 or not state.serving
        holds(self, 11, "a zone is held at an epoch", is_at_epoch, self.zone, state.epoch)
        cuts = {entry.cut for entry in state.table.delegations}
        news = cuts ^ set(self.table.cuts())
        holds(self, 11, "cuts are durable before anybody is told", not news, news)
        depths = [len(cut.apex) for cut in self.lineage]
        ordered(self, 14, "the lineage goes downwards", *depths)

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

    def _renewed(self, epoch: int) -> dict[str, Any]:
        """
        Return the changes of state when the zone continues here at another epoch.

        Offsets begin anew.
        """
        state = self._state
        self.table.record_renewal(state.zone or "", state.epoch, epoch)
        self.table.reset_offsets()
        return {
            "begun": 0,
            "lives": (*state.lives, state.epoch)[-LIVES:],
            "strays": tuple(attrs.evolve(s, epoch=s.epoch or state.epoch) for s in state.strays),
        }

    def _set(self, **changes: Any) -> None:
        state = attrs.evolve(self._state, table=self.table.state(), **changes)
        try:
            self._folder.save(state)
        except StoreError:
            self.table.restore(self._state.table)
            raise
        self._state = state
        run_all(self._on_change)

    def _is_of_use(self, staged_zone: StagedZone) -> bool:
        return self._state.absorbing == staged_zone.apex or self.prepared > 0

    def _forget_arrived(self) -> None:
        if self._staged_zone is not None:
            self._staged_zone = None
            self._folder.incoming.remove()

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


def _left_out() -> int:
    return LEFT_OUT * (1 + secrets.randbelow(LEFT_OUT))
