"""
Requests whose zones change while they wait: what joins them, what leaves them, what is to be asked.

A change of the zone map concerns the SUBSCRIBE packets that wait for answers. A zone that joins
their filters is awaited before any of its messages can arrive. A zone that leaves them is awaited
no more. With thousands of filters both take long, and so do the questions: all of it is done in
pieces of `PIECE` filters.

- *Stale*: a request that waited when the map changed.
- *Unasked*: a filter that awaits a zone's answer, while the zone has still to hear the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from itertools import islice

from txbroker.edge.routing.route import Route
from txbroker.edge.sessions.subscribe_request import SubscribeRequest

PIECE = 256
"""Filters of one step."""

Question = tuple[SubscribeRequest, str]
"""A request and its filter."""


class ZoneRequests:
    """The stale requests of one edge, and the unasked questions to each zone."""

    def __init__(self) -> None:
        self.stale: dict[SubscribeRequest, None] = {}
        self._unasked: dict[Route, dict[Question, None]] = {}

    @property
    def is_busy(self) -> bool:
        """True if a request is stale, or a question unasked."""
        return bool(self.stale or self._unasked)

    @property
    def has_unasked(self) -> bool:
        """True if a question is unasked."""
        return bool(self._unasked)

    def update(self, route: Route, now: Set[str], others: Set[str]) -> None:
        """Await the zone for the filters `now`, and no longer for `others`."""
        for _ in self.steps(route, now, others):
            pass

    def steps(self, route: Route, now: Set[str], others: Set[str]) -> Iterator[None]:
        """
        Do as `update` does, and yield between two pieces.

        The caller ends with `update`: between two pieces the map may change.
        """
        for subscribing in list(self.stale):
            leaving = subscribing.open.of(route.apex) & others
            joining = now & subscribing.zoned & subscribing.subscriptions.keys()
            joining -= subscribing.open.of(route.apex) | subscribing.answered.of(route.apex)
            for number, topic_filter in enumerate((*sorted(leaving), *sorted(joining))):
                if number and number % PIECE == 0:
                    yield
                if topic_filter in leaving:
                    subscribing.drop_zone(topic_filter, route.apex)
                else:
                    self._join(subscribing, topic_filter, route)

    def ask_again(self, route: Route, questions: Iterable[Question]) -> None:
        """Replace the unasked questions to a zone: its link is new, and none was heard."""
        self._unasked[route] = dict.fromkeys(questions)
        if not self._unasked[route]:
            del self._unasked[route]

    def unasked(self, route: Route) -> set[str]:
        """Return the filters of which a zone has still to hear a question."""
        return {topic_filter for _, topic_filter in self._unasked.get(route, ())}

    def take(self) -> Iterator[tuple[SubscribeRequest, str, Route]]:
        """Take a piece of the questions to one zone that are still of use; the caller asks them."""
        route, questions = next(iter(self._unasked.items()))
        for question in list(islice(questions, PIECE)):
            del questions[question]
            subscribing, topic_filter = question
            if topic_filter in subscribing.open.of(route.apex):
                yield subscribing, topic_filter, route
        if not questions and self._unasked.get(route) is questions:
            del self._unasked[route]

    # internal

    def _join(self, subscribing: SubscribeRequest, topic_filter: str, route: Route) -> None:
        pair = (topic_filter, route.apex)
        if (
            topic_filter in subscribing.subscriptions
            and pair not in subscribing.open
            and pair not in subscribing.answered
            and subscribing.needs_zone(topic_filter, route.apex)
        ):
            subscribing.await_zone(topic_filter, route.apex)
            self._unasked.setdefault(route, {})[subscribing, topic_filter] = None
