"""
What a node has delegated, and what it answers to a node that asks for a zone.

Rules that live here and nowhere else:

- an apex has at most one delegation, and its epoch only grows, also over a time when nobody held it
  (protocol rule 11): the next epoch is the greatest ever seen plus one;
- a delegation never lapses by time;
- delegations below an apex belong to the node that serves the apex, so they move along with it.

The table does no I/O. Whoever changes it stores `state()` durably before anybody is told.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from txbroker.delegation.cut import Cut
from txbroker.topics import deepest_enclosing, is_within, may_match_within


@attrs.frozen(kw_only=True)
class Delegation:
    """One cut, and all cuts below it at any depth, as its node last told."""

    cut: Cut
    below: tuple[Cut, ...] = ()


@attrs.frozen(kw_only=True)
class TableState:
    """The durable part: delegations in force, and the greatest epoch seen per apex."""

    delegations: tuple[Delegation, ...] = ()
    epochs: dict[str, int] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Applicant:
    """What a node says of itself when it asks for a zone; `last_epoch` 0: it never held it."""

    node: str
    zone: str
    grpc: str
    last_epoch: int
    below: tuple[Cut, ...] = ()


# -- the closed set of answers to an applicant


@attrs.frozen(kw_only=True)
class Renewed:
    """The zone is the applicant's already; nothing moves. `cut` may carry a new address."""

    cut: Cut


@attrs.frozen(kw_only=True)
class Transfer:
    """The zone is served here until now: hand it over at `cut.epoch`, with `moved` below it."""

    cut: Cut
    moved: tuple[Delegation, ...]


@attrs.frozen(kw_only=True)
class Elsewhere:
    """The zone lies below another cut: ask that node."""

    cut: Cut


@attrs.frozen(kw_only=True)
class Refused:
    """No, and why; one line with the remedy."""

    reason: str


Decision = Renewed | Transfer | Elsewhere | Refused


