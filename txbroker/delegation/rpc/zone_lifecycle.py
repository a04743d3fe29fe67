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

from functools import partial

from txbroker.data.data_directory import DataDirectory
from txbroker.delegation.join_rules import APEXES, has_room_for
from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.peer_checks import epochs_of
from txbroker.delegation.rpc.grant_saver import save_in_time
from txbroker.delegation.zone_snapshot import StagedZone
from txbroker.edge.local.local_link import LocalLink
from txbroker.journal.store.retention import Retention
from txbroker.model.errors import NoRoom, StoreError
from txbroker.model.timers import Timers
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.structured_log import get_logger

log = get_logger()

_ABSORBED = b"absorbed"


class ZoneLifecycle:
    """The node's own zone; the module's docstring explains its states."""

    def __init__(
        self,
        *,
        node_grant: NodeGrant,
        own_zone: LocalLink,
        data_directory: DataDirectory,
        retention: Retention,
        timers: Timers,
        flush_queue: FlushQueue,
    ) -> None:
        self._node_grant = node_grant
        self._authority = own_zone.authority
        self.own_zone = own_zone
        self._data_directory = data_directory
        self._retention = retention
        self._table = data_directory.tables.table("handover")
        self._timers = timers
        self._flush_queue = flush_queue
        self._told_cut_off = 0
        self._told_refusal = ""
        waiting = node_grant.absorbing
        data_directory.arrivals.clean(None if waiting is None else waiting.apex)

    @property
    def is_due(self) -> bool:
        """True if the zone is granted and is not served at the granted epoch."""
        authority, node_grant = self._authority, self._node_grant
        return node_grant.serving and (not authority.serving or authority.epoch != node_grant.epoch)

    def open(self) -> None:
        """Serve the zone at the epoch of the node grant."""
        authority, node_grant = self._authority, self._node_grant
        staged_zone = node_grant.absorbing
        if staged_zone is None or self._has(staged_zone) or staged_zone.apex != authority.apex:
            authority.open(node_grant.epoch)
            self.absorb()
        else:
            authority.open(node_grant.epoch, staged_zone.incoming)
            self._record(staged_zone)
        self.own_zone.open(node_grant.cut)
        self._flush_queue.end()

    def absorb(self) -> None:
        """Absorb the received state that is committed, unless the store already has it."""
        staged_zone = self._node_grant.absorbing
        if staged_zone is None:
            return
        try:
            self._data_directory.arrivals.adopt(staged_zone.apex, self._data_directory.journals)
        except StoreError as error:
            # A zone without this state would hide acknowledged messages. The node ends, and its
            # next start tries again.
            self._data_directory.fail(error)
            return
        if not self._has(staged_zone):
            self._authority.absorb(staged_zone.apex, staged_zone.incoming)
            for edge, places in staged_zone.needs.items():
                for part, offset in places.items():
                    self._retention.inherit(edge, part, offset)
        self._record(staged_zone)

    def refuse(self, reason: str, cut_off: int) -> None:
        """
        Suspend the zone that the parent refuses; raises `StoreError`.

        `cut_off`: the epoch of a branch that the node keeps; 0: no branch.
        """
        node_grant, authority = self._node_grant, self._authority
        node_grant.refuse()
        if authority.serving:
            authority.suspend()
            self._flush_queue.end()
            self._told_refusal = ""
        if reason != self._told_refusal:  # a refused node asks again each second
            self._told_refusal = reason
            log.error("zone.fenced", zone=node_grant.zone, epoch=node_grant.epoch, reason=reason)
        if cut_off and cut_off != self._told_cut_off:
            node_grant.diverge(cut_off)
            self._told_cut_off = cut_off
            log.error("zone.divergent", zone=node_grant.zone, epoch=cut_off, reason=reason)

    def check_room(self, staged_zone: StagedZone) -> None:
        """
        Refuse a zone with whose state a table here would pass its bound; raises `NoRoom`.

        All of it is refused: each mark, need and retained message is one that nobody else has.
        """
        edges = {
            interest.edge for interest in staged_zone.incoming.interests
        } | staged_zone.needs.keys()
        lack = self._authority.subtrees.lacks_room(staged_zone.apex, staged_zone.incoming, edges)
        below = {apex for apex, _ in epochs_of(staged_zone.subtree)}
        if not lack and not has_room_for(self._node_grant.table, below):
            lack = f"zones; there are {APEXES} below it at the most"
        if lack:
            node, zone = self._node_grant.node, staged_zone.apex
            raise NoRoom(f"node {node!r} has no room for zone {zone!r}: too many {lack}")

    # internal

    def _has(self, staged_zone: StagedZone) -> bool:
        return self._table.get(_ABSORBED) == _name(staged_zone)

    def _record(self, staged_zone: StagedZone) -> None:
        # The same turn appends this mark and the absorbed state, in one batch. A crash between two
        # batches would absorb the state twice.
        self._table.put(_ABSORBED, _name(staged_zone))
        finish = partial(save_in_time, self._node_grant.absorbed, self._timers)
        self._data_directory.committer.when_durable(finish)


def _name(staged_zone: StagedZone) -> bytes:
    return f"{staged_zone.epoch} {staged_zone.apex}".encode()
