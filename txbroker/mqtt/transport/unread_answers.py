"""
SHELL: the time for which a client does not read its answers.

Answers cannot be dropped. So a client that sends requests and reads no answers would fill the
node's memory. Its packets stay in the kernel until it has read. A client that reads no byte for
`DEAF_TIMEOUT` is closed.
"""

from __future__ import annotations

from collections.abc import Callable

from txbroker.runtime.net import Clock
from txbroker.runtime.periodic import Alarm
from txbroker.runtime.structured_log import get_logger, log_limited

log = get_logger()

DEAF_TIMEOUT = 60.0
"""Seconds in which a paused client must take a byte of its answers."""


class UnreadAnswers:
    """The watch over one connection; `left` returns its unread bytes, `give_up` closes it."""

    def __init__(
        self, clock: Clock, client_id: str, *, left: Callable[[], int], give_up: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._client_id = client_id
        self._left = left
        self._give_up = give_up
        self._schedule_check()

    def end(self) -> None:
        """End the watch: the client has read all, or has disconnected."""
        self._alarm.cancel()

    # internal

    def _schedule_check(self) -> None:
        self._mark = self._left()
        self._alarm = Alarm(self._clock.callLater(DEAF_TIMEOUT, self._check))

    def _check(self) -> None:
        if self._left() < self._mark:
            self._schedule_check()
            return
        log_limited(
            log.warning, "client.not_reading", client_id=self._client_id, after=DEAF_TIMEOUT
        )
        self._give_up()
