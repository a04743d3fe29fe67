"""Messages to a group whose interval passes while they are on their way, or in doubt."""

from __future__ import annotations

from typing import Any

import pytest

from tests.edge.groups.site import GROUP, PART, Link, World
from tests.edge.groups.test_reports import carry, joined, pass_seconds, waiting
from txbroker.edge.groups.group_coordinator import SETTLING
from txbroker.model.log_position import LogPosition
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.message_expiry import set_expiry


def expiring(seconds: int) -> Message:
    """The first message of a world, of QoS 2."""
    return Message("t", b"2/0", 2, properties=set_expiry(b"", seconds))


def test_a_message_that_expired_on_its_way_goes_to_no_member() -> None:
    """The link took off how long it waited for a node that stood still; its flow ends."""
    world = World(1)
    edge = joined(world, 2, "c1")
    world.journal.append(expiring(10))
    for _ in range(3):
        world.pump()
        world.commit()
    link = edge.route.port
    assert link is not None and link.down
    link.down.clear()
    link.lend(GROUP, PART, [1], [expiring(0)], is_again=False)
    carry(world)

    assert not waiting(edge, "c1")
    assert not list(world.sessions[GROUP].durable_sender.flows())
    assert 1 == edge.shared._counters.get("session.dropped.expired")


def test_a_message_in_doubt_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator waits for the edge that may have it; meanwhile the interval goes on."""
    lent: list[int | None] = []
    lend = Link.lend

    def noted(link: Link, *where: Any, is_again: bool) -> None:
        lent.extend(message.expiry for message in where[-1])
        lend(link, *where, is_again=is_again)

    monkeypatch.setattr(Link, "lend", noted)
    world = World(1)
    edge = joined(world, 2, "c1")
    world.journal.append(expiring(10))
    carry(world)
    edge.crash()
    world.take_away()
    joined(world, 2, "c1")
    group = world.coordinators._groups[GROUP]
    assert list(group._doubtful) == [LogPosition(PART, 1)]
    pass_seconds(world, int(SETTLING))

    assert [10, 10 - SETTLING] == lent
    assert [b"2/0"] == waiting(edge, "c1")
