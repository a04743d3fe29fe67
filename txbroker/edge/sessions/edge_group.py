"""
The members of one group at one edge.

A member is a session with the shared subscription, connected or away. A connected member takes
turns with the others: each message goes to the next member that has room for it. A lent message is
held until its member has answered (done), or has left (returned). Messages that come in a run are
given to members by the run. The core has their packet ids, and this module their places.

Invariant: a message is held, done or returned, and never two of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import attrs

from txbroker.core import Run
from txbroker.edge.routing.group_report import GroupReport
from txbroker.edge.routing.owner_port import OwnerPort
from txbroker.edge.routing.route import Route
from txbroker.model.invariant import holds
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.log_positions import PlaceSet
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import Lent, OutboundMessage, run_offsets
from txbroker.mqtt.wire.message import Message

AT_QOS0 = 1_000
"""Messages that a member of QoS 0 takes before its coordinator hears of it again."""

UNCONFIRMED = 65_536
"""Answered messages whose report is not durable, above which no more are lent to this edge."""

Waiter = Callable[[Collection[str]], None]
"""Gets the apexes of the zones that have not confirmed."""


class EdgeGroup:
    """
    The group `text`, which is `$share/GROUP/FILTER`; `topic_filter` is its FILTER.

    `route` leads to the coordinator, and `port` is the connection on which the group is reported.
    `sessions` has all members by client id. `goes_on`: True if the session of the last member went
    to another node. `is_noted`: True if the disk has the group, until the coordinator confirms that
    there is no member. `lenders`: the numbers that stand for the group and a part in what members
    answer.
    """

    def __init__(self, text: str, topic_filter: str, *, is_noted: bool = False) -> None:
        self.text = text
        self.topic_filter = topic_filter
        self.route: Route | None = None
        self.port: OwnerPort | None = None
        self.sessions: dict[str, Session] = {}
        self.waiters: list[Waiter] = []
        self.pending: Collection[str] | None = None
        self.told_limit = 0
        self.goes_on = False
        self.is_noted = is_noted
        self.lenders: dict[JournalId, int] = {}
        self._ring: deque[Session] = deque()
        self._held: dict[int, LogPosition] = {}
        self._exact: set[int] = set()  # leases of QoS 2
        self._places: dict[LogPosition, int] = {}
        self._in_runs = PlaceSet()  # held, without a lease
        self._done = PlaceSet()
        self._unconfirmed: dict[int, PlaceSet] = {}
        self._returned: dict[LogPosition, bool] = {}
        self._received = 0
        self._request = 0

    def check(self) -> None:
        """State that each message is at one place."""
        held = PlaceSet(self._places)
        holds(self, 37, "leases are known", len(held) == len(self._held), self.text)
        holds(self, 37, "one has it", not held.has_common(self._in_runs), self.text)
        held.merge(self._in_runs)
        holds(self, 37, "a held message is not done", not held.has_common(self._done), self.text)
        returned = PlaceSet(self._returned)
        holds(self, 37, "a held message is kept", not held.has_common(returned), self.text)

    # members

    @property
    def is_idle(self) -> bool:
        """True if there is no member, and nothing that the coordinator may not have heard."""
        return not (self.sessions or self._done or self._unconfirmed or self.is_noted)

    @property
    def is_unknown(self) -> bool:
        """True if the coordinator has answered nothing on the present connection."""
        return self.port is not None and self.pending is None and not self._received

    @property
    def is_durable(self) -> bool:
        """True if the session of a member outlives its connection."""
        return any(not s.clean and s.expiry != 0 for s in self.sessions.values())

    def connect(self, session: Session) -> None:
        """Add a connected member."""
        if session not in self._ring:
            self._ring.append(session)

    def disconnect(self, session: Session) -> None:
        """Remove a member that is no longer connected."""
        if session in self._ring:
            self._ring.remove(session)

    # messages

    def lend_all(
        self,
        places: Sequence[LogPosition],
        messages: Sequence[Message],
        leases: Sequence[int],
        *,
        is_again: bool,
    ) -> None:
        """
        Give each member its share of messages of one part; what is left goes one by one, in turn.
        """
        at = 0
        is_known = self._knows(places[0].part, [place.offset for place in places])
        for session, share in () if is_known else self._shares(len(places)):
            those = slice(at, at + share)
            at += self._lend_share(
                session, places[those], messages[those], leases[those], is_again=is_again
            )
        for place, message, lease in zip(places[at:], messages[at:], leases[at:], strict=True):
            self.lend(place, message, lease, is_again=is_again)

    def lend_run(self, part: JournalId, run: Run, lender: int, *, is_again: bool) -> int:
        """
        Give each member its share of a run; return how many of its first messages were given.

        `lender` stands for this group and the part in what members report (`answer_run`).
        """
        offsets = run_offsets(run)
        if self._knows(part, offsets):
            return 0
        at = 0
        is_few = run.count < 2 * len(self._ring)
        for session, share in self._turns(run.count) if is_few else self._shares(run.count):
            subscription = session.shared[self.text]
            at += session.sender.lend_run(
                subscription, run, range(at, at + share), lender, is_again=is_again
            )
        self._in_runs.update(part, offsets[:at])
        self._received += at
        return at

    def lend(self, place: LogPosition, message: Message, lease: int, *, is_again: bool) -> None:
        """Give a message to the next member with room; without one the message is returned."""
        if not message.qos:
            self._deliver_qos0(message)
            return
        self._received += 1
        if place in self._places or place in self._in_runs:
            return  # the coordinator has lent it again, as our report was on its way
        if place in self._done or self._is_unconfirmed(place):
            self._done.add(place)
            return
        self._returned.pop(place, None)
        refused_by: Session | None = None
        for session in self._next():
            subscription = session.shared.get(self.text)
            if subscription is None:
                continue
            entry = subscription.entry(message)
            if not _has_room_for(session, entry):
                continue
            if not _accepts_size(session, entry):
                refused_by = session
                continue
            if not entry.qos:
                session.sender.deliver_qos0(entry)
                self._done.add(place)
                return
            entry.lease, entry.is_again = lease, is_again and entry.qos == 1
            if not session.clean:
                entry.lent = Lent(self.text, place)
            self._held[lease], self._places[place] = place, lease
            if entry.qos == 2:
                self._exact.add(lease)
            if session.sender.lend(entry):
                return
            del self._held[lease], self._places[place]
            self._exact.discard(lease)
        if refused_by is None:
            self._returned[place] = is_again
        else:  # Returned, it would come back at once, for as long as nobody else has room.
            refused_by.count_too_large(1)
            self._done.add(place)

    def expire(self, places: Iterable[LogPosition]) -> None:
        """Complete messages that expired on their way here: no member gets them."""
        for place in places:
            self._received += 1
            if place not in self._places and place not in self._in_runs:
                self._returned.pop(place, None)
                self._done.add(place)

    def send_run(self, run: Run) -> int:
        """Give messages of QoS 0 to members in turn; return how many came to no member."""
        # Without room a group would lose what a plain subscriber gets: publishers wait for a full
        # output, and the output alone decides what is dropped.
        members = [session for session in self._ring if self._is_member(session)]
        ready = [session for session in members if _has_room(session)] or members
        if not ready:
            return run.count
        at = 0
        for index, session in enumerate(ready):
            stop = run.count * (index + 1) // len(ready)
            if run.count < len(ready):
                stop = min(at + 1, run.count)
            if stop > at:
                self._send_part(session, run.select(range(at, stop)))
                self._ring.rotate(-1)
            at = stop
        return 0

    def answer(self, lease: int) -> bool:
        """Note that a member has answered a message; return False for an unknown lease."""
        place = self._held.pop(lease, None)
        if place is None:
            return False
        self._exact.discard(lease)
        del self._places[place]
        self._done.add(place)
        return True

    def answer_run(self, part: JournalId, offsets: Iterable[int]) -> None:
        """Note that a member has answered messages of runs."""
        self._done.update(part, self._in_runs.take(part, offsets))

    def own(self, place: LogPosition) -> None:
        """Note that the session of a member has a message durably, since before it came here."""
        is_held = place in self._places or place in self._in_runs
        if not is_held and not self._is_unconfirmed(place):
            self._done.add(place)

    def end(self) -> None:
        """Take leave of the coordinator, which lends all again that is not done."""
        for lease in self._exact:  # Their clients complete them [MQTT-4.8.2-5].
            self._done.add(self._held[lease])
        self._exact.clear()
        self._held.clear()
        self._places.clear()
        self._in_runs.clear()

    def has_lease(self, lease: int) -> bool:
        """True if a member has not answered the message of this lease."""
        return lease in self._held

    def leases(self) -> list[int]:
        """Return the leases of all messages that members have not answered."""
        return list(self._held)

    def give_back(self, leases: Iterable[int]) -> None:
        """Return messages whose member has left; another member may get them."""
        for lease in leases:
            place = self._held.pop(lease, None)
            if place is not None:
                self._exact.discard(lease)
                del self._places[place]
                self._returned[place] = True

    def give_back_run(self, part: JournalId, offsets: Iterable[int]) -> None:
        """Return messages of runs whose member has left; another member may get them."""
        for offset in sorted(self._in_runs.take(part, offsets)):
            self._returned[LogPosition(part, offset)] = True

    # reports

    @property
    def limit(self) -> int:
        """Messages that the coordinator may lend in all on this connection."""
        if sum(map(len, self._unconfirmed.values())) >= UNCONFIRMED:
            return self._received
        return self._received + sum(self._room(session) for session in self._ring)

    def first_report(self) -> GroupReport:
        """Begin on a new connection: report all that is held, and all that may be news."""
        self._received = 0
        self._returned.clear()
        for places in self._unconfirmed.values():
            self._done.merge(places)
        self._unconfirmed.clear()
        held = PlaceSet(self._places)
        held.merge(self._in_runs)
        return attrs.evolve(self.report(), is_first=True, held=held)

    def report(self) -> GroupReport:
        """Return the next report."""
        done, self._done = self._done, PlaceSet()
        returned, self._returned = self._returned, {}
        request = 0
        if done or (self.is_noted and not self.sessions):
            request = self._request = self._request + 1
            self._unconfirmed[request] = done
        self.told_limit = self.limit
        return GroupReport(
            members=len(self._ring),
            limit=self.told_limit,
            is_durable=self.is_durable or (self.goes_on and not self.sessions),
            request=request,
            done=done,
            returned=returned,
            is_over=not self.sessions,
        )

    def confirm_report(self, request: int) -> None:
        """Forget the answers of this report and of those before it: they are durable."""
        for known in [number for number in self._unconfirmed if number <= request]:
            del self._unconfirmed[known]
        self.is_noted &= bool(self.sessions or self._unconfirmed)

    def confirm(self, pending: Collection[str]) -> None:
        """Answer the SUBSCRIBE packets that wait: the coordinator has confirmed."""
        self.pending = pending
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter(pending)

    # internal

    def _is_unconfirmed(self, place: LogPosition) -> bool:
        return any(place in places for places in self._unconfirmed.values())

    def _knows(self, part: JournalId, offsets: Sequence[int]) -> bool:
        """True if one of these messages is held here, or was."""
        known = (self._in_runs, self._done, *self._unconfirmed.values())
        if any(places.has_any(part, offsets) for places in known):
            return True
        if not (self._places or self._returned):
            return False
        places = [LogPosition(part, offset) for offset in offsets]
        is_new = self._places.keys().isdisjoint(places)
        return not (is_new and self._returned.keys().isdisjoint(places))

    def _shares(self, count: int) -> Iterator[tuple[Session, int]]:
        """
        Yield how many of so many messages each member takes, members with the least room first.

        Nothing if there are too few to give each member several.
        """
        left = count
        if left < 2 * len(self._ring):
            return
        rooms = [(self._room(one), one) for one in self._ring if self._takes_all(one)]
        rooms.sort(key=lambda ready: ready[0])
        for index, (room, session) in enumerate(rooms):
            share = min(left // (len(rooms) - index), room)
            left -= share
            yield session, share

    def _turns(self, count: int) -> Iterator[tuple[Session, int]]:
        """Yield the members that take one each of so few messages, in turn."""
        for _ in range(count):
            ready = (one for one in self._next() if self._takes_all(one) and self._room(one))
            session = next(ready, None)
            if session is None:
                return
            yield session, 1

    def _takes_all(self, session: Session) -> bool:
        """True if the member accepts messages of every size, and answers them."""
        subscription, sink = session.shared.get(self.text), session.sink
        is_answering = subscription is not None and subscription.qos > 0
        return is_answering and sink is not None and not sink.packet_writer.max_packet

    def _lend_share(
        self,
        session: Session,
        places: Sequence[LogPosition],
        messages: Sequence[Message],
        leases: Sequence[int],
        *,
        is_again: bool,
    ) -> int:
        """Give a member the first of these messages for which there is room; return how many."""
        self._held.update(zip(leases, places, strict=True))
        self._places.update(zip(places, leases, strict=True))
        subscription = session.shared[self.text]
        given = session.sender.lend_all(subscription, places, messages, leases, is_again=is_again)
        self._received += given
        taken = zip(leases[:given], messages, strict=False)
        self._exact.update(
            lease for lease, message in taken if min(subscription.qos, message.qos) == 2
        )
        for place, lease in zip(places[given:], leases[given:], strict=True):
            del self._held[lease], self._places[place]
        return given

    def _next(self) -> Iterable[Session]:
        """Yield each connected member once, in turn."""
        for _ in range(len(self._ring)):
            session = self._ring[0]
            self._ring.rotate(-1)
            yield session

    def _is_member(self, session: Session) -> bool:
        """True if the session is connected and still a member: groups follow it in slices."""
        return session.sink is not None and self.text in session.shared

    def _room(self, session: Session) -> int:
        subscription = session.shared.get(self.text)
        if subscription is None:
            return 0
        if subscription.qos:
            return session.sender.lend_room
        return AT_QOS0 if _has_room(session) else 0

    def _deliver_qos0(self, message: Message) -> None:
        """Give a message of QoS 0 to the next member with room; without one, to the next one."""
        for needs_room in (True, False):
            for session in self._next():
                subscription = session.shared.get(self.text)
                if subscription is None or (needs_room and not _has_room(session)):
                    continue
                entry = subscription.entry(message)
                if _accepts_size(session, entry):
                    session.sender.deliver_qos0(entry)
                    return

    def _send_part(self, session: Session, run: Run) -> None:
        subscription, sink = session.shared.get(self.text), session.sink
        assert sink is not None and subscription is not None
        if not subscription.identifier:
            sink.packet_writer.send_run(run)
            session.sender.poll_packet_writer()
            return
        for index in range(run.count):
            session.sender.deliver_qos0(subscription.entry(run.message(index)))


def _has_room(session: Session) -> bool:
    return session.sink is not None and session.sink.packet_writer.has_room


def _has_room_for(session: Session, entry: OutboundMessage) -> bool:
    return bool(session.sender.lend_room) if entry.qos else _has_room(session)


def _accepts_size(session: Session, entry: OutboundMessage) -> bool:
    """True if the member accepts packets of this size."""
    sink = session.sink
    if sink is None or not sink.packet_writer.max_packet:
        return sink is not None
    packet_writer = sink.packet_writer
    level = packet_writer.level
    packet = entry.packet(1, dup=False, level=level) if entry.qos else entry.qos0_packet(level)
    return len(packet) <= packet_writer.max_packet
