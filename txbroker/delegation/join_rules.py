"""
What a parent answers to a node that asks for a zone.

The rules, all of them about epochs and never about time:

- a node that has what the delegation's epoch stands for, served (`last_epoch`) or confirmed in a
  handover whose end it missed (`prepared`), keeps the zone at that epoch;
- a copy of such data, restored, keeps it at an epoch above all that either side has seen: the lives
  since then have given offsets of the one that it knows;
- a node that has less (an empty `data`, a copy from before the zone was handed to it last) gets
  nothing until an operator reclaims the zone: serving it would hide what was acknowledged
  (contract, starting and stopping);
- a node that held an epoch which has ended by other means than its own hand-back may have taken
  messages that nobody else has: a branch that is kept, and settled by command (protocol rule 15);
- a zone that nobody holds is handed over at an epoch above all that either side has seen.

Deciding changes nothing; whoever acts on an answer stores the table first.
"""

from __future__ import annotations

import attrs

from txbroker.delegation.delegation_table import Delegation, DelegationTable
from txbroker.model.topics import is_within
from txbroker.model.zone_cut import ZoneCut


@attrs.frozen(kw_only=True)
class Applicant:
    """
    What a node says of itself when it asks for a zone.

    `last_epoch`: of the zone as the node last held it, 0: never. `holds`: it takes itself to hold
    it still; `fenced`: it was giving it back, and has taken nothing since. `prepared`: epoch of a
    handover that it has confirmed as durable, and whose end it does not know; 0: none. `restored`:
    its data is a copy from before.
    """

    node: str
    zone: str
    grpc: str
    last_epoch: int
    holds: bool = False
    fenced: bool = False
    prepared: int = 0
    restored: bool = False
    below: tuple[ZoneCut, ...] = ()


# -- the closed set of answers


@attrs.frozen(kw_only=True)
class GrantRenewed:
    """
    The zone is the applicant's already; nothing moves. `cut` may carry a new address, and for a
    copy a new epoch. `since`: see `Delegation`.
    """

    cut: ZoneCut
    since: int


@attrs.frozen(kw_only=True)
class ZoneTransfer:
    """The zone is served here until now: hand it over at `cut.epoch`."""

    cut: ZoneCut


@attrs.frozen(kw_only=True)
class ZoneElsewhere:
    """The zone lies below another cut: ask that node."""

    cut: ZoneCut


@attrs.frozen(kw_only=True)
class JoinRefused:
    """
    No, and why; one line with the remedy.

    `cut_off`: what the node has of this epoch is a branch of its own now; 0: there is none.
    """

    reason: str
    cut_off: int = 0


APEXES = 100_000
"""Zones whose epochs one table remembers; none is forgotten, so no other one begins."""

Decision = GrantRenewed | ZoneTransfer | ZoneElsewhere | JoinRefused


def decide(
    table: DelegationTable,
    applicant: Applicant,
    lineage: tuple[ZoneCut, ...],
    me: ZoneCut,
    *,
    left_out: int = 0,
) -> Decision:
    """
    Answer a node that asks the owner of `table` for a zone.

    `me` is the zone of the node that is asked, `lineage` are those above it, root first. A copy
    gets none of the `left_out` epochs above the known ones: they may have been used.
    """
    wrong = _what_is_wrong(table, applicant, lineage, me)
    if wrong is not None:
        return JoinRefused(reason=wrong)
    held = table.get(applicant.zone)
    if held is not None:
        return _decide_held(table, applicant, held, me, left_out)
    above = table.lookup(applicant.zone)
    if above is not None:
        return ZoneElsewhere(cut=above)
    return _decide_free(table, applicant, left_out)


def _what_is_wrong(
    table: DelegationTable, applicant: Applicant, lineage: tuple[ZoneCut, ...], me: ZoneCut
) -> str | None:
    zone = applicant.zone
    if applicant.node == me.node or any(cut.node == applicant.node for cut in lineage):
        return (
            f"node {applicant.node!r} is above itself here; its `parent` must not be"
            " itself or a node below it, and node names must be unique in the tree"
        )
    if table.apex is None or zone == table.apex or not is_within(zone, table.apex):
        return (
            f"zone {zone!r} is not inside zone {table.apex!r} of parent {me.node!r};"
            " choose a zone below it, or another `parent`"
        )
    for cut in table.cuts():
        if cut.node == applicant.node and cut.apex != zone:
            return (
                f"node {applicant.node!r} serves zone {cut.apex!r} already;"
                " a node owns one zone and its name is unique: choose another `node`"
            )
    if not table.epoch_of(zone) and table.apexes >= APEXES:
        return (
            f"zone {zone!r} would be one more than the {APEXES} zones below {table.apex!r} that"
            " may ever be: their epochs are kept for good; choose a zone that was there before"
        )
    return None


