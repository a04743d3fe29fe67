"""
Which promises a history breaks. Pure: events in, violations out.

The rules, and the numbers of the invariants that they stand for:

- `owner`: one node owns a zone at an epoch; a zone that was given back comes at a higher one [1].
- `disagreement`: all see the messages of a topic in the one order of its owner [1].
- `hops`: a message crosses the network to its owner, and from there to edges that want it [2].
- `copies`: and to each of these once, while all is calm [3].
- `lost`: an acknowledged message reaches every session that had subscribed before [5].
- `retained`: what a new subscriber gets is the last that was acknowledged [5].
- `duplicate`: QoS 2 comes once. QoS 1 comes again after a resend of the publisher; or flagged DUP,
  with its packet identifier, on a later connection of the subscriber. QoS 0 never does [5].
- `acknowledgement`: of something that was sent on this connection, in the order sent.
- `order`: messages of a publisher on a topic and QoS arrive in its order; so no live message
  overtakes a backlog [6].
- `session`: it is present wherever it is looked for; not refused while all is calm; the connection
  that it had before is closed. At another site, while its own may be away, a client begins a new
  one, and the old one's subscriptions and messages come when that site is back: none is lost and
  none doubled but what was in flight, yet they come behind newer ones. So do messages that the
  client published in the old one, and a retained one among them is the newest then. So it is at the
  other node of a site of two, which answers for both while its peer is away.
- `will`: it comes once, and reaches whom it must, when the connection has ended without DISCONNECT
  at a node that lives on. None comes of a connection that is open while all can be reached, or that
  has said DISCONNECT in the calm.
- `packet`: nothing illegal comes; topic, payload and QoS are as published and granted; a packet
  identifier is free before it is used again.
- `damage`: a damaged file is refused, and `repair` names it.
- `ended`: no node ends by itself, and each does when it is told to.
- `group`: a member of a group processes each acknowledged message, at QoS 2 once [37].
- `late`: all is caught up in time.

After a `reclaim` what only the dead node had is replayed: once, late, without retained values. What
a node alone had that is gone for good may be lost: see `losses`.

What may be undecided is not judged: a message counts for a session if it was first sent after a
SUBACK that came in the calm, or after the calm that followed that SUBACK (a zone that was away
then may have confirmed later).
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Container, Iterable, Mapping
from typing import Protocol

import attrs

from .deliveries import Deliveries
from .events import (
    Acknowledged,
    Believed,
    Calm,
    Connected,
    Connecting,
    Copied,
    Delivered,
    Discarded,
    Disconnected,
    Ended,
    Event,
    Faulted,
    Granted,
    Haunted,
    Overdue,
    Reclaimed,
    Remembered,
    Returned,
    Ruined,
    Sent,
    Stuck,
)
from .groups import Groups
from .losses import Losses
from .rules import Report, Violation, is_in_zone
from .wills import Wills

__all__ = ["Checker", "Violation", "check"]


def check(history: Iterable[Event], sites: Mapping[str, str] | None = None) -> list[Violation]:
    """All that this history breaks, in order; empty if nothing. `sites`: as for `Checker`."""
    checker = Checker(sites or {})
    for each in history:
        checker.feed(each)
    return checker.verdict()


class Checker:
    """
    Feed it every event, in order; `verdict` may be asked at any time. `sites` are the sites of
    nodes; those that it does not name share one.
    """

    def __init__(self, sites: Mapping[str, str]) -> None:
        self._report = Report()
        self.losses = losses = Losses()
        self.acknowledgements = _Acknowledgements(self._report)
        sessions = _Sessions(self._report, losses, sites)
        self.deliveries = Deliveries(self._report, losses, sessions.begun_elsewhere)
        self.groups = Groups(self._report, losses, sessions.begun_elsewhere)
        self.wills = Wills(self._report, self.deliveries, sessions.begun_elsewhere)
        self._rules: list[_Rule] = [
            losses,
            self.acknowledgements,
            sessions,
            _Owners(self._report),
            _Retained(self._report, losses, sessions.begun_elsewhere),
            _Copies(self._report),
            self.deliveries,
            self.groups,
            self.wills,
        ]

    def feed(self, event: Event) -> None:
        """One more event."""
        for rule in self._rules:
            rule.feed(event)
        match event:
            case Overdue():
                self._report.add("late", event, event.what)
            case Disconnected(why=why) if why.startswith("illegal"):
                self._report.add("packet", event, why)
            case Stuck():
                self._report.add("ended", event, f"{event.node} did not end on {event.order}")
            case Believed():
                self._report.add("damage", event, f"{event.node} believed {event.what}")
            case Ended():
                self._report.add("ended", event, f"{event.node}, status {event.status}")

    def verdict(self) -> list[Violation]:
        """What has been broken so far."""
        return [*self._report.violations, *self.deliveries.disagreements()]


class _Rule(Protocol):
    """A rule, or a few: notes in a report what each event breaks."""

    def feed(self, event: Event) -> None: ...


class _Acknowledgements:
    """Each is for something sent on this connection, and those of a topic and QoS are in order."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._waiting: dict[tuple[int, str, int], deque[int]] = defaultdict(deque)
        self._sent: dict[tuple[str, int], Sent] = {}
        self._open: set[tuple[str, int]] = set()

    @property
    def open(self) -> set[tuple[str, int]]:
        """(client, number) of QoS 1/2 messages that were sent and whose flow has not ended."""
        return self._open

    def feed(self, event: Event) -> None:
        match event:
            case Sent(qos=1 | 2):
                self._sent[event.client, event.number] = event
                self._open.add((event.client, event.number))
                self._waiting[event.connection, event.topic, event.qos].append(event.number)
            case Acknowledged(number=None):
                self._report.add("acknowledgement", event, f"{event.kind} for nothing that is open")
            case Acknowledged(number=int(number), kind=kind):
                if kind != "PUBREC":
                    self._open.discard((event.client, number))
                if kind != "PUBCOMP":
                    self._in_order(event, self._sent[event.client, number])

    def _in_order(self, event: Acknowledged, sent: Sent) -> None:
        waiting = self._waiting[event.connection, sent.topic, sent.qos]
        if sent.number not in waiting:
            self._report.add("acknowledgement", event, "nothing sent here waits for it")
            return
        if waiting[0] != sent.number:
            first = waiting[0]
            self._report.add("acknowledgement", event, f"before that of {first}, on {sent.topic}")
        waiting.remove(sent.number)


