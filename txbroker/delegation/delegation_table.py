"""
The delegations of a node.

Rules that live here and nowhere else:

- an apex has at most one delegation (protocol rule 11);
- its epoch only grows, also over a time when nobody held it. The next epoch is greater than any
  that was ever seen;
- a delegation never lapses by time;
- delegations below an apex belong to the node that serves the apex, so they move along with it.
  Every epoch that was seen there moves with them, and so do the passages that its topics have made.

The table does no I/O. Whoever changes it stores `state()` durably before anybody is told.

An apex is the zone's own, then delegated at an epoch, then the zone's again: given back, or
reclaimed by an operator. A return raises the epoch that was seen, so the next grant has a new one.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from txbroker.model.epoch_transition import END, EpochTransition
from txbroker.model.invariant import holds, ordered
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.topics import deepest_enclosing, is_below, is_within, may_match_within
from txbroker.model.zone_cut import ZoneCut

PASSAGES = 200
"""
The most epoch transitions that the table remembers; an edge that was away for more may miss some.
"""


@attrs.frozen(kw_only=True)
class Delegation:
    """
    A cut, and all cuts below it at any depth, as its node last told. `since`: the first epoch at
    which that node has held it without a break, 0: the present one.
    """

    cut: ZoneCut
    below: tuple[ZoneCut, ...] = ()
    since: int = 0

    @property
    def first_epoch(self) -> int:
        """
        Return the first epoch of the node's unbroken tenure: copies of its data from that epoch on
        may serve.
        """
        return self.since or self.cut.epoch


@attrs.frozen(kw_only=True)
class DelegationState:
    """
    The durable part of a table. `delegations` are in force; `epochs` has the greatest epoch seen
    per apex. `reclaimed` are delegations that an operator took back from a node that has not come
    to terms with that yet. `reclaimed_at` has the apexes that were taken back so and are nobody
    else's since. Each has the offset behind which the zone's journal has it. `passages` are the
    last ones of topics of the zone, in their order.
    """

    delegations: tuple[Delegation, ...] = ()
    epochs: dict[str, int] = attrs.field(factory=dict)
    reclaimed: tuple[ZoneCut, ...] = ()
    reclaimed_at: dict[str, int] = attrs.field(factory=dict)
    passages: tuple[EpochTransition, ...] = ()


def nest(cuts: Iterable[ZoneCut]) -> tuple[Delegation, ...]:
    """Return the outermost of these cuts, each with the cuts below it."""
    known = {cut.apex: cut for cut in cuts}
    return tuple(
        Delegation(cut=cut, below=tuple(c for c in known.values() if is_below(c.apex, cut.apex)))
        for cut in known.values()
        if not any(is_below(cut.apex, apex) for apex in known)
    )


class DelegationTable:
    """
    The cuts of the zone `apex` (None: the node owns no zone and can delegate nothing).

    Invariant: the epoch of a delegation <= the greatest one seen of its apex.
    Invariant: each topic lies under one delegation at most, and strictly below `apex`.
    """

    def __init__(self, apex: str | None, state: DelegationState | None = None) -> None:
        self.apex = apex
        self._delegations: dict[str, Delegation] = {}
        self._epochs: dict[str, int] = {}
        self._reclaimed: tuple[ZoneCut, ...] = ()
        self._reclaimed_at: dict[str, int] = {}
        self._transitions: tuple[EpochTransition, ...] = ()
        self._longest = 0
        self.restore(state or DelegationState())

    def __len__(self) -> int:
        return len(self._delegations)

    @property
    def apexes(self) -> int:
        """Return the number of apexes with a known epoch."""
        return len(self._epochs)

    def delegations(self) -> tuple[Delegation, ...]:
        """Return all delegations in force."""
        return tuple(self._delegations.values())

    # from the authority and the resolver service

    def lookup(self, topic: str) -> ZoneCut | None:
        """Return the cut that encloses the topic; None if the zone itself owns the topic."""
        if not self._delegations:
            return None
        apex = deepest_enclosing(topic, self._delegations, longest=self._longest)
        return None if apex is None else self._delegations[apex].cut

    def cuts(self) -> tuple[ZoneCut, ...]:
        """Return every direct cut of the zone."""
        return tuple(entry.cut for entry in self._delegations.values())

    def below(self) -> tuple[ZoneCut, ...]:
        """Return every cut below the zone at any depth, as the parent hears of them."""
        return tuple(
            cut for entry in self._delegations.values() for cut in (entry.cut, *entry.below)
        )

    def touching(self, question: str) -> tuple[ZoneCut, ...]:
        """Return the cuts below which a topic or filter can match."""
        return tuple(cut for cut in self.cuts() if may_match_within(question, cut.apex))

    def get(self, apex: str) -> Delegation | None:
        """Return the delegation at exactly this apex."""
        return self._delegations.get(apex)

    # from the control plane: queries

    def epoch_of(self, apex: str) -> int:
        """Return the greatest epoch seen of an apex; 0 if the apex was never delegated."""
        return self._epochs.get(apex, 0)

    def was_reclaimed(self, apex: str, epoch: int) -> bool:
        """
        True if an operator reclaimed this delegation and its node may still have records of the
        epoch.
        """
        return any((cut.apex, cut.epoch) == (apex, epoch) for cut in self._reclaimed)

    def reclaimed(self) -> tuple[ZoneCut, ...]:
        """Return the reclaimed delegations that are not settled yet."""
        return self._reclaimed

    def reclaimed_at(self) -> dict[str, int]:
        """
        Return the apexes that an operator reclaimed and this zone has owned since.

        Each apex maps to an offset of the zone's journal: records of the apex lie behind that
        offset.
        """
        return dict(self._reclaimed_at)

    def passages(self) -> tuple[EpochTransition, ...]:
        """Return the last epoch transitions of the zone's topics, in order."""
        return self._transitions

    def ended_around(self, apex: str) -> dict[str, int]:
        """Return the ended zones strictly between this zone and `apex`, with their last epochs."""
        return {
            known: epoch
            for known, epoch in self._epochs.items()
            if known not in self._delegations and is_below(apex, known)
        }

    def subtree(self, apex: str) -> DelegationState:
        """
        Return the delegations strictly below an apex and the epoch transitions of its topics.

        The returned state moves along with the zone of the apex.
        """
        return DelegationState(
            delegations=tuple(d for a, d in self._delegations.items() if is_below(a, apex)),
            epochs={a: epoch for a, epoch in self._epochs.items() if is_below(a, apex)},
            reclaimed=tuple(cut for cut in self._reclaimed if is_below(cut.apex, apex)),
            passages=tuple(
                transition for transition in self._transitions if transition.affects(apex)
            ),
        )

    # from the control plane: changes

    def commit(self, cut: ZoneCut, below: Iterable[ZoneCut] = (), since: int = 0) -> None:
        """Put the delegation in force; delegations inside the cut leave this table."""
        for apex in [a for a in self._delegations if is_within(a, cut.apex)]:
            del self._delegations[apex]
        self._delegations[cut.apex] = Delegation(cut=cut, below=tuple(below), since=since)
        # The new owner decides about joins below its apex from now on. A reclaimed cut that stayed
        # here would refuse its node at the wrong parent.
        self._reclaimed = tuple(c for c in self._reclaimed if not is_below(c.apex, cut.apex))
        self._reclaimed_at = {
            apex: offset
            for apex, offset in self._reclaimed_at.items()
            if not is_within(apex, cut.apex)
        }
        self._record_epoch(cut)
        self._measure()

    def record_transition(self, transition: EpochTransition) -> None:
        """Remember that topics of the zone continue in another journal."""
        self._remember((transition,))

    def store_cuts_below(self, apex: str, epoch: int, below: Iterable[ZoneCut]) -> bool:
        """
        Store the cuts below the child's zone that the child at `apex` and `epoch` reports.

        Return True if the report changed the table; a report of another epoch is ignored.
        """
        entry = self._delegations.get(apex)
        news = tuple(below)
        if entry is None or entry.cut.epoch != epoch or entry.below == news:
            return False
        self._delegations[apex] = attrs.evolve(entry, below=news)
        for cut in news:
            self._record_epoch(cut)
        return True

    def release(self, apex: str, subtree: DelegationState) -> None:
        """
        End the delegation that the child gave back, and merge the child's delegations below it.
        """
        del self._delegations[apex]
        self._epochs[apex] += 1
        self._merge(subtree)

    def reclaim(self, apex: str, offset: int) -> None:
        """
        End the delegation by an operator's command; delegations below it stand, as last reported.

        The table remembers the ended epoch as a branch until the branch is settled. `offset`: an
        offset of this zone's journal. Between the cut and this offset the journal has no record of
        the apex.
        """
        entry = self._delegations[apex]
        self.release(apex, DelegationState(delegations=nest(entry.below)))
        self._reclaimed += (entry.cut,)
        self._reclaimed_at[apex] = offset

    def recall(self, cuts: Iterable[ZoneCut]) -> None:
        """
        Commit the cuts, of any depth, that the parent knows and this restored copy of the table
        lacks.
        """
        for entry in nest(cuts):
            known = self.lookup(entry.cut.apex)
            if known is None and entry.cut.epoch > self.epoch_of(entry.cut.apex):
                self.commit(entry.cut, entry.below)

    def close_branch(self, apex: str, node: str) -> bool:
        """
        Forget the node's reclaimed branches of the apex; return True if such a branch was open.
        """
        left = tuple(cut for cut in self._reclaimed if (cut.apex, cut.node) != (apex, node))
        is_news = left != self._reclaimed
        self._reclaimed = left
        return is_news

    def record_renewal(self, apex: str, before: int, after: int) -> None:
        """
        Note that the zone, or a zone below, continues at the epoch `after`: its node was restored.
        """
        left, entered = (
            LogPosition(JournalId(apex, before), END),
            LogPosition(JournalId(apex, after), 0),
        )
        self.record_transition(EpochTransition(apex=apex, left=left, entered=entered))

    def prepend_part(self, apex: str, before: int, after: int) -> None:
        """
        Put the part `before` of the zone, which another node had, ahead of all known transitions.
        """
        known, self._transitions = self._transitions, ()
        self.record_renewal(apex, before, after)
        self._remember(known)

    def reset_offsets(self) -> None:
        """
        Reset the offsets of reclaimed apexes: the zone continues in a part whose offsets begin at
        1.
        """
        self._reclaimed_at = dict.fromkeys(self._reclaimed_at, 0)

    def renumber(self, part: JournalId, epoch: int) -> None:
        """
        Give the zone's own part another epoch in all transitions that lead to the part or from it.
        """

        def renumbered(place: LogPosition) -> LogPosition:
            return place._replace(part=part._replace(epoch=epoch)) if place.part == part else place

        self._transitions = tuple(
            attrs.evolve(known, left=renumbered(known.left), entered=renumbered(known.entered))
            for known in self._transitions
        )

    def replace_all(self, subtree: DelegationState) -> None:
        """Replace all delegations by those of the zone's earlier owner, `subtree`."""
        self._forget_delegations()
        self._merge(subtree)

    def forget_all(self) -> None:
        """Forget the delegations, which are another owner's now; epochs stay remembered."""
        self._forget_delegations()
        self._measure()

    def state(self) -> DelegationState:
        """Return the state that must be durable."""
        return DelegationState(
            delegations=tuple(self._delegations.values()),
            epochs=dict(self._epochs),
            reclaimed=self._reclaimed,
            reclaimed_at=dict(self._reclaimed_at),
            passages=self._transitions,
        )

    def restore(self, state: DelegationState) -> None:
        """Return to `state`: the changes since then could not be made durable."""
        self._delegations = {entry.cut.apex: entry for entry in state.delegations}
        self._epochs = dict(state.epochs)
        self._reclaimed = state.reclaimed
        self._reclaimed_at = dict(state.reclaimed_at)
        self._transitions = state.passages
        self._measure()

    def check(self) -> None:
        """State that each topic has one owner, at an epoch that was never used before."""
        for apex, entry in self._delegations.items():
            cut, seen = entry.cut, self.epoch_of(apex)
            holds(self, 11, "a delegation is kept under its apex", cut.apex == apex, apex, cut.apex)
            is_inside = self.apex is not None and is_below(apex, self.apex)
            holds(self, 14, "a cut is strictly below its zone", is_inside, apex, self.apex)
            ordered(self, 11, "epoch <= greatest epoch seen", cut.epoch, seen)
            ordered(self, 30, "first epoch <= epoch", entry.first_epoch, cut.epoch)
            above = self.lookup(apex.rpartition("/")[0])
            holds(self, 11, "a topic has one owner", above is None, apex, above)
            stray = [one.apex for one in entry.below if not is_below(one.apex, apex)]
            holds(self, 11, "cuts below a child are below it", not stray, apex, stray)
        for apex in self._reclaimed_at:
            owner = self.lookup(apex)
            holds(self, 15, "what was reclaimed is the zone's own", owner is None, apex, owner)
        ordered(self, 34, "passages are bounded", len(self._transitions), PASSAGES)

    # internal

    def _forget_delegations(self) -> None:
        self._delegations = {}
        self._reclaimed = ()
        self._reclaimed_at = {}
        self._transitions = ()

    def _merge(self, subtree: DelegationState) -> None:
        for entry in subtree.delegations:
            self._delegations[entry.cut.apex] = entry
            for cut in (entry.cut, *entry.below):
                self._record_epoch(cut)
        for apex, epoch in subtree.epochs.items():
            self._epochs[apex] = max(self._epochs.get(apex, 0), epoch)
        self._reclaimed += tuple(cut for cut in subtree.reclaimed if cut not in self._reclaimed)
        self._remember(subtree.passages)
        self._measure()

    def _remember(self, transitions: Iterable[EpochTransition]) -> None:
        self._transitions = tuple(dict.fromkeys((*self._transitions, *transitions)))[-PASSAGES:]

    def _record_epoch(self, cut: ZoneCut) -> None:
        self._epochs[cut.apex] = max(self._epochs.get(cut.apex, 0), cut.epoch)

    def _measure(self) -> None:
        self._longest = max((len(apex) for apex in self._delegations), default=0)
