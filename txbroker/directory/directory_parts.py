"""The parts of a node's client directory that each of its procedures works with."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from txbroker.directory.directory_ports import SessionHost
from txbroker.directory.effects import Procedure
from txbroker.directory.entry_replica import EntryReplica
from txbroker.directory.entry_replicator import EntryReplicator
from txbroker.directory.members import Members
from txbroker.directory.reachability import Reachability
from txbroker.directory.session_ownership import SessionOwnership


@attrs.frozen(kw_only=True, eq=False)
class DirectoryParts:
    """
    The members, entries and sessions that this node knows, and the parts that work on them.

    The shell runs what `spawn` gets; `now` are the seconds since some fixed moment.
    """

    members: Members
    replica: EntryReplica
    ownership: SessionOwnership
    replicator: EntryReplicator
    reach: Reachability
    host: SessionHost
    now: Callable[[], float]
    spawn: Callable[[Procedure[None]], object]