class _Sessions:
    """A session that has been confirmed once is found again at every node."""

    def __init__(self, report: Report, losses: Losses, sites: Mapping[str, str]) -> None:
        self.begun_elsewhere: set[int] = set()  # connections, maybe in another session than before
        self._report = report
        self._losses = losses
        self._sites = sites
        self._sizes = Counter(sites.values())
        self._at: dict[str, str] = {}  # client: the node that accepted it last
        self._attempts: dict[str, int] = defaultdict(int)
        self._known: dict[str, str] = {}  # client: the site of its session
        self._tries: dict[int, str] = {}  # connection: node
        self._parted: set[str] = set()  # clients, maybe with sessions at several sites
        self._is_calm = True
        self._void = ""  # a node that knows nobody, until the next calm

    def feed(self, event: Event) -> None:
        match event:
            case Faulted():
                self._is_calm = False
            case Calm():
                self._is_calm = True
                self._parted.clear()
                self._void = ""
            case Ruined():
                for client in self._losses.sessions:
                    self._known.pop(client, None)
                if event.is_void:
                    self._void = event.node
            case Discarded():
                self._known.pop(event.client, None)
                self._attempts[event.client] = 0
            case Connecting():
                self._attempts[event.client] += 1
                self._connecting(event)
            case Connected(code=0):
                self._accepted(event)
            case Connected(code=3) if not self._is_calm:
                pass
            case Connected():
                self._report.add("session", event, f"CONNACK code {event.code}")
            case Haunted():
                self._report.add("session", event, "its old connection was not closed")

    def _connecting(self, event: Connecting) -> None:
        self._tries[event.connection] = event.node
        site = self._sites.get(event.node, "")
        home = self._known.get(event.client, site)
        is_at_peer = self._sizes[site] == 2 and self._at.get(event.client) != event.node
        is_apart = home != site or event.node == self._void or is_at_peer
        if not self._is_calm and is_apart:
            # A session may begin there of which the client never hears.
            self._parted.add(event.client)

    def _accepted(self, event: Connected) -> None:
        node = self._at[event.client] = self._tries.pop(event.connection)
        site = self._sites.get(node, "")
        home = self._known.get(event.client)
        is_apart = bool(self._void) or home != site or self._sizes[site] == 2
        if home is not None and is_apart and event.client in self._parted:
            self.begun_elsewhere.add(event.connection)
        elif home is not None and not event.session_present:
            self._report.add("session", event, "lost: session present is 0")
        if self._attempts[event.client] == 1 and event.session_present:
            self._report.add("session", event, "session present is 1, but it has never been here")
        self._known[event.client] = site


