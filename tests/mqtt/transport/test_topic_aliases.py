"""Aliases that clients set: their topics have room in a node, for a usual client always."""

from __future__ import annotations

import pytest

from txbroker.mqtt.transport import topic_aliases
from txbroker.mqtt.transport.topic_aliases import AliasBytes, TopicAliases
from txbroker.mqtt.wire.packets import Publish
from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.mqtt.wire.return_codes import ProtocolViolation


def publish(topic: str, alias: int) -> Publish:
    return Publish(topic, b"", 0, topic_alias=alias)


def test_who_has_large_topics_is_refused_where_many_have_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else each connection of a stranger takes megabytes."""
    monkeypatch.setattr(topic_aliases, "MOST_BYTES", 100)
    monkeypatch.setattr(topic_aliases, "FEW_BYTES", 10)
    node = AliasBytes()
    large, usual = TopicAliases(10, node), TopicAliases(10, node)
    for alias in (1, 2):
        large.resolve(publish("l" * 50, alias))
    with pytest.raises(ProtocolViolation) as refused:
        large.resolve(publish("l" * 50, 3))
    assert ReasonCode.QUOTA_EXCEEDED == refused.value.reason_code
    assert (
        "usual" == usual.resolve(publish("usual", 1)).topic == usual.resolve(publish("", 1)).topic
    )

    large.end()
    assert 5 == node.held
    usual.resolve(publish("u" * 50, 2))
    usual.resolve(publish("u", 2))
    assert 6 == node.held
    usual.end()
    usual.end()
    assert 0 == node.held
