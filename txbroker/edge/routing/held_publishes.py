"""
Publishes to new zones that wait for the owners before (protocol rule 13).

A zone below another may get publishes while earlier ones on the same topics travel to the owner
above. The earlier ones may also be in doubt there. The zone's queue is held by that owner's, until
the last of those is answered. Later publishes would pass them otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from txbroker.edge.routing.publish_queue import PublishQueue
from txbroker.edge.routing.route import Route


class HeldPublishes:
    """
    The routes of one edge that wait for others: `by_holder`, by the queue that holds them.

    Invariant: a route listed under a holder has it among its queue's holders, and the reverse.
    """

    def __init__(self) -> None:
        self.by_holder: dict[PublishQueue, set[Route]] = {}

    def hold(self, route: Route, found: Mapping[str, Route]) -> None:
        """Hold those routes below, by apex, within which publishes of `route` are unanswered."""
        # Publishes that the route itself waits for may belong to the subtrees, too. Later publishes
        # below would pass them.
        for holder in (route.queue, *route.queue.holders):
            for apex in holder.awaited(found):
                below = found[apex]
                below.queue.hold(holder)
                self.by_holder.setdefault(holder, set()).add(below)

    def release(self, route: Route) -> Iterator[Route]:
        """Release, and yield one by one, the routes for which `route` has answered all by now."""
        holder = route.queue
        held = self.by_holder.get(holder)
        if not held:
            return
        for below in list(held):
            if not holder.awaits_answer(below.apex):
                held.discard(below)
                below.queue.release(holder)
                yield below
        if not held:
            self.by_holder.pop(holder, None)

    def forget(self, route: Route, heir: Route) -> list[Route]:
        """
        Release the routes that a removed route held; they wait for the doubts that `heir` took
        over.

        Returns those that wait for nobody.
        """
        released = []
        for below in self.by_holder.pop(route.queue, ()):
            below.queue.release(route.queue)
            self.hold(heir, {below.apex: below})
            if not below.queue.is_held:
                released.append(below)
        return released
