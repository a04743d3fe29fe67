"""
SHELL: opens, serves and suspends the node's own zone as the node grant allows.

- open: the grant opens the zone, with the state that a handover brought for it.
- absorb: the zone absorbs a subtree that a child gave back.
- refuse: the parent's refusal suspends the zone.
- check_room: a zone that would pass a bound here does not come in.

The received state stays in a file of its own (`NodeGrant.receive`) until the store has it durably.
The store itself records that it has absorbed the state. So a node that dies in between neither
loses the state nor absorbs it twice, over newer values.
"""

from __future__ import annotations

from txbroker.authority.authority import Authority
from txbroker.data.data_directory import DataDirectory
from txbroker.delegation.join_rules import APEXES, has_room_for
from txbroker.delegation.peer_checks import epochs_of
from txbroker.delegation.state.node_grant import NodeGrant
from txbroker.delegation.state.received_zone_file import StagedZone
from txbroker.edge.local.local_link import LocalLink
from txbroker.journal.store.retention import Retention
from txbroker.model.errors import NoRoom, StoreError
from txbroker.model.timers import Timers
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.structured_log import get_logger

log = get_logger()

RETRY = 1.0
"""Seconds until the next attempt to save a state that could not be saved."""

_ABSORBED = b"absorbed"


class ZoneLifecycle:
    """The node's own zone; the module's docstring explains its states."""

    def __init__(
        self,
        *,
        standing: NodeGrant,
        authority: Authority,
        own_zone: LocalLink,
        disk: DataDirectory,
        retention: Retention,
        timers: Timers,
        turn: FlushQueue,
    ) -> None:
        self._standing = standing
        self._authority = authority
        self.own_zone = own_zone
        self._disk = disk
        self._retention = retention
        self._table = disk.tables.table("handover")
        self._timers = timers
        self._turn = turn
        self._told_cut_off = 0
        self._told_refusal = ""
        waiting = standing.absorbing
        disk.arrivals.clean(None if waiting is None else waiting.apex)

    @property
    def is_due(self) -> bool:
        """True if the zone is granted and is not served at the granted epoch."""
        authority, standing = self._authority, self._standing
        return standing.serving and (not authority.serving or authority.epoch != standing.epoch)

    def open(self) -> None:
        """Serve the zone at the epoch of the node grant."""
        authority, standing = self._authority, self._standing
        arrived = standing.absorbing
        if arrived is None or self._has(arrived) or arrived.apex != authority.apex:
            authority.open(standing.epoch)
            self.absorb()
        else:
            authority.open(standing.epoch, arrived.incoming)
            self._note(arrived)
        self.own_zone.open(standing.cut)
        self._turn.end()

    def absorb(self) -> None:
        """Absorb the received state that is committed, unless the store already has it."""
        arrived = self._standing.absorbing
        if arrived is None:
            return
        try:
            self._disk.arrivals.adopt(arrived.apex, self._disk.journals)
        except StoreError as error:
            # A zone without this state would hide acknowledged messages. The node ends, and its
            # next start tries again.
            self._disk.fail(error)
            return
        if not self._has(arrived):
            self._authority.absorb(arrived.apex, arrived.incoming)
            for edge, places in arrived.needs.items():
                for part, offset in places.items():
                    self._retention.inherit(edge, part, offset)
        self._note(arrived)

    def refuse(self, reason: str, cut_off: int) -> None:
        """
        Suspend the zone that the parent refuses; raises `StoreError`.

        `cut_off`: the epoch of a branch that the node keeps; 0: no branch.
        """
        standing, authority = self._standing, self._authority
        standing.refuse()
        if authority.serving:
            authority.suspend()
            self._turn.end()
            self._told_refusal = ""
        if reason != self._told_refusal:  # a refused node asks again each second
            self._told_refusal = reason
            log.error("zone.fenced", zone=standing.zone, epoch=standing.epoch, reason=reason)
        if cut_off and cut_off != self._told_cut_off:
            standing.diverge(cut_off)
            self._told_cut_off = cut_off
            log.error("zone.divergent", zone=standing.zone, epoch=cut_off, reason=reason)

    def check_room(self, arrived: StagedZone) -> None:
        """
        Refuse a zone with whose state a table here would pass its bound; raises `NoRoom`.

        All of it is refused: each mark, need and retained message is one that nobody else has.
        """
        edges = {interest.edge for interest in arrived.incoming.interests} | arrived.needs.keys()
        lack = self._authority.subtrees.lacks_room(arrived.apex, arrived.incoming, edges)
        below = {apex for apex, _ in epochs_of(arrived.subtree)}
        if not lack and not has_room_for(self._standing.table, below):
            lack = f"zones; there are {APEXES} below it at the most"
        if lack:
            node, zone = self._standing.node, arrived.apex
            raise NoRoom(f"node {node!r} has no room for zone {zone!r}: too many {lack}")

    # internal

    def _has(self, arrived: StagedZone) -> bool:
        return self._table.get(_ABSORBED) == _name(arrived)

    def _note(self, arrived: StagedZone) -> None:
        # The same turn appends this mark and the absorbed state, in one batch: a crash between two
        # batches would absorb the state twice.
        self._table.put(_ABSORBED, _name(arrived))
        self._disk.committer.when_durable(self._finish)

    def _finish(self) -> None:
        try:
            self._standing.absorbed()
        except StoreError as error:
            log.error("state.unsaved", reason=str(error))
            self._timers.call_later(RETRY, self._finish)


def _name(arrived: StagedZone) -> bytes:
    return f"{arrived.epoch} {arrived.apex}".encode()
