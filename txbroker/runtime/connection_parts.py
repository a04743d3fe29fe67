"""The parts of a node that its client connections and its links share."""

from __future__ import annotations

import attrs

from txbroker.model.counters import Counters
from txbroker.runtime.backpressure import Backpressure
from txbroker.runtime.fair_shares import FairShares
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.net import Clock
from txbroker.runtime.unauthenticated import HalfPackets, Unauthenticated


@attrs.frozen
class ConnectionParts:
    """The parts of a node that each of its connections uses."""

    clock: Clock
    flush_queue: FlushQueue
    counters: Counters
    backpressure: Backpressure
    shares: FairShares
    unauthenticated: Unauthenticated
    halves: HalfPackets
