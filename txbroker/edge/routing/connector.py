"""Port to the shell that resolves and connects for an edge."""

from __future__ import annotations

from typing import Protocol

from txbroker.edge.routing.route import Route


class Connector(Protocol):
    """The shell that resolves and connects for an edge; outcomes come back as calls on the edge."""

    def resolve(self, route: Route) -> None:
        """Ask the node of `route.cut` for the cuts of its zone."""

    def connect(self, route: Route) -> None:
        """Connect to the owner, and retry while the route is needed; idempotent."""

    def disconnect(self, route: Route) -> None:
        """Stop retrying, and close the link."""
