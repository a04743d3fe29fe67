"""
What a node has delegated.

Rules that live here and nowhere else:

- an apex has at most one delegation, and its epoch only grows, also over a time when nobody held it
  (protocol rule 11): the next epoch is greater than any that was ever seen;
- a delegation never lapses by time;
- delegations below an apex belong to the node that serves the apex, so they move along with it,
  together with every epoch that was seen there, and with the passages that its topics have made.

The table does no I/O. Whoever changes it stores `state()` durably before anybody is told.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from txbroker.model.epoch_transition import END, EpochTransition
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.topics import deepest_enclosing, is_within, may_match_within
from txbroker.model.zone_cut import ZoneCut

PASSAGES = 200
"""Passages that are remembered, at the most; an edge that was away for more may miss some."""


@attrs.frozen(kw_only=True)
class Delegation:
    """
    One cut, and all cuts below it at any depth, as its node last told. `since`: the first epoch at
    which that node has held it without a break, 0: the present one.
    """

    cut: ZoneCut
    below: tuple[ZoneCut, ...] = ()
    since: int = 0

    @property
    def first_epoch(self) -> int:
        """Copies of the node's data from that epoch on may be served."""
        return self.since or self.cut.epoch


@attrs.frozen(kw_only=True)
class DelegationState:
    """
    The durable part: delegations in force, the greatest epoch seen per apex, the delegations that
    an operator took back from a node that has not come to terms with it yet, and for each apex that
    was taken back so and is nobody else's since, the offset behind which the zone's journal has it;
    the last passages of topics of the zone, in their order.
    """

    delegations: tuple[Delegation, ...] = ()
    epochs: dict[str, int] = attrs.field(factory=dict)
    reclaimed: tuple[ZoneCut, ...] = ()
    reclaimed_at: dict[str, int] = attrs.field(factory=dict)
    passages: tuple[EpochTransition, ...] = ()


def nest(cuts: Iterable[ZoneCut]) -> tuple[Delegation, ...]:
    """The outermost of these cuts, each with those below it."""
    known = {cut.apex: cut for cut in cuts}
    return tuple(
        Delegation(cut=cut, below=tuple(c for c in known.values() if _is_below(c.apex, cut.apex)))
        for cut in known.values()
        if not any(_is_below(cut.apex, apex) for apex in known)
    )


