"""
Delivery: from a zone's stream to the sessions of an edge's connected clients.

A session's overlapping subscriptions give one copy [MQTT-3.3.5-1], see `match`. A message that the
session has had, or will read from the journal in its turn, is not delivered live. A QoS 0 or `$SYS`
message for a new subscription is held until the SUBACK has left. At QoS 1 or 2 such a message is
read later.

A run mostly goes straight to the packet writers, in the core's exchange. Here are the sessions that
need a decision each: those that are behind, durable, held or full.

A run may be for thousands of such sessions, or match thousands of subscriptions of one. So these
decisions have a part of each turn. Beyond it, QoS 0 waits for later turns (*late*), and QoS 1 and 2
are read from the journal, in the session's turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from txbroker.core import Router, Run
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.sessions.delivery_messages import RunMessages, SingleMessage
from txbroker.edge.sessions.interests import Interests
from txbroker.edge.sessions.subscribe_request import HELD_LIMIT
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.cursor import Subscription
from txbroker.mqtt.session.match import Match, match_of
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import OutboundMessage
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.subscription_options import NO_LOCAL
from txbroker.runtime.slices import Slices

LONGEST = 0.004
KEPT_FOR = 0.02
"""
Seconds of a turn in which sessions that need a decision get messages of QoS 0, and of QoS 1 and 2.

To be read from the journal costs more than to be delivered live. So it is for crowds alone. For
sessions that are behind messages are only counted: beyond `LONGEST`, the messages pass these by.
"""

MOST_LATE = 20_000
LATE_BYTES = 32 * 1024 * 1024
"""Late messages, counted once for each session, and the bytes of their runs; others are dropped."""

FEW = 4
"""Late messages that one session gets in a step."""

FULL_FOR = 0.004
"""
Seconds for which packet writers above their high mark are flushed before the next run.

