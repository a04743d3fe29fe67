"""What a zone retains, for many new subscriptions at once: how much of it is given in one turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.clock import Clock
from tests.support.edge_bench import Client, EdgeBench
from txbroker.edge.sessions.retained_feeds import AT_ONCE, BYTES_A_STEP, RetainedFeeds
from txbroker.mqtt.session.cursor import Subscription
from txbroker.mqtt.wire.message import Message
from txbroker.runtime.fair_shares import ShareWorker


class Asked:
    """Feeds whose rest waits, and what they were asked for."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.feeds = RetainedFeeds(self.clock)
        self.waiting: list[ShareWorker] = []
        self.steps = 0
        self.feeds._serve = self.waiting.append
        self._session = Client(EdgeBench(), "c").session

    def ask(self, count: int, payload: bytes | None = None) -> None:
        """A filter for which so many steps are to be done."""
        subscription = Subscription("t", 0)
        self.feeds.start(self._session, subscription, self._go(count, payload), lambda _: None)

    def _go(self, count: int, payload: bytes | None) -> Iterator[Message | None]:
        for _ in range(count):
            self.steps += 1
            yield None if payload is None else Message("t", payload, 0, True)


def test_what_is_asked_in_one_turn_shares_its_steps() -> None:
    """Fifty filters that look far were worked off in one piece after a sync."""
    asked = Asked()
    for _ in range(50):
        asked.ask(10 * AT_ONCE)

    assert asked.steps < AT_ONCE + 50 == len(asked.waiting) + AT_ONCE
    asked.clock.advance(0.0)
    before = asked.steps
    asked.ask(10 * AT_ONCE)
    assert before + AT_ONCE == asked.steps


@pytest.mark.parametrize(("count", "payload"), [(AT_ONCE - 1, None), (3, b"x" * BYTES_A_STEP)])
def test_little_is_given_at_once(count: int, payload: bytes | None) -> None:
    """And whoever comes next in the same turn finds what is left of it."""
    asked = Asked()
    asked.ask(count, payload)
    assert count == asked.steps and not asked.waiting
    asked.ask(AT_ONCE)
    assert asked.waiting


def test_long_messages_count_for_more() -> None:
    """A client takes so much at once and no more."""
    asked = Asked()
    asked.ask(AT_ONCE, bytes(AT_ONCE * BYTES_A_STEP // 4))
    assert 4 == asked.steps