class _Owners:
    """An epoch of a zone is given once."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._owners: dict[tuple[str, int], str] = {}
        self._newest: dict[str, int] = defaultdict(int)  # zone: epoch
        self._over: dict[str, int] = defaultdict(int)  # zone: newest epoch that has ended

    def feed(self, event: Event) -> None:
        match event:
            case Granted():
                self._granted(event)
            case Returned():
                self._over[event.zone] = self._newest[event.zone]

    def _granted(self, event: Granted) -> None:
        zone, epoch = event.zone, event.epoch
        owner = self._owners.setdefault((zone, epoch), event.node)
        if owner != event.node:
            what = f"{event.node} and {owner} own {zone!r} at epoch {epoch}"
            self._report.add("owner", event, what)
        if epoch <= self._over[zone]:
            what = f"{event.node} owns {zone!r} at epoch {epoch}, after it was given back"
            self._report.add("owner", event, what)
        self._newest[zone] = max(epoch, self._newest[zone])


class _Retained:
    """
    Each topic that a client sends retained messages to has no other client that does. Of messages
    from several sessions of a client the last one of any may be what is kept.
    """

    def __init__(self, report: Report, losses: Losses, begun_elsewhere: Container[int]) -> None:
        self._report = report
        self._losses = losses
        self._begun_elsewhere = begun_elsewhere
        self._session: Counter[str] = Counter()  # client: how many
        self._sent: dict[tuple[str, int], tuple[str, set[int]]] = {}  # topic, sessions
        self._last: dict[str, dict[int, tuple[str, int]]] = {}  # topic: session: last acknowledged
        self._highest: dict[str, int] = {}  # topic: number
        self._cut_off: dict[str, int] = {}  # topic: up to that number nothing is promised
        self._is_void = False
        self._doubtful: set[str] = set()  # topics of which the root may have taken values meanwhile

    def feed(self, event: Event) -> None:
        match event:
            case Connected(code=0) if event.connection in self._begun_elsewhere:
                self._session[event.client] += 1
            case Sent(retain=True):
                _, sessions = self._sent.setdefault(
                    (event.client, event.number), (event.topic, set())
                )
                sessions.add(self._session[event.client])
                if self._is_void:
                    self._doubtful.add(event.topic)
                self._highest[event.topic] = max(event.number, self._highest.get(event.topic, 0))
            case Reclaimed():
                for topic, number in self._highest.items():
                    if is_in_zone(topic, event.zone):
                        self._cut_off[topic] = number
                        self._last.pop(topic, None)
            case Ruined():
                self._is_void |= event.is_void
                for topic, last in self._last.items():
                    if any(self._losses.of(message) for message in last.values()):
                        self._doubtful.add(topic)
                self._promise_nothing()
            case Calm():
                self._promise_nothing()
                self._is_void = False
            case Acknowledged(number=int(number), kind="PUBACK" | "PUBREC"):
                topic, _ = self._sent.get((event.client, number), ("", None))
                session = self._session[event.client]
                _, known = self._last.get(topic, {}).get(session, ("", 0))
                if topic and number > max(known, self._cut_off.get(topic, 0)):
                    self._last.setdefault(topic, {})[session] = (event.client, number)
            case Remembered():
                self._compare(event)

    def _promise_nothing(self) -> None:
        for topic in self._doubtful:
            self._cut_off[topic] = self._highest[topic]
            self._last.pop(topic, None)
        self._doubtful.clear()

    def _compare(self, event: Remembered) -> None:
        found = {topic: (client, number) for topic, client, number in event.values}
        for topic, last in self._last.items():
            kept = found.get(topic, ("", 0))
            _, sessions = self._sent.get(kept, ("", {max(last)}))
            client, number = min(last.get(session, ("", 0)) for session in sessions)
            if kept[1] < number:
                what = f"{topic}: {kept[1] or 'nothing'} instead of {client} {number}"
                self._report.add("retained", event, what)


class _Copies:
    """A message of the calm goes to its owner, and from there once to each edge that wants it."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def feed(self, event: Event) -> None:
        if not isinstance(event, Copied):
            return
        pair = (event.source, event.target)
        wanted = {(event.edge, event.owner), *((event.owner, each) for each in event.holders)}
        name = f"{event.publisher} {event.number}: {event.source} to {event.target}"
        if pair not in wanted:
            self._report.add("hops", event, f"{name}; wanted: {sorted(wanted)}")
        elif event.count > 1:
            self._report.add("copies", event, f"{name}: {event.count} times")


def summary(violations: Iterable[Violation], *, each: int = 5) -> list[str]:
    """Lines for people: how many of each rule, and the first few."""
    by_rule: dict[str, list[Violation]] = defaultdict(list)
    for violation in violations:
        by_rule[violation.rule].append(violation)
    lines = []
    for rule, found in sorted(by_rule.items()):
        lines.append(f"{rule}: {len(found)}")
        lines += [f"  {violation.at:8.3f} {violation.what}" for violation in found[:each]]
    return lines


@attrs.frozen(kw_only=True)
class Tally:
    """How much a history holds, for the line of a round."""

    published: int
    acknowledged: int
    delivered: int

    @classmethod
    def of(cls, history: Iterable[Event]) -> Tally:
        published = acknowledged = delivered = 0
        for event in history:
            published += isinstance(event, Sent) and not event.dup
            acknowledged += isinstance(event, Acknowledged) and event.kind != "PUBCOMP"
            delivered += isinstance(event, Delivered)
        return cls(published=published, acknowledged=acknowledged, delivered=delivered)
