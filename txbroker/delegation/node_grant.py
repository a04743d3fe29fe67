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

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from txbroker.delegation.grant_state import GrantStore, KnownParent, KnownRoot, NodeState, Strays
from txbroker.delegation.grant_view import GrantView
from txbroker.delegation.zone_snapshot import StagedZone
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


class NodeGrant(GrantView):
    """
    The node's state in memory and in its store; `grpc` is the address that others dial.
    `draw(n)` returns a random number below n that no other node can guess.

    `life` tells this process from any other process that has, or had, the same data. A copied
    folder has the identity and the incarnation of the first one. `undone` counts the failed saves:
    each has taken back all changes of the table that were not saved.

    Invariant: lives <= epoch, each at most the next; a zone is served at an epoch from 1 on.
    Invariant: the cuts of `table` are those of the state that was saved last.
    """

    def __init__(
        self,
        folder: GrantStore,
        state: NodeState,
        grpc: str,
        parent: str | None,
        *,
        draw: Callable[[int], int],
    ) -> None:
        state = attrs.evolve(
            state,
            incarnation=state.incarnation + 1,
            identity=state.identity or f"{draw(1 << 128):032x}",
        )
        super().__init__(state, grpc, parent, folder.incoming.load())
        self.life = f"{draw(1 << 64):016x}"
        self.undone = 0
        self._folder = folder
        self._draw = draw
        self._is_fencing = False
        self._on_change: list[Callable[[], None]] = []
        if parent is None and not state.serving:
            self._state = attrs.evolve(state, serving=True, epoch=ROOT_EPOCH)
        self.save()
        if self._staged_zone is not None and not self._is_of_use(self._staged_zone):
            self._forget_arrived()

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
        prepared, staged_zone = self.prepared, self._staged_zone
        # A copy may have the state of a zone below that came back: that is not this zone's.
        if epoch > self.epoch and prepared and staged_zone is not None:
            self.table.replace_all(staged_zone.subtree)
            changes["absorbing"] = self.zone
        if self.restored and epoch not in (0, prepared):
            # The lives since the copy may have held the zone at the prepared epoch.
            self.table.recall(below)
            changes.update(self._renewed(epoch, before=prepared or self.epoch))
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
        epoch = self.epoch + self._skipped_epochs() + 1
        changes = self._renewed(epoch, before=self.epoch) if self.holds else {}
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

        A node that dies in between asks its parent before it serves. Only the parent knows whether
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

    def finish_renumbering(self) -> None:
        """Record that all stored parts have their new epochs."""
        self._set(renumbering=0)

    def restore(self) -> None:
        """
        Begin the next epoch of a root whose data is a copy: no parent grants one.

        An earlier life may have used that epoch too; nodes that have heard of it say so
        (`is_reused`).
        """
        if self.parent is None and self.holds:
            changes = self._renewed(self.epoch + 1, before=self.epoch)
            self._set(epoch=self.epoch + 1, **changes)

    def skipped_epochs(self, apex: str) -> int:
        """
        Return the number of epochs above the known ones that a child's copy must skip.

        The table may have forgotten epochs of the zone if its own data is a copy or lacks the zone.
        """
        return self._skipped_epochs() if self.is_copy or self.table.get(apex) is None else 0

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
        Strays are records here of a zone whose delegation was forgotten. Strays of the own part
        reach up to `offset`. `earlier` maps the epoch of each earlier life to its last offset.
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

    def _renewed(self, epoch: int, *, before: int) -> dict[str, Any]:
        """Return the changes of state when the zone goes on behind `before`, from offset 1 on."""
        state = self._state
        self.table.record_renewal(state.zone or "", before, epoch)
        self.table.reset_offsets()
        return {
            "begun": 0,
            "lives": (*state.lives, before)[-LIVES:],
            "strays": tuple(attrs.evolve(s, epoch=s.epoch or state.epoch) for s in state.strays),
        }

    def _set(self, **changes: Any) -> None:
        state = attrs.evolve(self._state, table=self.table.state(), **changes)
        try:
            self._folder.save(state)
        except StoreError:
            self.table.restore(self._state.table)
            self.undone += 1
            raise
        self._state = state
        run_all(self._on_change)

    def _is_of_use(self, staged_zone: StagedZone) -> bool:
        return self._state.absorbing == staged_zone.apex or self.prepared > 0

    def _forget_arrived(self) -> None:
        if self._staged_zone is not None:
            self._staged_zone = None
            self._folder.incoming.remove()

    def _skipped_epochs(self) -> int:
        return LEFT_OUT * (1 + self._draw(LEFT_OUT))
