"""
SHELL: this node as a child that gives its zone back to its parent (`txbroker retire`).

`delegation.hand_back_child` has the steps.
"""

from __future__ import annotations

import asyncio

from txbroker.authority.authority import Authority
from txbroker.delegation.hand_back_child import HandBackChild, RetireError
from txbroker.delegation.rpc.delegation_base import DelegationBase
from txbroker.delegation.rpc.hand_back_convert import OfferEnd
from txbroker.delegation.rpc.journal_transfer import JournalSender
from txbroker.delegation.zone_snapshot import Needs
from txbroker.model.errors import StoreError
from txbroker.model.log_position import JournalId
from txbroker.rpc.streams import STREAM_ERRORS, describe, open_stream


class HandBackClient:
    """
    One hand-back of `authority`, the node's zone; call `run` once.

    `requests` is the lock on requests to the parent.
    """

    def __init__(
        self, base: DelegationBase, authority: Authority, *, requests: asyncio.Lock
    ) -> None:
        self._node_grant = base.node_grant
        self._channels = base.channels
        self._retention = base.retention
        self._departure = base.departure
        self._runner = base.runner
        self._flush_queue = base.flush_queue
        self._sender = JournalSender(
            base.data_directory, authority.apex, JournalId(authority.apex, authority.epoch)
        )
        self._procedure = HandBackChild(
            node_grant=base.node_grant,
            zone=authority,
            node=self,
            ownership=base.ownership,
            requests=requests,
        )

    async def run(self) -> None:
        """
        Give the zone to the parent and return after the parent's commit; raises `RetireError`.
        """
        parent = self._node_grant.parent
        assert parent is not None, "the root does not retire"
        known = self._node_grant.known_parent
        stub = self._channels.stub(parent, "" if known is None else known.node)
        call = open_stream(stub.HandBack)
        try:
            end = OfferEnd(call, self._node_grant, self._sender)
            await self._runner.run(self._procedure.give_back(), end)
        except STREAM_ERRORS as error:
            raise RetireError(f"parent {parent} cannot be reached: {describe(error)}") from error
        except StoreError as error:
            raise RetireError(str(error)) from error
        finally:
            call.cancel()

    # from the procedure

    @property
    def journal_size(self) -> int:
        """Return the bytes of journal that may be sent."""
        return self._sender.size

    def needs(self) -> Needs:
        """Return the offsets of the zone's journal that edges still need."""
        return self._retention.needs(self._node_grant.cut.apex)

    def resign(self) -> None:
        """Remove this node from the members."""
        self._departure.resign()

    def stay(self) -> None:
        """Undo the departure: the node accepts clients again and is a member."""
        self._departure.undo()

    def end_turn(self) -> None:
        """Write the output of all changes so far."""
        self._flush_queue.end()
