"""
SHELL: the time for which a client is not read (protocol rules 20 and 21).

A pause has one of two reasons. Too many of the client's publishes wait for owners, or a publish was
refused. The node refuses a publish if the disk has no room. The node also refuses a publish that
would overtake the pending publishes of an earlier node of the session. Packets behind a refused
publish wait unread, so no packet overtakes it.

A client of level 5 is not closed at the end of a pause that took too long. Its publishes are
answered with an error. Further ones get that at once, as long as the reason lasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from txbroker.mqtt.session.session import Session
from txbroker.mqtt.transport.service import MqttService
from txbroker.mqtt.wire.packets import Publish
from txbroker.runtime.periodic import Alarm
from txbroker.runtime.structured_log import get_logger

log = get_logger()

HOLD_TIMEOUT = 60.0
"""
Seconds of one pause, after which the node closes or refuses the client (protocol rule 21).

The client learns of the pause by that, and may go elsewhere.
"""


class ReadPause:
    """
    The pause of one connection; `is_on` while its client is not read.

    `refused` is the publish that was refused. At the end, `go_on` is called when the reason has
    passed. After `HOLD_TIMEOUT`, `refuse` is called to answer what waits with an error, and
    `give_up` if that is impossible.
    """

    def __init__(
        self,
        service: MqttService,
        *,
        go_on: Callable[[], None],
        refuse: Callable[[], bool],
        give_up: Callable[[], None],
    ) -> None:
        self.is_on = False
        self.refused: Publish | None = None
        self._service = service
        self._go_on = go_on
        self._refuse = refuse
        self._give_up = give_up
        self._spent_until = -math.inf
        self._client_id = ""
        self._patience: Alarm | None = None

    def pause(self, session: Session) -> None:
        """Pause the client."""
        service = self._service
        self.is_on = True
        self._client_id = session.client_id
        self._patience = Alarm(service.clock.callLater(HOLD_TIMEOUT, self._time_out))
        if self.refused is None:
            service.edge.congestion.when_room(session, self._end)
        elif service.watermark.is_short:
            service.counters.add("publish.refused.disk_free")
            service.watermark.when_room(self, self._end)
        else:
            service.successions.when_done(session.client_id, self._end)

    def forget(self, session: Session | None) -> None:
        """Forget the closed connection, and its refused publish."""
        self.is_on = False
        self._end_patience()
        self._service.watermark.forget(self)
        if session is not None:
            self._service.edge.congestion.forget(session)
            self._service.successions.forget(session.client_id)

    def dequeue_refused(self) -> Publish | None:
        """Return the refused publish, to be handled again."""
        refused, self.refused = self.refused, None
        return refused

    @property
    def is_spent(self) -> bool:
        """True if a pause took too long, and the client was refused a publish not long ago."""
        return self._service.clock.seconds() < self._spent_until

    def note_refusal(self) -> None:
        """Note that the client was refused a publish."""
        self._spent_until = self._service.clock.seconds() + HOLD_TIMEOUT

    # internal

    def _end(self) -> None:
        if self.is_on:
            self.is_on = False
            self._end_patience()
            self._go_on()

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()

    def _time_out(self) -> None:
        limit = "limits.outbox" if self.refused is None else "limits.disk_free"
        if self._refuse():
            log.warning("client.publishes_refused", client_id=self._client_id, limit=limit)
            self._end()
            self._service.flush_queue.end()
            return
        log.warning("client.pause_timeout", client_id=self._client_id, limit=limit)
        self._service.counters.add("clients.held_too_long")
        self._give_up()
