"""
SHELL: the time for which a client is not read (protocol rules 20 and 21).

Either too much of what it brought waits for owners; or a publish of it was refused: there is no
room on the disk, or it would overtake what an earlier node of its session has still to publish.
What came behind a refused publish waits unread, so that nothing overtakes that.
"""

from __future__ import annotations

from collections.abc import Callable

from txbroker.mqtt.session.session import Session
from txbroker.mqtt.transport.service import MqttService
from txbroker.mqtt.wire.packets import Publish
from txbroker.runtime.periodic import Alarm
from txbroker.runtime.structured_log import get_logger

log = get_logger()

HOLD_TIMEOUT = 60.0
"""Seconds for which a client is not read at a stretch; then it is closed, so that it learns of it
and may go elsewhere (protocol rule 21)."""


class ReadPause:
    """
    One connection's; `is_on` while its client is not read.

    `refused` is the publish that was not taken. In the end, `go_on` is called when there is room,
    or `give_up` after `HOLD_TIMEOUT`.
    """

    def __init__(
        self, service: MqttService, *, go_on: Callable[[], None], give_up: Callable[[], None]
    ) -> None:
        self.is_on = False
        self.refused: Publish | None = None
        self._service = service
        self._go_on = go_on
        self._give_up = give_up
        self._client_id = ""
        self._patience: Alarm | None = None

    def begin(self, session: Session) -> None:
        """The client is not read from here on."""
        service = self._service
        self.is_on = True
        self._client_id = session.client_id
        self._patience = Alarm(service.clock.callLater(HOLD_TIMEOUT, self._lose_patience))
        if self.refused is None:
            service.edge.congestion.when_room(session, self._end)
        elif service.space.is_short:
            service.counters.add("publish.refused.disk_free")
            service.space.when_room(self, self._end)
        else:
            service.successions.when_done(session.client_id, self._end)

    def forget(self, session: Session | None) -> None:
        """The connection is gone, with what it had not brought yet."""
        self.is_on = False
        self._end_patience()
        self._service.space.forget(self)
        if session is not None:
            self._service.edge.congestion.forget(session)
            self._service.successions.forget(session.client_id)

    def take_refused(self) -> Publish | None:
        """The publish that was refused, to be tried again."""
        refused, self.refused = self.refused, None
        return refused

    # internal

    def _end(self) -> None:
        if self.is_on:
            self.is_on = False
            self._end_patience()
            self._go_on()

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()

    def _lose_patience(self) -> None:
        limit = "limits.outbox" if self.refused is None else "limits.disk_free"
        log.warning("client.held_too_long", client_id=self._client_id, limit=limit)
        self._service.counters.add("clients.held_too_long")
        self._give_up()
