"""
The rules by which a parent answers a node that asks for a zone.

All rules compare epochs, never times:

- A node keeps the zone at the delegation's epoch if the node has the data of that epoch. The node
  has served the epoch (`last_epoch`), or has confirmed a handover without hearing of its end
  (`prepared`).
- A node with a restored copy of such data gets an epoch above all that either side has seen. The
  node's lives since the copy have assigned offsets of the epoch that the copy knows.
- A node with less data gets no grant until an operator reclaims the zone. Its `data` is empty or
  older than the last handover of the zone to it. A grant would hide acknowledged messages
  (contract, starting and stopping).
- A node may have held an epoch that ended without the node's own hand-back. Messages that no other
  node has may be in that epoch. The node keeps them as a branch, and a command settles the branch
  (protocol rule 15).
- A zone without an owner is handed over at an epoch above all that either side has seen.

A decision changes no state; the caller stores the table before it acts on an answer.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from txbroker.delegation.delegation_table import Delegation, DelegationTable
from txbroker.model.topics import is_within
from txbroker.model.zone_cut import ZoneCut


@attrs.frozen(kw_only=True)
class Applicant:
    """
    A node's description of itself in its request for a zone.

    `last_epoch`: the zone's epoch as the node last held it, 0: never. `holds`: the node believes
    that its grant is still valid. `fenced`: the node had begun a hand-back and has accepted no
    publish since. `prepared`: the epoch of a handover that the node confirmed as durable and whose
    end it does not know; 0: none. `restored`: the node's data is a copy from an earlier time.
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
    The zone is the applicant's already, and no state moves.

    `cut` may carry a new address, and for a restored copy a new epoch. `since`: see `Delegation`.
    """

    cut: ZoneCut
    since: int


@attrs.frozen(kw_only=True)
class ZoneTransfer:
    """This node serves the zone until now and hands it over at `cut.epoch`."""

    cut: ZoneCut


@attrs.frozen(kw_only=True)
class ZoneElsewhere:
    """The zone lies below another cut, whose node the applicant must ask."""

    cut: ZoneCut


@attrs.frozen(kw_only=True)
class JoinRefused:
    """
    The parent refuses the zone; `reason` is one line with the remedy.

    `cut_off`: the epoch whose records at the node have become a divergent branch; 0: no branch.
    `twin`: the address of another living node of this name; "": the parent knows of none.
    """

    reason: str
    cut_off: int = 0
    twin: str = ""


APEXES = 100_000
"""
The most zones whose epochs one table remembers. A table forgets none, so no further zone begins.
"""

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

    `me` is the zone of the asked node; `lineage` are the zones above it, root first. A restored
    copy skips the `left_out` epochs above the known ones: an earlier life may have used them.
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
    if not has_room_for(table, (zone,)):
        return (
            f"zone {zone!r} would be one more than the {APEXES} zones below {table.apex!r} that"
            " may ever be: their epochs are kept for good; choose a zone that was there before"
        )
    return None


def has_room_for(table: DelegationTable, apexes: Iterable[str]) -> bool:
    """True if each zone's epoch is known, or there is room for those of all the others."""
    new = sum(not table.epoch_of(apex) for apex in set(apexes))
    return not new or table.apexes + new <= APEXES


def kept_below(table: DelegationTable, apex: str, told: tuple[ZoneCut, ...]) -> tuple[ZoneCut, ...]:
    """
    Return the reported cuts below a child; the known ones if the table has no room for those.

    The child serves on: it has room for the zones itself, and a refusal would fence it.
    """
    if has_room_for(table, (cut.apex for cut in told)):
        return told
    known = table.get(apex)
    return () if known is None else known.below


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
        # The node knows a later epoch than this table: the table comes from a lost or older disk.
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
        # The node holds a grant that this table has forgotten (a lost disk). The node's data is
        # newer than all data here.
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