def _decide_held(
    table: DelegationTable, applicant: Applicant, held: Delegation, me: ZoneCut, left_out: int
) -> Decision:
    cut = held.cut
    reclaim = f"txbroker reclaim {me.grpc} {cut.apex}"
    if cut.node != applicant.node:
        return JoinRefused(
            reason=f"zone {cut.apex!r} is served by node {cut.node!r} at {cut.grpc};"
            f" choose another `zone`, or first give it back with: txbroker retire {cut.grpc}"
            f" (if that node is dead: {reclaim})",
            cut_off=applicant.last_epoch if applicant.holds else 0,
        )
    since = held.first_epoch
    if applicant.restored and max(applicant.last_epoch, applicant.prepared) >= since:
        epoch = _unused_epoch(table, applicant) + left_out
        return GrantRenewed(cut=attrs.evolve(cut, epoch=epoch, grpc=applicant.grpc), since=since)
    if applicant.last_epoch >= cut.epoch:
        # More than known here: this table comes from a lost or older disk, the node's does not.
        epoch = applicant.last_epoch
        return GrantRenewed(cut=attrs.evolve(cut, epoch=epoch, grpc=applicant.grpc), since=since)
    if applicant.prepared == cut.epoch:
        return GrantRenewed(cut=attrs.evolve(cut, grpc=applicant.grpc), since=since)
    if applicant.last_epoch == 0:
        return JoinRefused(
            reason=f"node {cut.node!r} has held zone {cut.apex!r} since epoch {cut.epoch} and"
            " comes with an empty `data`; start it with the `data` that it had, or give up what"
            f" only it had with: {reclaim}"
        )
    return JoinRefused(
        reason=f"node {cut.node!r} has held zone {cut.apex!r} at epoch {cut.epoch} and comes with"
        f" `data` of epoch {applicant.last_epoch}; start it with its latest `data`, or give up"
        f" what only that had with: {reclaim}",
        cut_off=applicant.last_epoch if applicant.holds else 0,
    )


def _decide_free(table: DelegationTable, applicant: Applicant, left_out: int) -> Decision:
    zone, last = applicant.zone, applicant.last_epoch
    seen = table.epoch_of(zone)
    if applicant.holds and last > seen:
        # The node holds it by a grant that this table has forgotten (a lost disk): what the
        # node has is newer than anything here.
        unused = _unused_epoch(table, applicant) + left_out
        epoch = unused if applicant.restored else last
        return GrantRenewed(cut=_cut_for(applicant, epoch), since=last)
    if applicant.holds and not (applicant.fenced and not table.was_reclaimed(zone, last)):
        return _cut_off(applicant, last, seen)
    if table.was_reclaimed(zone, applicant.prepared):
        return _cut_off(applicant, applicant.prepared, seen)
    return ZoneTransfer(cut=_cut_for(applicant, _unused_epoch(table, applicant)))


def _unused_epoch(table: DelegationTable, applicant: Applicant) -> int:
    return max(table.epoch_of(applicant.zone), applicant.last_epoch, applicant.prepared) + 1


def _cut_off(applicant: Applicant, epoch: int, seen: int) -> JoinRefused:
    return JoinRefused(
        reason=f"zone {applicant.zone!r} was taken back from node {applicant.node!r}: its epoch"
        f" {epoch} ended before {seen}; what it took since is kept there, settle it with:"
        f" txbroker divergent list {applicant.grpc} {applicant.zone}",
        cut_off=epoch,
    )


def _cut_for(applicant: Applicant, epoch: int) -> ZoneCut:
    return ZoneCut(apex=applicant.zone, epoch=epoch, node=applicant.node, grpc=applicant.grpc)