class DelegationTable:
    """The cuts of the zone `apex` (None: the node owns no zone and can delegate nothing)."""

    def __init__(self, apex: str | None, state: DelegationState | None = None) -> None:
        self.apex = apex
        self._delegations: dict[str, Delegation] = {}
        self._epochs: dict[str, int] = {}
        self._reclaimed: tuple[ZoneCut, ...] = ()
        self._reclaimed_at: dict[str, int] = {}
        self._passages: tuple[EpochTransition, ...] = ()
        self._longest = 0
        self.restore(state or DelegationState())

    def __len__(self) -> int:
        return len(self._delegations)

    @property
    def apexes(self) -> int:
        """Apexes of which an epoch is known."""
        return len(self._epochs)

    def delegations(self) -> tuple[Delegation, ...]:
        """Everything that is delegated."""
        return tuple(self._delegations.values())

    # from the authority and the resolver service

    def lookup(self, topic: str) -> ZoneCut | None:
        """The cut that the topic lies under; None where the zone itself covers it."""
        if not self._delegations:
            return None
        apex = deepest_enclosing(topic, self._delegations, longest=self._longest)
        return None if apex is None else self._delegations[apex].cut

    def cuts(self) -> tuple[ZoneCut, ...]:
        """Every cut of the zone."""
        return tuple(entry.cut for entry in self._delegations.values())

    def below(self) -> tuple[ZoneCut, ...]:
        """Every cut below the zone at any depth: what the parent is told."""
        return tuple(
            cut for entry in self._delegations.values() for cut in (entry.cut, *entry.below)
        )

    def touching(self, question: str) -> tuple[ZoneCut, ...]:
        """The cuts below which a topic or filter can match something."""
        return tuple(cut for cut in self.cuts() if may_match_within(question, cut.apex))

    def get(self, apex: str) -> Delegation | None:
        """The delegation at exactly this apex."""
        return self._delegations.get(apex)

    # from the control plane: what is known

    def epoch_of(self, apex: str) -> int:
        """The greatest epoch seen of an apex; 0 when it was never delegated."""
        return self._epochs.get(apex, 0)

    def was_reclaimed(self, apex: str, epoch: int) -> bool:
        """Whether this delegation was taken back from a node that may have more of it."""
        return any((cut.apex, cut.epoch) == (apex, epoch) for cut in self._reclaimed)

    def reclaimed(self) -> tuple[ZoneCut, ...]:
        """The delegations that were taken back and are not settled."""
        return self._reclaimed

    def reclaimed_at(self) -> dict[str, int]:
        """
        The apexes that were taken back and are this zone's since, each with the offset behind which
        the zone's journal has it.
        """
        return dict(self._reclaimed_at)

    def passages(self) -> tuple[EpochTransition, ...]:
        """The last ones that topics of the zone have made, in their order."""
        return self._passages

    def ended_around(self, apex: str) -> dict[str, int]:
        """The zones strictly between this one and `apex` that ended, with their last epochs."""
        return {
            known: epoch
            for known, epoch in self._epochs.items()
            if known not in self._delegations and _is_below(apex, known)
        }

    def subtree(self, apex: str) -> DelegationState:
        """
        What is known of the delegations strictly below an apex, and of the passages of its topics:
        it moves along with the zone.
        """
        return DelegationState(
            delegations=tuple(d for a, d in self._delegations.items() if _is_below(a, apex)),
            epochs={a: epoch for a, epoch in self._epochs.items() if _is_below(a, apex)},
            reclaimed=tuple(cut for cut in self._reclaimed if _is_below(cut.apex, apex)),
            passages=tuple(passage for passage in self._passages if passage.concerns(apex)),
        )

    # from the control plane: what changes

    def commit(self, cut: ZoneCut, below: Iterable[ZoneCut] = (), since: int = 0) -> None:
        """Put the delegation in force; cuts inside it leave this table."""
        for apex in [a for a in self._delegations if is_within(a, cut.apex)]:
            del self._delegations[apex]
        self._delegations[cut.apex] = Delegation(cut=cut, below=tuple(below), since=since)
        # The new owner decides from here on who joins below it.
        self._reclaimed = tuple(c for c in self._reclaimed if not _is_below(c.apex, cut.apex))
        self._reclaimed_at = {
            apex: offset
            for apex, offset in self._reclaimed_at.items()
            if not is_within(apex, cut.apex)
        }
        self._note_epoch(cut)
        self._measure()

    def note(self, passage: EpochTransition) -> None:
        """Topics of the zone go on elsewhere."""
        self._remember((passage,))

    def tell_below(self, apex: str, epoch: int, below: Iterable[ZoneCut]) -> bool:
        """
        Keep what the child that holds `apex` at `epoch` says of the cuts below it.

        True when that is news; an older epoch is refused.
        """
        entry = self._delegations.get(apex)
        news = tuple(below)
        if entry is None or entry.cut.epoch != epoch or entry.below == news:
            return False
        self._delegations[apex] = attrs.evolve(entry, below=news)
        for cut in news:
            self._note_epoch(cut)
        return True

    def release(self, apex: str, subtree: DelegationState) -> None:
        """The child gave the zone back; what it knew of delegations below is ours now."""
        del self._delegations[apex]
        self._epochs[apex] += 1
        self._merge(subtree)

    def reclaim(self, apex: str, offset: int) -> None:
        """
        An operator takes the zone from its node; the delegations below it stand, as last told.

        What the node has of that epoch is remembered as a branch until it has been settled.
        `offset`: of this zone's journal, which has nothing of the apex between its cut and there.
        """
        entry = self._delegations[apex]
        self.release(apex, DelegationState(delegations=nest(entry.below)))
        self._reclaimed += (entry.cut,)
        self._reclaimed_at[apex] = offset

    def recall(self, cuts: Iterable[ZoneCut]) -> None:
        """The table is a copy from before: the parent knows these, at any depth, from later."""
        for entry in nest(cuts):
            known = self.lookup(entry.cut.apex)
            if known is None and entry.cut.epoch > self.epoch_of(entry.cut.apex):
                self.commit(entry.cut, entry.below)

    def settle(self, apex: str, node: str) -> bool:
        """The node holds nothing of the zone any more; True when a branch of it was open."""
        left = tuple(cut for cut in self._reclaimed if (cut.apex, cut.node) != (apex, node))
        is_news = left != self._reclaimed
        self._reclaimed = left
        return is_news

    def note_renewal(self, apex: str, before: int, after: int) -> None:
        """The zone, or one below, goes on at the epoch `after`: its node was restored."""
        left, entered = (
            LogPosition(JournalId(apex, before), END),
            LogPosition(JournalId(apex, after), 0),
        )
        self.note(EpochTransition(apex=apex, left=left, entered=entered))

    def begin_behind(self, apex: str, before: int, after: int) -> None:
        """All passages here come behind the part `before` of the zone, which another node had."""
        known, self._passages = self._passages, ()
        self.note_renewal(apex, before, after)
        self._remember(known)

    def begin_anew(self) -> None:
        """The zone goes on in another part of its journal, whose offsets begin at 1."""
        self._reclaimed_at = dict.fromkeys(self._reclaimed_at, 0)

    def renumber(self, part: JournalId, epoch: int) -> None:
        """The zone's own part has another epoch: the passages that lead to it and from it."""

        def renumbered(place: LogPosition) -> LogPosition:
            return place._replace(part=part._replace(epoch=epoch)) if place.part == part else place

        self._passages = tuple(
            attrs.evolve(known, left=renumbered(known.left), entered=renumbered(known.entered))
            for known in self._passages
        )

    def take_over(self, subtree: DelegationState) -> None:
        """This zone comes from another owner: its delegations, and none from an earlier time."""
        self._forget_delegations()
        self._merge(subtree)

    def lose(self) -> None:
        """This zone is another owner's, and its delegations with it; epochs are remembered."""
        self._forget_delegations()
        self._measure()

    def state(self) -> DelegationState:
        """What must be durable."""
        return DelegationState(
            delegations=tuple(self._delegations.values()),
            epochs=dict(self._epochs),
            reclaimed=self._reclaimed,
            reclaimed_at=dict(self._reclaimed_at),
            passages=self._passages,
        )

    def restore(self, state: DelegationState) -> None:
        """Be as `state` says: what was changed since could not be made durable."""
        self._delegations = {entry.cut.apex: entry for entry in state.delegations}
        self._epochs = dict(state.epochs)
        self._reclaimed = state.reclaimed
        self._reclaimed_at = dict(state.reclaimed_at)
        self._passages = state.passages
        self._measure()

    # internal

    def _forget_delegations(self) -> None:
        self._delegations = {}
        self._reclaimed = ()
        self._reclaimed_at = {}
        self._passages = ()

    def _merge(self, subtree: DelegationState) -> None:
        for entry in subtree.delegations:
            self._delegations[entry.cut.apex] = entry
            for cut in (entry.cut, *entry.below):
                self._note_epoch(cut)
        for apex, epoch in subtree.epochs.items():
            self._epochs[apex] = max(self._epochs.get(apex, 0), epoch)
        self._reclaimed += tuple(cut for cut in subtree.reclaimed if cut not in self._reclaimed)
        self._remember(subtree.passages)
        self._measure()

    def _remember(self, passages: Iterable[EpochTransition]) -> None:
        self._passages = tuple(dict.fromkeys((*self._passages, *passages)))[-PASSAGES:]

    def _note_epoch(self, cut: ZoneCut) -> None:
        self._epochs[cut.apex] = max(self._epochs.get(cut.apex, 0), cut.epoch)

    def _measure(self) -> None:
        self._longest = max((len(apex) for apex in self._delegations), default=0)


def _is_below(apex: str, above: str) -> bool:
    return apex != above and is_within(apex, above)
