"""
A node's place in the tree: its grant, its parent, what it delegated; and the durable form of it.

Every change here is saved before anybody is told of it. The composition and the control plane share
this one object, so that there is one truth about "who am I".

A zone that changes hands arrives in three steps, each durable (protocol rule 12): `receive` keeps
its state aside while the parent has not decided; `grant`, or `take_back` where it comes from a
child, makes the decision known; `absorbed` says that the state is where the zone is served from. A
node that dies between two of them does the rest when it starts.
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
from txbroker.model.log_position import JournalId
from txbroker.model.zone_cut import ZoneCut
from txbroker.runtime.flush_queue import run_all

ROOT_EPOCH = 1

LEFT_OUT = 1_000
"""
Epochs that are left out where nobody knows which ones have been used: as many as a zone may have
been restored since the copy was made. Chance takes one of as many such blocks.
"""

LIVES = 1_000
"""Earlier lives of a copy that are remembered: it may have been restored from a copy each time."""

MOST_RENUMBERED = 8
"""
Times that a root takes another epoch as a node knows an earlier root: one lost disk is one time.

Without a bound, a node that invents roots would restart this one for ever.
"""


class NodeGrant:
    """
    The node's state in memory and on disk; `grpc` is the address that others dial.

    `life` tells this process from any other one that has, or had, the same data: a copied folder
    has the identity and the incarnation of the first one.
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
        self._arrived = folder.incoming.load()
        if parent is None and not state.serving:
            self._state = attrs.evolve(self._state, serving=True, epoch=ROOT_EPOCH)
        self.save()
        if self._arrived is not None and not self._is_of_use(self._arrived):
            self._forget_arrived()

    # what is true

    @property
    def node(self) -> str:
        """The node's name."""
        return self._state.node

    @property
    def zone(self) -> str | None:
        """The apex of the zone that the topology file gives it; None: a pure edge."""
        return self._state.zone

    @property
    def identity(self) -> str:
        """Of the data folder, random: two nodes of one name have two."""
        return self._state.identity

    @property
    def incarnation(self) -> int:
        """Number of this life of the process."""
        return self._state.incarnation

    @property
    def epoch(self) -> int:
        """At which the zone is, or was last, held; 0: never."""
        return self._state.epoch

    @property
    def serving(self) -> bool:
        """Whether the node holds its zone, and does not have to ask its parent first."""
        state = self._state
        awaits_grant = state.restored and self.parent is not None
        return state.serving and not (
            state.fenced or state.divergent or self._is_refused or awaits_grant
        )

    @property
    def holds(self) -> bool:
        """Whether the node takes itself to hold its zone at `epoch`, served now or not."""
        return self._state.serving

    @property
    def held_part(self) -> JournalId | None:
        """The part of the journal that belongs to what it `holds`; None: it holds nothing."""
        state = self._state
        return JournalId(state.zone or "", state.epoch) if state.serving else None

    @property
    def ended(self) -> int:
        """
        The greatest epoch of the zone that is over, as far as this node knows.

        Not that of a grant that it still claims, though it does not serve the zone now: whoever
        is told that it is gone looks elsewhere, and forgets how far it had come here.
        """
        is_open = self._state.serving and not self._state.divergent
        return self.epoch - 1 if is_open else self.epoch

    @property
    def fenced(self) -> bool:
        """Whether it was giving that epoch back, and does not know what became of it."""
        return self._state.fenced

    @property
    def restored(self) -> bool:
        """Whether the data is a copy from before, and nobody has granted the zone since."""
        return self._state.restored

    @property
    def prepared(self) -> int:
        """Epoch of a handover to here that the parent has not decided, as far as known; or 0."""
        arrived = self._arrived
        if arrived is None or arrived.apex != self.zone or arrived.epoch <= self.epoch:
            return 0
        return arrived.epoch

    @property
    def divergent(self) -> int:
        """Epoch of the branch that the parent has cut off and that is not settled; or 0."""
        return self._state.divergent

    @property
    def absorbing(self) -> StagedZone | None:
        """What has arrived for good and is not where the zone is served from yet."""
        return self._arrived if self._state.absorbing is not None else None

    @property
    def lineage(self) -> tuple[ZoneCut, ...]:
        """The zones above, root first."""
        return self._state.lineage

    @property
    def cut(self) -> ZoneCut:
        """The node's own zone, as others know it; meaningless for a pure edge."""
        return ZoneCut(apex=self.zone or "", epoch=self.epoch, node=self.node, grpc=self.grpc)

    @property
    def parent(self) -> str | None:
        """Where to join: what the tree told last, else what the topology file says."""
        state = self._state
        if state.parent is not None and state.configured_parent == self._configured_parent:
            return state.parent
        return self._configured_parent

    @property
    def known_parent(self) -> KnownParent | None:
        """Who is at `parent`, as the tree said last; None: whoever answers there."""
        known = self._state.known_parent
        return known if known is not None and known.grpc == self.parent else None

    @property
    def root(self) -> KnownRoot | None:
        """The root of the tree: this node itself, or what it has heard; None: nothing yet."""
        if self.parent is None and self.zone is not None:
            return KnownRoot(zone=self.zone, epoch=self.epoch, identity=self._root_identity)
        return self._state.root

    def is_reused(self, told: KnownRoot | None) -> bool:
        """
        True if this node is the root, and `told`, which another node has heard, was one before it
        of which this one, or an earlier life of it, uses an epoch again.
        """
        if self.parent is not None or told is None or told.zone != self.zone:
            return False
        if told.identity == self._root_identity:
            return told.epoch > self.epoch  # this data is a copy from before
        return told.epoch >= self._first_in_doubt(told)

    def lineage_of_children(self) -> tuple[ZoneCut, ...]:
        """The zones above a child of this node."""
        return self.lineage if self.zone is None else (*self.lineage, self.cut)

    def ended_around(self, apex: str) -> dict[str, int]:
        """Zones around `apex`, above or below this node, that ended: their last epochs."""
        return {**self._ended_above(), **self.table.ended_around(apex)}

    def known_epoch(self, apex: str) -> int:
        """The greatest epoch of a zone, above, below or its own, that this node knows; or 0."""
        own = self.epoch if apex == self.zone else 0
        return max(own, self._state.above.get(apex, 0), self.table.epoch_of(apex))

    def is_outdated(self, cut: ZoneCut) -> bool:
        """Whether a zone around this node's own is known to have had a later epoch."""
        return cut.epoch < self._state.above.get(cut.apex, 0)

    # what changes it; saved when these return

    def when_changed(self, action: Callable[[], None]) -> None:
        """Run `action` after each change of lineage or of the cuts below."""
        self._on_change.append(action)

    def receive(self, arrived: StagedZone) -> None:
        """
        A zone's state is here in full; it replaces what was received and never decided.

        It may be much, so this is to be called in a thread, and by one at a time.
        """
        self._folder.incoming.save(arrived)
        self._arrived = arrived

    def grant(
        self,
        epoch: int,
        lineage: Iterable[ZoneCut],
        ended: Mapping[str, int] | None = None,
        below: Iterable[ZoneCut] = (),
    ) -> None:
        """
        The parent granted the zone (epoch 0: it took in a pure edge); `ended` as it knows them,
        `below` the cuts that it knows below the zone, for a node whose data is a copy.

        Raises `PeerError` for an epoch that this node has nothing of, and for a parent whose own
        zone has ended since. What a copy holds gets an epoch that nobody has used: its lives since
        have given offsets at the one that it knows.
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
        if epoch > self.epoch and self._arrived is not None:
            self.table.take_over(self._arrived.subtree)
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
        An operator says that the copy is the last that there is: it is served as it is, at an epoch
        that the parent, which is away, will not have granted.
        """
        epoch = self.epoch + _left_out() + 1
        changes = self._renewed(epoch) if self.holds else {}
        self._set(restored=False, epoch=epoch, **changes)

    def take_back(self, apex: str, passage: EpochTransition) -> None:
        """
        A child has given `apex` back, and its state was received: the zone is ours again, and its
        topics make this passage.
        """
        assert self._arrived is not None and self._arrived.apex == apex
        self.table.release(apex, self._arrived.subtree)
        self.table.note(passage)
        self._set(absorbing=apex)

    def absorbed(self) -> None:
        """What had arrived is part of the store."""
        self._set(absorbing=None)
        self._forget_arrived()

    def set_fenced(self, fenced: bool) -> None:
        """
        The zone is being given back. A node that dies in the middle asks its parent before it
        serves again: only the parent knows whether it has committed (protocol rule 12).
        """
        self._is_fencing = fenced
        self._set(fenced=fenced)

    def lose(self) -> None:
        """The zone is not this node's any more, and with it what was delegated below it."""
        self.table.lose()
        self._set(serving=False, fenced=False)

    def refuse(self) -> None:
        """The parent refuses the zone: it is not served until that changes, or in the next life."""
        self._is_refused = True

    def diverge(self, epoch: int) -> None:
        """The parent has cut off what this node has of the epoch; it is kept until settled."""
        self._set(divergent=epoch)

    def settle(self) -> None:
        """The branch is dealt with: the node holds nothing of the zone, and may ask for it."""
        self.table.lose()
        self._set(serving=False, fenced=False, divergent=0)
        self._forget_arrived()

    def meet(self, parent: KnownParent) -> None:
        """This node has granted the zone."""
        if parent != self._state.known_parent:
            self._set(known_parent=parent)

    def hear_root(self, told: KnownRoot | None) -> None:
        """Another node says who the root is; what it heard earlier does not count."""
        known = self._state.root
        if told is None or self.parent is None:
            return
        if known is None or known.zone != told.zone or told.epoch > known.epoch:
            self._set(root=told)

    def renumber(self, told: KnownRoot) -> None:
        """
        The root's epoch was that of the root `told`, or one of an earlier life was: from that one
        on the parts of its journal get other epochs, above all of these, at the next start.
        """
        state = self._state
        first = self._first_in_doubt(told)
        shift = max(state.epoch, told.epoch) + 1 - first
        apex = state.zone or ""
        new = {e: e + shift for e in (*state.lives, state.epoch) if e >= first}
        for epoch in new:
            self.table.renumber(JournalId(apex, epoch), new[epoch])
        if len(new) > 1:
            # Whoever has come as far as the lost root reads all parts, not the present one alone.
            self.table.begin_behind(apex, told.epoch, new[first])
        self._set(
            epoch=new[state.epoch],
            renumbering=state.epoch,
            renumbered=state.renumbered + 1,
            lives=tuple(new.get(life, life) for life in state.lives),
            strays=tuple(attrs.evolve(s, epoch=new.get(s.epoch, s.epoch)) for s in state.strays),
        )

    @property
    def renumbering(self) -> tuple[tuple[JournalId, JournalId], ...]:
        """The parts that are to be others, each with that one."""
        state = self._state
        if not state.renumbering or state.zone is None:
            return ()
        # All new epochs are above the old ones.
        new = (e for e in (*state.lives, state.epoch) if e > state.renumbering)
        shift = state.epoch - state.renumbering
        return tuple((JournalId(state.zone, e - shift), JournalId(state.zone, e)) for e in new)

    @property
    def may_renumber(self) -> bool:
        """True if the bound on renumbering is not reached."""
        return self._state.renumbered < MOST_RENUMBERED

    def finish_renumbering(self) -> None:
        """All that is stored has the new epoch."""
        self._set(renumbering=0)

    @property
    def strays(self) -> tuple[Strays, ...]:
        """What was taken here for zones of other nodes, and is to go to them."""
        return self._state.strays

    @property
    def is_copy(self) -> bool:
        """True if the data is, or once was, a copy: delegations since may be forgotten."""
        return bool(self._state.copy or self._state.begun)

    @property
    def lives(self) -> tuple[int, ...]:
        """The epochs at which earlier lives of this copy held the zone, in their order."""
        return self._state.lives

    def restore(self) -> None:
        """
        The data is a copy. A root begins its next epoch: nobody grants it one. Where an earlier
        life has used that as well, those who have heard of it say so (`is_reused`).
        """
        if self.parent is None and self.holds:
            changes = self._renewed(self.epoch + 1)
            self._set(epoch=self.epoch + 1, **changes)

    def left_out(self, apex: str) -> int:
        """
        How many epochs of a zone below to leave out for a copy, above those that are known: the
        table may have forgotten some.
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
        The child keeps its zone at `cut.epoch`; `since`: see `Delegation`. A copy has had it at the
        epoch `before`. What was taken here for a zone whose delegation was forgotten, up to this
        offset of the own part, is to go to the child; so is what `earlier` lives took at their
        epochs, up to these offsets.
        """
        if 0 < before < cut.epoch:
            self.table.note_renewal(cut.apex, before, cut.epoch)
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

    def pass_on(self, strays: Strays, after: int) -> Strays | None:
        """The owner has those up to this offset; what is left, or None."""
        left = attrs.evolve(strays, after=after) if after < strays.through else None
        others = tuple(known for known in self._state.strays if known != strays)
        self._set(strays=others if left is None else (*others, left))
        return left

    def move(
        self, parent: ZoneCut, identity: str = "", ended: Mapping[str, int] | None = None
    ) -> None:
        """
        Join there from now on; `ended` as that node knows them. Raises `PeerError` for one whose
        zone has ended since.
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
        """The node at `parent`, as far as the tree said; "" where it did not."""
        known = self.known_parent
        names = (cut.node for cut in self.lineage if cut.grpc == self.parent)
        return known.node if known is not None else next(names, "")

    def look_above(self) -> str:
        """
        The parent is gone: join the nearest node above it that is known, or the one that the
        topology file names. Its address, or "" where there is no other one.
        """
        above = next((cut for cut in reversed(self.lineage) if cut.grpc != self.parent), None)
        if above is not None and not self.is_outdated(above):
            self.move(above)
            return above.grpc
        if self.parent == self._configured_parent:
            return ""
        self._set(parent=None)
        return self.parent or ""

    def set_lineage(self, lineage: Iterable[ZoneCut]) -> None:
        """The zones above changed; raises `PeerError` where one of them has ended since."""
        lineage = tuple(lineage)
        self._check_present(lineage)
        self._set(lineage=lineage, above=self._heard(lineage, {}))

    def save(self) -> None:
        """
        Make the state, with the delegation table, durable; then tell those who watch.

        Raises `StoreError`, here as in all that changes something, and then everything, the table
        included, is as it was saved last.
        """
        self._set()

    # internal

    def _first_in_doubt(self, told: KnownRoot) -> int:
        """
        The first own epoch that the root `told` may have used: the present one, where that was a
        life of this data; else that of the first life.
        """
        identity, _, _ = told.identity.partition(".")
        lives = () if identity == self.identity else self._state.lives
        return min((*lives, self.epoch))

    @property
    def _root_identity(self) -> str:
        state = self._state
        return f"{state.identity}.{state.copy}" if state.copy else state.identity

    def _renewed(self, epoch: int) -> dict[str, Any]:
        """What changes when the zone goes on here at another epoch: offsets begin anew."""
        state = self._state
        self.table.note_renewal(state.zone or "", state.epoch, epoch)
        self.table.begin_anew()
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

    def _is_of_use(self, arrived: StagedZone) -> bool:
        return self._state.absorbing == arrived.apex or self.prepared > 0

    def _forget_arrived(self) -> None:
        if self._arrived is not None:
            self._arrived = None
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
