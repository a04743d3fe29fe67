"""What rules have in common: violations, and whether a topic matches a filter."""

from __future__ import annotations

import attrs

from .events import Event


@attrs.frozen
class Violation:
    """A rule of `history` that was broken, when, and how."""

    rule: str
    at: float
    what: str


class Report:
    """Where rules note what they find."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []

    def add(self, rule: str, event: Event, what: str) -> None:
        """The event breaks the rule; its client, if it has one, stands before `what`."""
        client = getattr(event, "client", "")
        self.violations.append(Violation(rule, event.at, f"{client}: {what}" if client else what))


def matches(topic_filter: str, topic: str) -> bool:
    """True if a topic without `$` matches a filter [MQTT 4.7]."""
    wanted, levels = topic_filter.split("/"), topic.split("/")
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place >= len(levels) or level not in ("+", levels[place]):
            return False
    return len(wanted) == len(levels)


def is_in_zone(topic: str, apex: str) -> bool:
    """True if the topic is the apex, or lies below it."""
    return not apex or topic == apex or topic.startswith(apex + "/")
