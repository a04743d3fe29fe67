"""
Wills whose delay runs (MQTT 5.0, section 3.1.3.2.2).

A will is due when its connection has ended without DISCONNECT. The will is published when its delay
or its session has ended, whichever is first. A client that comes back to its session cancels it.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from txbroker.model.timers import Cancellable, Timers


@attrs.frozen(eq=False)
class _DelayedWill:
    timer: Cancellable
    publish: Callable[[], None]
    cancelled: Callable[[], None]


class DelayedWills:
    """The due wills of one node's clients, at most one for each client id."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._all: dict[str, _DelayedWill] = {}

    def __len__(self) -> int:
        return len(self._all)

    def begin(
        self,
        client_id: str,
        delay: float,
        publish: Callable[[], None],
        cancelled: Callable[[], None],
    ) -> None:
        """Call `publish` after the delay, in seconds, or `cancelled` if the client comes back."""
        self.publish_now(client_id)
        timer = self._timers.call_later(delay, lambda: self.publish_now(client_id))
        self._all[client_id] = _DelayedWill(timer, publish, cancelled)

    def publish_now(self, client_id: str) -> None:
        """Publish the client's will, if any: its delay or its session has ended."""
        will = self._all.pop(client_id, None)
        if will is not None:
            will.timer.cancel()
            will.publish()

    def cancel(self, client_id: str) -> None:
        """Drop the client's will, if any: the client has come back to its session."""
        will = self._all.pop(client_id, None)
        if will is not None:
            will.timer.cancel()
            will.cancelled()
