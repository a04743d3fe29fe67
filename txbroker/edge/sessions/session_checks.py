"""What an edge that checks itself states of the places of sessions whose clients are away."""

from __future__ import annotations

from collections.abc import Iterable

from txbroker.edge.routing.route import Route
from txbroker.edge.sessions.window_format import stored_places
from txbroker.model.invariant import holds
from txbroker.mqtt.session.session import Session


def check_places(session: Session, routes: Iterable[Route]) -> None:
    """
    State that an absent session has a place in each part that is followed for its filters.

    The position of the stream goes on without the session. After a restart, or at another node,
    the session would miss the records in between.
    """
    places = session.places
    for route in routes:
        part = route.part
        if route.position is None or part in places.behind or part in places.cut_off:
            continue
        followed = [
            topic_filter
            for topic_filter, subscription in session.subscriptions.items()
            if route.apex not in subscription.pending and route.interest.has_confirmed(topic_filter)
        ]
        holds(session, 6, "an absent session has its place", not followed, part, followed)


def check_row(session: Session, row: bytes) -> None:
    """State that the window of an absent session is stored with its present places."""
    kept = stored_places(row)
    now = {part: cursor.offset for part, cursor in session.places.behind.items()}
    holds(session, 6, "an absent session's places are stored", kept == now, kept, now)