So a fast reader loses no QoS 0. The other full packet writers are flushed in turns of their own. A
write to a client that reads nothing may take milliseconds, while the kernel looks for room in its
buffers.
"""


class Delivery:
    """Delivers to the sessions of connected clients; late QoS 0 in `slices`."""

    def __init__(
        self,
        zones: ResolverCache,
        interests: Interests,
        router: Router,
        *,
        now: Callable[[], float],
        again: Callable[[], None],
    ) -> None:
        """`again` calls `work` in another turn."""
        self._zones = zones
        self._interests = interests
        self._router = router
        self._now = now
        self.slices = Slices(now, again, LONGEST)
        self._late = 0
        self._late_size = 0
        self._delivered = 0

    @property
    def delivered(self) -> int:
        """Messages delivered to clients, counted once for each client."""
        return self._delivered + self._router.delivered

    # from the clients' sessions

    def listen(self, session: Session, subscription: Subscription) -> None:
        """Deliver matching messages to the connected client from now on."""
        sink = session.sink
        assert sink is not None
        target = self._router.make_target(session, subscription, sink.packet_writer)
        subscription.aim(target)
        self._router.targets.add(subscription.topic_filter, session.client_id, target)

    def ignore(self, session: Session, subscription: Subscription) -> None:
        """Deliver no more for the subscription: it ended, or the client has left."""
        subscription.aim(None)
        self._router.targets.remove(subscription.topic_filter, session.client_id)

    def filters(self) -> list[str]:
        """Return the filters of the connected clients, each once."""
        return list(self._router.targets.filters())

    # from the edge

    def deliver(
        self, place: LogPosition | None, message: Message, *, is_read: bool = False
    ) -> None:
        """
        Deliver a message to every session that is connected and has a matching subscription.

        `place` is the message's place in its zone's journal, with offset 0 for QoS 0; None: `$SYS`.
        `is_read`: sessions that get the message at QoS 1 or 2 read it from the journal.
        """
        part = None if place is None else place.part
        apex = None if part is None else part.zone
        kept_part = part if message.qos else None
        found: dict[Session, list[Subscription]] = {}
        for target in self._router.targets_of(message.topic, kept_part):
            session, subscription = target.session, target.subscription
            if apex not in subscription.pending:
                found.setdefault(session, []).append(subscription)
        began = self._now()
        until = self._until(began, message.qos)
        single = SingleMessage(message, place, is_read=is_read)
        for session, subscriptions in found.items():
            is_busy = not message.qos and self.slices.is_busy(session)
            if self._has_time(session, kept_part, until) and not is_busy:
                self._give_single(session, subscriptions, single)
            elif message.qos and place is not None and not is_read:
                if not self._is_read_later(session, place):
                    read = SingleMessage(message, place, is_read=True)
                    self._give_later(session, self._give_late_single(session, read), 1, read)
            else:
                self._give_later(session, self._give_late_single(session, single), 1, single)
        self.slices.charge(self._now() - began)

    def deliver_runs(self, runs: list[Run], part: JournalId) -> None:
        """
        Deliver runs to every connected session with matching subscriptions; `part` is the runs'
        part.
        """
        place = 0
        while place < len(runs):
            place, left = self._router.fan_out_some(runs, place, part)
            self.deliver_left(runs[place - 1], part, left)

    def deliver_left(self, run: Run, part: JournalId, left: list[tuple[Session, range]]) -> None:
        """
        Deliver to `left`, the sessions (with the run's indices) that the core could not serve
        straight.
        """
        sessions: dict[Session, Sequence[int]] = {}
        for session, those in left:
            known = sessions.get(session)
            if isinstance(known, list):
                known += those
            else:
                sessions[session] = those if known is None else [*known, *those]
        if sessions:
            began = self._now()
            until = self._until(began, run.qos)
            messages = RunMessages(run, part)
            give = self._give_kept if run.qos else self._give_qos0
            for session, indices in sessions.items():
                give(session, messages, indices, until)
            self.slices.charge(self._now() - began)
        full = self._router.dequeue_full()
        until = self._now() + FULL_FOR if full else 0.0
        for packet_writer in full:
            if packet_writer.connection is not None:
                packet_writer.connection.flush()
                if self._now() >= until:
                    break

    def work(self) -> None:
        """Deliver late messages, in another turn."""
        self.slices.work()

    # internal

    def _until(self, now: float, qos: int) -> float:
        """Return the time until which messages are delivered in this turn."""
        return now + (KEPT_FOR if qos else self.slices.longest) - self.slices.spent

    def _has_time(self, session: Session, part: JournalId | None, until: float) -> bool:
        """True if the session gets messages in this turn, or has them counted."""
        is_counted = part is not None and session.is_behind and part in session.places.behind
        return self._now() < (until - KEPT_FOR + LONGEST if is_counted else until)

    def _give_kept(
        self, session: Session, messages: RunMessages, indices: Sequence[int], until: float
    ) -> None:
        """Deliver messages of QoS 1 and 2 to one session, or have the session read them."""
        run, part = messages.run, messages.part
        given = 0
        if self._has_time(session, part, until):
            if self._is_only_counted(session, part, run, indices):
                return
            if self._is_launched(session, part, run, indices):
                return
            choice = _Choice(self._router, session, messages)
            given = self._deliver_live(choice, indices, until)
            given += self._give_until(choice, indices[given:], until)
            session.update_live()
        rest = indices[given:]
        if rest and not self._is_read_later(session, messages.place(rest[0])):
            steps = self._give_late(session, messages, rest, is_read=True)
            self._give_later(session, steps, len(rest), messages)

    def _give_qos0(
        self, session: Session, messages: RunMessages, indices: Sequence[int], until: float
    ) -> None:
        """Deliver messages of QoS 0 to one session, now or late."""
        sink = session.sink
        is_straight = sink is not None and sink.packet_writer.is_direct
        if not (is_straight or session.sender.takes_runs):
            until = float("inf")  # late, they would be overtaken when it takes messages straight
        given = 0
        if not self.slices.is_busy(session):
            choice = _Choice(self._router, session, messages)
            given = self._give_until(choice, indices, until)
            session.update_live()
        rest = indices[given:]
        if rest:
            steps = self._give_late(session, messages, rest, is_read=False)
            self._give_later(session, steps, len(rest), messages)

    def _give_until(self, choice: _Choice, indices: Sequence[int], until: float) -> int:
        """Deliver messages of a run one by one, up to the time `until`; return how many."""
        for given, index in enumerate(indices):
            if self._now() >= until:
                return given
            self._give(choice, index, is_read=False)
        return len(indices)

    def _give(self, choice: _Choice, index: int, *, is_read: bool) -> None:
        """Deliver one message of a run."""
        messages = choice.messages
        message = messages.message(index)
        match = choice.of(index, message)
        if match is not None:
            was_held = match.subscription.is_held
            self._deliver(choice.session, match, message, messages.place(index), is_read=is_read)
            if was_held and not match.subscription.is_held:
                choice.forget()

    def _give_single(
        self, session: Session, subscriptions: Iterable[Subscription], single: SingleMessage
    ) -> None:
        """Deliver one message that is in no run."""
        message = single.message
        match = match_of(subscriptions, is_own=message.client_id == session.client_id)
        if match is not None:
            self._deliver(session, match, message, single.place, is_read=single.is_read)

    def _is_read_later(self, session: Session, place: LogPosition) -> bool:
        """
        Have the session read the journal from here on; return False if it may get QoS 0 as well.

        The journal is read for QoS 1 and 2 alone.
        """
        subscriptions = session.subscriptions.values()
        cursor = session.places.behind.get(place.part) if session.is_behind else None
        if cursor is not None and cursor.offset < place.offset:
            cursor.waiting = None  # It is counted when it is read.
        elif any(s.qos for s in subscriptions):
            session.places.fall_behind(place)
            session.request_records()
        is_all_read = all(s.qos for s in subscriptions)
        if is_all_read:
            # Otherwise each message asks each of thousands of sessions again.
            session.pass_by(place.part)
        return is_all_read

    def _give_later(
        self, session: Session, steps: Iterator[None], count: int, held: RunMessages | SingleMessage
    ) -> None:
        """Deliver late messages, which `held` has in memory; drop them if there are too many."""
        if self._late + count > MOST_LATE or self._late_size > LATE_BYTES:
            session.sender.drop(0, count)
        else:
            self._late += count
            self._late_size += held.hold()
            self.slices.start(session, self._end_late(steps, count, held))

    def _end_late(
        self, steps: Iterator[None], count: int, held: RunMessages | SingleMessage
    ) -> Iterator[None]:
        """Take the steps, and count the messages as late no more."""
        try:
            yield from steps
        finally:
            self._late -= count
            self._late_size -= held.release()

    def _give_late(
        self, session: Session, messages: RunMessages, indices: Sequence[int], *, is_read: bool
    ) -> Iterator[None]:
        choice = _Choice(self._router, session, messages)
        for given, index in enumerate(indices, 1):
            if session.sink is None:
                return  # its client has left
            self._give(choice, index, is_read=is_read)
            if given % FEW == 0:
                yield
        session.update_live()

    def _give_late_single(self, session: Session, single: SingleMessage) -> Iterator[None]:
        if session.sink is not None:
            subscriptions = session.matching(single.message.topic)
            apex = None if single.place is None else single.place.part.zone
            counting = [s for s in subscriptions if apex not in s.pending]
            self._give_single(session, counting, single)
        yield

    def _is_only_counted(
        self, session: Session, part: JournalId, run: Run, indices: Sequence[int]
    ) -> bool:
        """
        True if a session that is behind in the part reads all these QoS 1 and 2 messages later.

        Then the messages are counted for the session, and none of them is matched or decoded.
        """
        cursor = session.places.behind.get(part) if session.is_behind else None
        if cursor is None:
            return False
        subscriptions = session.subscriptions.values()
        # Its own messages do not come to a client that says so: these must be looked at.
        if not all(
            s.qos and not (s.pending or s.is_held or s.options & NO_LOCAL) for s in subscriptions
        ):
            return False
        if cursor.waiting is not None:
            those = run if len(indices) == run.count else run.select(indices)
            cursor.waiting.add(those.size, len(indices))
        self._delivered += len(indices)
        return True

    def _is_launched(
        self, session: Session, part: JournalId, run: Run, indices: Sequence[int]
    ) -> bool:
        """
        True if a group that is current takes these messages in a run, as far as there is room.

        The others stay in the journal, and none of them is decoded.
        """
        sender = session.sender
        if not sender.takes_runs:
            return False
        lead = session.places.ahead.get(part)
        if lead is not None and lead < run.offset(indices[0]):
            # Otherwise a whole run goes one by one each time that the group has caught up.
            session.places.forget_ahead(part)
        if not session.is_live(part):
            return False
        subscriptions = session.subscriptions.values()
        if any(not s.qos or part.zone in s.pending or s.is_held for s in subscriptions):
            return False
        those = run if len(indices) == run.count else run.select(indices)
        if not those.is_qos1 or those.expires:
            return False
        count = min(those.count, sender.run_room)
        if count:
            fitting = those if count == those.count else those.select(range(count))
            sender.launch_run(part, fitting)
            session.places.advance(part, fitting.last)
        if count < those.count:
            session.places.fall_behind(LogPosition(part, those.offset(count)))
        self._delivered += those.count
        return True

    def _deliver_live(self, choice: _Choice, indices: Sequence[int], until: float) -> int:
        """
        Deliver the first of these messages to a durable session that is current; return how many.

        Delivery stops at the time `until`, where the window is full, or at a message that is QoS 0,
        held, or without match.
        """
        session, messages = choice.session, choice.messages
        part = messages.part
        if session.clean or not session.is_live(part):
            return 0
        entries: list[OutboundMessage] = []
        for index in indices:
            if entries and self._now() >= until:
                break
            message = messages.message(index)
            match = choice.of(index, message)
            if match is None or match.subscription.is_held:
                break
            qos = min(match.subscription.qos, message.qos)
            if not qos:
                break
            retain = match.is_as_published and message.retain
            place = messages.place(index)
            entries.append(OutboundMessage(message, qos, retain, place, match.identifiers))
        taken = session.durable_sender.deliver_live(entries)
        if taken:
            session.places.advance(part, messages.place(indices[taken - 1]).offset)
            self._delivered += taken
        return taken

    def _deliver(
        self,
        session: Session,
        match: Match,
        message: Message,
        place: LogPosition | None,
        *,
        is_read: bool = False,
    ) -> None:
        if message.expiry == 0:
            return
        qos = min(match.subscription.qos, message.qos)
        if qos and place is not None:
            if not is_read:
                self._deliver_one(session, match, message, qos, place)
        elif match.subscription.is_held:
            self._hold(session, match.subscription, message)
        else:
            self._deliver_qos0(session, match, message, place)
        self._delivered += 1

    def _deliver_one(
        self, session: Session, match: Match, message: Message, qos: int, place: LogPosition
    ) -> None:
        part, places, sender = place.part, session.places, session.sender
        cursor = places.behind.get(part)
        if cursor is not None:
            if cursor.waiting is not None:
                cursor.waiting.add(message.size)
            return  # the session reads it from the journal, in its turn
        if places.had and places.has_had(place, message.topic):
            return
        if places.ahead:
            ahead = places.ahead.get(part, 0)
            if place.offset <= ahead:
                return  # the session read it from the journal
            places.forget_ahead(part)
        retain = match.is_as_published and message.retain
        entry = OutboundMessage(message, qos, retain, place, match.identifiers)
        if match.subscription.is_held or sender.is_late(part) or not sender.deliver(entry):
            places.fall_behind(place)
        elif not session.clean:
            places.advance(part, place.offset)

    def _deliver_qos0(
        self, session: Session, match: Match, message: Message, place: LogPosition | None
    ) -> None:
        retain = match.is_as_published and message.retain
        entry = OutboundMessage(message, 0, retain, place, match.identifiers)
        if place is None:
            session.sender.deliver_qos0(entry)
        elif not self._is_past(session, place):
            session.sender.deliver_qos0_after(entry, place.part)

    def _is_past(self, session: Session, place: LogPosition) -> bool:
        """True if a session that moved here had this QoS 0 message at its earlier node."""
        part = place.part
        cursor = session.places.behind.get(part)
        reached = session.places.ahead.get(part, 0) if cursor is None else cursor.offset
        if not reached:
            return False
        route = self._zones.get(part.zone)
        position = None if route is None else route.position
        come = place.offset or (0 if position is None else position.offset + 1)
        return come <= reached

    def _hold(self, session: Session, subscription: Subscription, message: Message) -> None:
        assert subscription.held is not None
        if session.sender.takes_runs:
            return  # a group, none of whose members has a SUBACK yet
        subscription.held.append((message, subscription.is_as_published and message.retain))
        if len(subscription.held) >= HELD_LIMIT:
            self._stop_holding(session, subscription)

    def _stop_holding(self, session: Session, subscription: Subscription) -> None:
        for subscribing in self._interests.of(session):
            if subscribing.subscriptions.get(subscription.topic_filter) is subscription:
                subscribing.finish()


class _Choice:
    """
    Chooses the subscriptions of a session that count for a message of a run.

    The choice is made once for all messages that match the same subscriptions: these may be
    thousands.
    """

    def __init__(self, router: Router, session: Session, messages: RunMessages) -> None:
        self.session = session
        self.messages = messages
        self._router = router
        self._run = messages.run
        self._zone = messages.part.zone
        self._known: dict[tuple[object, bool], Match | None] = {}

    def forget(self) -> None:
        """Clear the choices: a SUBACK has left, so other subscriptions may count now."""
        self._known.clear()

    def of(self, index: int, message: Message) -> Match | None:
        """Return the match of the run's message at `index`; None: no subscription counts."""
        session = self.session
        is_own = message.client_id == session.client_id
        if session.sink is None:  # the client left amid the run
            return self._match(session.matching(message.topic), is_own)
        way = self._router.way(self._run, index), is_own
        if way not in self._known:
            found = self._router.matching(self._run, index, session)
            self._known[way] = self._match(found, is_own)
        return self._known[way]

    def _match(self, found: Iterable[Subscription], is_own: bool) -> Match | None:
        return match_of((s for s in found if self._zone not in s.pending), is_own=is_own)
