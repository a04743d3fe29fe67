"""Filters of shared subscriptions."""

from __future__ import annotations

import pytest

from txbroker.model.share_name import shared_subscription
from txbroker.model.topics import TopicError


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        ("$share/g/a", ("g", "a")),
        ("$share/g/a/+/#", ("g", "a/+/#")),
        ("$share/g//", ("g", "/")),
        ("$share/g/$SYS/#", ("g", "$SYS/#")),
        ("$share/$share/a", ("$share", "a")),
        ("$share", None),
        ("$shared/g/a", None),
        ("/$share/g/a", None),
        ("a", None),
    ],
)
def test_group_and_filter(topic_filter: str, expected: tuple[str, str] | None) -> None:
    assert expected == shared_subscription(topic_filter)


@pytest.mark.parametrize(
    ("topic_filter", "rule"),
    [
        ("$share/", "MQTT-4.8.2-1"),
        ("$share//a", "MQTT-4.8.2-1"),
        ("$share/g", "MQTT-4.8.2-2"),
        ("$share/g/", "MQTT-4.8.2-2"),
        ("$share/+", "MQTT-4.8.2-2"),
        ("$share/+/a", "MQTT-4.8.2-2"),
        ("$share/#", "MQTT-4.8.2-2"),
    ],
)
def test_group_without_name_or_filter_is_refused(topic_filter: str, rule: str) -> None:
    with pytest.raises(TopicError) as caught:
        shared_subscription(topic_filter)

    assert rule == caught.value.rule
