"""
The interest at one owner: the filters that it serves to this edge, and the questions about them.
"""

from __future__ import annotations

from collections.abc import Mapping, Set


class OwnerInterest:
    """
    The interest at one owner. A question asks from which offset on a filter holds, and for its
    retained messages. A question is open until the owner answers, or the link breaks. `groups` are
    the shared subscriptions that the owner coordinates.
    """

    __slots__ = ("_filters", "_requests", "groups")

    def __init__(self) -> None:
        self.groups: set[str] = set()
        self._filters: set[str] = set()
        self._requests: dict[int, tuple[str, object]] = {}

    @property
    def filters(self) -> Set[str]:
        """The filters that the owner serves, or has to serve."""
        return self._filters

    @property
    def requests(self) -> Mapping[int, tuple[str, object]]:
        """The open questions: each one's filter, and the SUBSCRIBE that asks."""
        return self._requests

    @property
    def is_empty(self) -> bool:
        """True if the owner need not hear of any filter."""
        return not (self._filters or self._requests or self.groups)

    def add(self, topic_filter: str) -> None:
        """Add a filter."""
        self._filters.add(topic_filter)

    def drop(self, topic_filter: str) -> bool:
        """Drop a filter; return True if it was there."""
        is_there = topic_filter in self._filters
        self._filters.discard(topic_filter)
        return is_there

    def change(self, new: Set[str], gone: Set[str]) -> None:
        """Add and drop filters."""
        self._filters |= new
        self._filters -= gone

    def clear(self) -> None:
        """Drop all filters: they are another owner's now."""
        self._filters = set()

    def ask(self, request: int, topic_filter: str, asker: object) -> None:
        """Note a question."""
        self._requests[request] = (topic_filter, asker)

    def take_request(self, request: int) -> tuple[str, object] | None:
        """Take a question out: it is answered."""
        return self._requests.pop(request, None)

    def forget_requests(self) -> None:
        """Drop all questions: no answer comes on an earlier link."""
        self._requests.clear()

    def has_confirmed(self, topic_filter: str) -> bool:
        """True if the owner was sent the filter, and owes no answer for it."""
        return topic_filter in self._filters and all(
            topic_filter != asked for asked, _ in self._requests.values()
        )
