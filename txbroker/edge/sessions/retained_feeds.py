"""
Retained messages of a zone of this node for new subscriptions, beyond the first ones.

A filter may match a million retained messages. A feed delivers the rest in slices, behind the turns
of others, and no faster than the client reads. Each message is read when its turn comes, so no live
message before it is newer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from txbroker.core import QUEUE_HIGH_MARK
from txbroker.model.timers import Timers
from txbroker.mqtt.session.cursor import Subscription
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import OutboundMessage
from txbroker.mqtt.wire.message import Message
from txbroker.runtime.fair_shares import FairShare, FairShares, ShareWorker

Retained = Iterable[Message | None]
"""
The retained messages that match a filter.

An iterator yields each message as it is at that moment, so the rest may be delivered later. None
stands for a step in which no message was found.
"""

AT_ONCE = 256
BYTES_A_STEP = 256
"""
Steps of iterators in one turn, before the rest is delivered in slices.

A message counts as one more step for each `BYTES_A_STEP` bytes: QoS 0 beyond the client's buffers
would be dropped. All requests of a turn share the steps. One sync may end for many filters, and
each took a millisecond.
"""

LOOK = 0.02
"""Seconds between two checks of clients without room."""


class RetainedFeeds:
    """The feeds of one edge; all messages are delivered at once until `wire` is called."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._serve: Callable[[ShareWorker], None] = _do_all
        self._is_over: Callable[[], bool] = lambda: False
        self._waiting: list[_Feed] = []
        self._left = AT_ONCE

    def wire(self, shares: FairShares) -> None:
        """Share the time with other work from now on."""
        self._serve = shares.serve
        self._is_over = lambda: shares.is_over

    def start(
        self,
        session: Session,
        subscription: Subscription,
        retained: Retained,
        give: Callable[[Message], None],
    ) -> None:
        """Deliver these messages; `give` delivers the first ones."""
        if not isinstance(retained, Iterator):
            for message in retained:
                if message is not None:
                    give(message)
            return
        for message in retained:
            size = 0
            if message is not None:
                give(message)
                size = len(message.payload)
            if not self._has_more_time(1 + size // BYTES_A_STEP):
                self._serve(_Feed(self, session, subscription, retained))
                return

    def is_over(self) -> bool:
        """True if other work has to come first now."""
        return self._is_over()

    def wait(self, feed: _Feed) -> None:
        """Queue a feed whose client has no room."""
        self._waiting.append(feed)
        if len(self._waiting) == 1:
            self._timers.call_later(LOOK, self._run_turn)

    # internal

    def _has_more_time(self, steps: int) -> bool:
        """True if more may be done at once in this turn, after so many steps."""
        if self._left > 0:
            self._left -= steps
            if self._left <= 0:
                self._timers.call_later(0.0, self._start_turn)
        return self._left > 0

    def _start_turn(self) -> None:
        self._left = AT_ONCE

    def _run_turn(self) -> None:
        waiting, self._waiting = self._waiting, []
        for feed in waiting:
            if feed.has_room:
                self._serve(feed)
            else:
                self.wait(feed)


class _Feed:
    """The rest of the messages for one subscription."""

    __slots__ = ("_feeds", "_messages", "_session", "_subscription", "share")

    newcomer = None

    def __init__(
        self,
        feeds: RetainedFeeds,
        session: Session,
        subscription: Subscription,
        messages: Iterator[Message | None],
    ) -> None:
        self.share: FairShare | None = None
        self._feeds = feeds
        self._session = session
        self._subscription = subscription
        self._messages = messages

    @property
    def has_room(self) -> bool:
        """True if the connected client reads more, or if the rest has no reader any more."""
        if self._is_unwanted:
            return True
        if self._subscription.is_held:
            return False  # the first messages leave after the SUBACK, and come before the rest
        sink = self._session.sink
        if sink is None:
            return True
        return sink.packet_writer.has_room and self._session.sender.queued < QUEUE_HIGH_MARK

    @property
    def _is_unwanted(self) -> bool:
        session, subscription = self._session, self._subscription
        if session.is_over:
            return True
        return session.subscriptions.get(subscription.topic_filter) is not subscription

    def work(self) -> bool:
        """Deliver for a share of time; return True if messages are left (see `FairShares`)."""
        while not self._is_unwanted:
            if not self.has_room:
                self._feeds.wait(self)
                return False
            try:
                message = next(self._messages)
            except StopIteration:
                return False
            if message is not None:
                is_retained = message.retain  # history that a zone held is not
                deliver_once(self._session, self._subscription, message, retain=is_retained)
            if self._feeds.is_over():
                return True
        return False

    def fail(self, error: Exception) -> None:
        """
        Raise the error (see `FairShares`): a node does not run on with messages missing unnoticed.
        """
        raise error

    def on_late(self) -> None:
        """Do nothing; see `FairShares`."""


def _do_all(worker: ShareWorker) -> None:
    while worker.work():
        pass


def deliver_once(
    session: Session, subscription: Subscription, message: Message, *, retain: bool
) -> None:
    """Deliver a message that cannot be read again."""
    if message.expiry == 0:
        return
    identifiers = (subscription.identifier,) if subscription.identifier else ()
    qos = min(subscription.qos, message.qos)
    entry = OutboundMessage(message, qos, retain, None, identifiers)
    if qos:
        session.sender.deliver(entry)
    else:
        session.sender.deliver_qos0(entry)