class DelegationTable:
    """The cuts of the zone `apex` (None: the node owns no zone and can delegate nothing)."""

    def __init__(self, apex: str | None, state: TableState | None = None) -> None:
        self._apex = apex
        self._delegations: dict[str, Delegation] = {}
        self._epochs: dict[str, int] = {}
        self._longest = 0
        self.restore(state or TableState())

    def __len__(self) -> int:
        return len(self._delegations)

    def delegations(self) -> tuple[Delegation, ...]:
        """Everything that is delegated."""
        return tuple(self._delegations.values())

    # from the authority and the resolver service

    def lookup(self, topic: str) -> Cut | None:
        """The cut that the topic lies under; None where the zone itself covers it."""
        if not self._delegations:
            return None
        apex = deepest_enclosing(topic, self._delegations, longest=self._longest)
        return None if apex is None else self._delegations[apex].cut

    def cuts(self) -> tuple[Cut, ...]:
        """Every cut of the zone."""
        return tuple(entry.cut for entry in self._delegations.values())

    def below(self) -> tuple[Cut, ...]:
        """Every cut below the zone at any depth: what the parent is told."""
        return tuple(
            cut for entry in self._delegations.values() for cut in (entry.cut, *entry.below)
        )

    def touching(self, question: str) -> tuple[Cut, ...]:
        """The cuts below which a topic or filter can match something."""
        return tuple(cut for cut in self.cuts() if may_match_within(question, cut.apex))

    def get(self, apex: str) -> Delegation | None:
        """The delegation at exactly this apex."""
        return self._delegations.get(apex)

    # from the join service

    def decide(self, applicant: Applicant, lineage: tuple[Cut, ...], me: str) -> Decision:
        """
        Answer a node that asks for a zone.

        `lineage` are the zones above this node's, root first; `me` is this node's name.
        """
        zone = applicant.zone
        if applicant.node == me or any(cut.node == applicant.node for cut in lineage):
            return Refused(
                reason=f"node {applicant.node!r} is above itself here; its `parent` must not be"
                " itself or a node below it, and node names must be unique in the tree"
            )
        if self._apex is None or zone == self._apex or not is_within(zone, self._apex):
            return Refused(
                reason=f"zone {zone!r} is not inside zone {self._apex!r} of parent {me!r};"
                " choose a zone below it, or another `parent`"
            )
        for entry in self._delegations.values():
            if entry.cut.node == applicant.node and entry.cut.apex != zone:
                return Refused(
                    reason=f"node {applicant.node!r} serves zone {entry.cut.apex!r} already;"
                    " a node owns one zone and its name is unique: choose another `node`"
                )
        held = self._delegations.get(zone)
        if held is not None:
            return self._decide_held(applicant, held)
        above = deepest_enclosing(zone, self._delegations, longest=self._longest)
        if above is not None:
            return Elsewhere(cut=self._delegations[above].cut)
        return self._decide_free(applicant)

    def _decide_held(self, applicant: Applicant, held: Delegation) -> Decision:
        if held.cut.node != applicant.node:
            return Refused(
                reason=f"zone {held.cut.apex!r} is served by node {held.cut.node!r} at"
                f" {held.cut.grpc}; choose another `zone`, or first give it back with:"
                f" txbroker retire {held.cut.grpc}"
            )
        # A node that missed its own grant, or lost what it had stored, starts a new epoch: offsets
        # of one epoch are never used twice.
        known = held.cut.epoch
        epoch = known if applicant.last_epoch == known else max(known, applicant.last_epoch) + 1
        return Renewed(cut=attrs.evolve(held.cut, epoch=epoch, grpc=applicant.grpc))

    def _decide_free(self, applicant: Applicant) -> Decision:
        seen = self._epochs.get(applicant.zone, 0)
        if applicant.last_epoch > seen:
            # The node holds it by a grant that this table has forgotten (a lost disk): what the
            # node has is newer than anything here.
            epoch = applicant.last_epoch
            return Renewed(cut=self._cut_for(applicant, epoch))
        moved = tuple(
            entry for apex, entry in self._delegations.items() if is_within(apex, applicant.zone)
        )
        return Transfer(cut=self._cut_for(applicant, seen + 1), moved=moved)

    def _cut_for(self, applicant: Applicant, epoch: int) -> Cut:
        return Cut(apex=applicant.zone, epoch=epoch, node=applicant.node, grpc=applicant.grpc)

    def commit(self, cut: Cut, below: Iterable[Cut] = ()) -> None:
        """Put the delegation in force; cuts inside it leave this table."""
        for apex in [a for a in self._delegations if is_within(a, cut.apex)]:
            del self._delegations[apex]
        self._delegations[cut.apex] = Delegation(cut=cut, below=tuple(below))
        self._note_epoch(cut)
        self._measure()

    def tell_below(self, apex: str, below: Iterable[Cut]) -> bool:
        """Keep what a child says of the cuts below it; True when that is news."""
        entry = self._delegations.get(apex)
        news = tuple(below)
        if entry is None or entry.below == news:
            return False
        self._delegations[apex] = attrs.evolve(entry, below=news)
        for cut in news:
            self._note_epoch(cut)
        return True

    def release(self, apex: str, delegations: Iterable[Cut]) -> None:
        """End the delegation; the cuts right below it become this zone's own."""
        entry = self._delegations.pop(apex)
        epoch = self._epochs[apex] + 1
        self._epochs[apex] = epoch
        for cut in delegations:
            inner = tuple(
                other for other in entry.below if other != cut and is_within(other.apex, cut.apex)
            )
            self._delegations[cut.apex] = Delegation(cut=cut, below=inner)
            self._note_epoch(cut)
        self._measure()

    def adopt(self, cuts: Iterable[Cut]) -> None:
        """Take over delegations that came along with the zone."""
        for cut in cuts:
            self._delegations[cut.apex] = Delegation(cut=cut)
            self._note_epoch(cut)
        self._measure()

    def epoch_of(self, apex: str) -> int:
        """The greatest epoch seen of an apex; 0 when it was never delegated."""
        return self._epochs.get(apex, 0)

    def state(self) -> TableState:
        """What must be durable."""
        return TableState(delegations=tuple(self._delegations.values()), epochs=dict(self._epochs))

    def restore(self, state: TableState) -> None:
        """Be as `state` says: what was changed since could not be made durable."""
        self._delegations = {entry.cut.apex: entry for entry in state.delegations}
        self._epochs = dict(state.epochs)
        self._measure()

    # internal

    def _note_epoch(self, cut: Cut) -> None:
        self._epochs[cut.apex] = max(self._epochs.get(cut.apex, 0), cut.epoch)

    def _measure(self) -> None:
        self._longest = max((len(apex) for apex in self._delegations), default=0)
