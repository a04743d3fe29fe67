"""A zone as other nodes know it."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class ZoneCut:
    """
    The node `node` owns the zone `apex` at `epoch`; its control plane is at `grpc` (host:port).

    An entry of a parent's table with these values is the delegation of a child zone, DNS's zone
    cut.
    """

    apex: str
    epoch: int
    node: str
    grpc: str
