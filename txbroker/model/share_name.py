"""Filters of shared subscriptions: `$share/GROUP/FILTER` (section 4.8.2 of MQTT 5.0). Pure."""

from __future__ import annotations

from typing import Final

from txbroker.model.topics import TopicError

GROUP_PREFIX: Final = "$share/"
"""Begins the filter of a shared subscription, and the client id of a group's session."""


def shared_subscription(topic_filter: str) -> tuple[str, str] | None:
    """
    Return group and filter of a shared subscription, or None if the valid filter is of no group.

    Raises `TopicError` for a group's name that is empty or has wildcards, and for a missing filter.
    """
    if not topic_filter.startswith(GROUP_PREFIX):
        return None
    group, slash, shared = topic_filter[len(GROUP_PREFIX) :].partition("/")
    if not group:
        # [MQTT-4.8.2-1]
        raise TopicError(
            "A shared subscription names its group: $share/GROUP/FILTER.", "MQTT-4.8.2-1"
        )
    if "+" in group or "#" in group:
        # [MQTT-4.8.2-2]
        raise TopicError(
            "The group of a shared subscription has no wildcards: $share/GROUP/FILTER.",
            "MQTT-4.8.2-2",
        )
    if not slash or not shared:
        # [MQTT-4.8.2-2]
        raise TopicError(
            "A shared subscription has a filter after its group: $share/GROUP/FILTER.",
            "MQTT-4.8.2-2",
        )
    return group, shared
