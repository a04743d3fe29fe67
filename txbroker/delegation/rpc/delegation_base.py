"""What the calls of delegation share at one node."""

from __future__ import annotations

import asyncio

import attrs

from txbroker.authority.authority import Authority
from txbroker.data.data_directory import DataDirectory
from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.rpc.node_retirement import NodeRetirement
from txbroker.delegation.rpc.procedure_runner import DelegationRunner
from txbroker.delegation.rpc.zone_lifecycle import ZoneLifecycle
from txbroker.directory.members import Members
from txbroker.journal.store.retention import Retention
from txbroker.rpc.channels import Channels
from txbroker.runtime.aio import Tasks
from txbroker.runtime.flush_queue import FlushQueue


@attrs.frozen(kw_only=True)
class DelegationBase:
    """
    One node's state and ports for joins, hand-backs and reclaims.

    - `authority`, `lifecycle`: the node's own zone; None at a node that owns no zone.
    - `runner`: the runner of the node's procedures.
    - `ownership`: the lock on all changes of ownership at and below this node.
    """

    node_grant: NodeGrant
    authority: Authority | None
    lifecycle: ZoneLifecycle | None
    members: Members
    channels: Channels
    data_directory: DataDirectory
    retention: Retention
    departure: NodeRetirement
    runner: DelegationRunner
    tasks: Tasks
    flush_queue: FlushQueue
    ownership: asyncio.Lock
