"""A zone as others know it."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class ZoneCut:
    """
    The zone `apex` is served by `node` at `epoch`; its control plane is at `grpc` (host:port).

    As an entry of a parent's table this is the delegation of a child zone, the zone cut of DNS.
    """

    apex: str
    epoch: int
    node: str
    grpc: str
