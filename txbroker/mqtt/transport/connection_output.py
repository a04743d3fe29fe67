"""
SHELL: the output to a client, and its fate while the client does not read it.

The output of a turn leaves at its end. While the client takes none, publishers wait for it, for a
short time. A client that leaves its answers unread is not read either (`UnreadAnswers`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from txbroker.core import QUEUE_HIGH_MARK
from txbroker.mqtt.transport.connection_lifetime import ConnectionLifetime
from txbroker.mqtt.transport.unread_answers import UnreadAnswers

QUEUE_LOW_MARK = 250
"""Messages behind a client's window at which publishers, which wait for a short time, resume."""

PACE = 512 * 1024
"""Bytes that a fast client reads in a tenth of a second; in messages, `QUEUE_LOW_MARK`."""

FULL = 1024 * 1024
"""
Bytes of unread output from which back-pressure begins; less if all outputs together are large.

From this size on, publishers wait for a client on trial. A client that does not read its answers is
not read from this size on.
"""


class ConnectionOutput(ConnectionLifetime, ABC):
    """The output of a client's connection; the transport's producer, the session's sink."""

    __slots__ = ()

    @abstractmethod
    def on_input(self) -> None:
        """Process arrived packets, as far as permitted now; the caller ends the turn."""

    # from Twisted (IPushProducer)

    def pauseProducing(self) -> None:
        self._is_clogged = True
        self._service.backpressure.raise_(self, self._unread, pace=PACE)

    def resumeProducing(self) -> None:
        self._is_clogged = False
        self.packet_writer.is_shut = False
        self._service.backpressure.lower(self)
        self.flush()
        if self._session is not None:
            self._session.sender.pump()
        self._pause_if_unread()
        self._service.flush_queue.end()

    def stopProducing(self) -> None:
        self._is_clogged = True

    # from the session (Sink)

    def flush(self) -> None:
        """
        Write the gathered output, at the end of a turn or when the output is large.

        The call also counts the packet writer's events. Publishers wait if the output does not
        shrink.
        """
        packet_writer, session = self.packet_writer, self._session
        if not self._is_clogged:
            if packet_writer.size and self._is_open:
                self._push()
        else:
            self._pause_if_unread()
            if self._service.backpressure.is_slow(self):
                packet_writer.is_shut = True
            elif self._is_filled():
                self._service.backpressure.hurry(self)
        if session is not None:
            session.sender.poll_packet_writer()
            self._delay_publishers()

    # internal

    def _pause_if_unread(self) -> None:
        """
        Stop reading a client that does not read its answers, so that its packets stay in the
        kernel.
        """
        if self._is_clogged and self._is_open:
            if self._deaf is None and self._is_filled():
                self._deaf = UnreadAnswers(
                    self._service.clock,
                    self._client_id,
                    left=self._unread,
                    give_up=self._give_up,
                )
                self._regulate()
        elif self._deaf is not None:
            self._deaf.end()
            self._deaf = None
            self._regulate()
            self.on_input()

    def _is_filled(self) -> bool:
        return self.packet_writer.size > self._service.router.room(FULL)

    def _unread(self) -> int:
        """
        Return the bytes that the client's end has not taken; a falling number if that is unknown.
        """
        unread = getattr(self.transport, "unread", None)
        return -int(1e6 * self._service.clock.seconds()) if unread is None else unread()

    def _delay_publishers(self) -> None:
        """Delay publishers for a short time if the client's queue is long."""
        waiting, backpressure = self.packet_writer.waiting, self._service.backpressure
        if waiting > QUEUE_HIGH_MARK:
            self.packet_writer.is_behind = True
            backpressure.raise_(
                self.packet_writer, lambda: self.packet_writer.waiting, pace=QUEUE_LOW_MARK
            )
        elif self.packet_writer.is_behind and waiting < QUEUE_LOW_MARK:
            self.packet_writer.is_behind = False
            backpressure.lower(self.packet_writer)
