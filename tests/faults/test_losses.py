"""What may be lost with a node that is gone for good, and that nothing else may be."""

from __future__ import annotations

import itertools
from typing import Any

import attrs

from .events import (
    Acknowledged,
    Calm,
    Connected,
    Connecting,
    Delivered,
    Event,
    Faulted,
    Remembered,
    Ruined,
    Sent,
    Subscribed,
    SubscribeSent,
)
from .history import check

P, S, T = "pub", "sub", "other"
LOST = "n"


@attrs.define
class Tale:
    """
    A publisher at node `at`, and two subscribers to everything, S at node `sub_at`, T elsewhere.
    Node n serves zone z and goes. An event a second.
    """

    at: str = "a"
    sub_at: str = "b"
    events: list[Event] = attrs.Factory(list)
    _clock: Any = attrs.Factory(itertools.count)
    _connections: Any = attrs.Factory(lambda: itertools.count(1))
    _connection: dict[str, int] = attrs.Factory(dict)

    def __attrs_post_init__(self) -> None:
        for client, node in ((P, self.at), (S, self.sub_at), (T, "c")):
            self.connect(client, node, present=False)
        self.subscribe(S).subscribe(T)

    def add(self, what: type[Event], /, **fields: Any) -> Tale:
        self.events.append(what(at=float(next(self._clock)), **fields))
        return self

    def connect(self, client: str, node: str, *, present: bool) -> Tale:
        about = {"client": client, "connection": next(self._connections)}
        self._connection[client] = about["connection"]
        self.add(Connecting, **about, node=node)
        return self.add(Connected, **about, code=0, session_present=present)

    def subscribe(self, client: str) -> Tale:
        about = {"client": client, "connection": self._connection[client], "filters": (("#", 2),)}
        return self.add(SubscribeSent, **about).add(Subscribed, **about)

    def send(self, number: int, topic: str, **fields: Any) -> Tale:
        about = {"client": P, "connection": self._connection[P], "number": number}
        return self.add(Sent, **about, topic=topic, qos=1, **fields)

    def acked(self, number: int) -> Tale:
        about = {"client": P, "connection": self._connection[P], "number": number}
        return self.add(Acknowledged, **about, kind="PUBACK")

    def publish(self, number: int, topic: str, **fields: Any) -> Tale:
        return self.send(number, topic, **fields).acked(number)

    def deliver(self, number: int, topic: str, *clients: str) -> Tale:
        for client in clients:
            self.add(
                Delivered,
                client=client,
                connection=self._connection[client],
                publisher=P,
                number=number,
                topic=topic,
                qos=1,
                packet_id=number,
            )
        return self

    def ruin(self) -> Tale:
        return self.add(Ruined, node=LOST, zones=("z",), kept=("", "z/y"), nodes=(LOST,))

    def void(self) -> Tale:
        """The same node is the root, and comes back with an empty disk."""
        fields = {"node": LOST, "zones": ("",), "kept": ("y", "z"), "nodes": (LOST,)}
        return self.add(Faulted, what="test").add(Ruined, **fields, is_void=True)

    def calm(self) -> Tale:
        return self.add(Calm)

    @property
    def broken(self) -> list[str]:
        """The rules that it breaks, each once."""
        return sorted({violation.rule for violation in check(self.events)})


def test_what_its_journal_alone_had_may_be_lost() -> None:
    """For some or for all; also what it had acknowledged to another node just before."""
    tale = Tale().publish(1, "z/t").publish(2, "z/t").deliver(2, "z/t", S).send(3, "z/t")
    tale.ruin().acked(3).calm()

    assert [] == tale.broken


def test_what_waits_for_its_zone_elsewhere_is_due() -> None:
    """Acknowledged once it was gone, it lies in an outbox; so does what it had not answered."""
    assert ["lost"] == Tale().ruin().publish(1, "z/t").calm().broken
    assert ["lost"] == Tale().send(1, "z/t").ruin().calm().acked(1).calm().broken


def test_what_another_zone_had_is_due() -> None:
    """It was published elsewhere; the zone may lie below."""
    assert ["lost"] == Tale().publish(1, "y/t").ruin().calm().broken
    assert ["lost"] == Tale().publish(1, "z/y/t").ruin().calm().broken


def test_what_its_outbox_alone_had_may_be_lost() -> None:
    """Nobody has such a message then. It may have been answered by the node of a later session."""
    assert [] == Tale(at=LOST).publish(1, "y/t").ruin().calm().broken
    moved = Tale(at=LOST).send(1, "y/t").connect(P, "a", present=True)
    moved.send(1, "y/t", dup=True).acked(1)
    assert [] == moved.ruin().calm().broken


def test_what_left_its_outbox_is_due() -> None:
    """One session has it, so its zone had."""
    assert ["lost"] == Tale(at=LOST).publish(1, "y/t").ruin().deliver(1, "y/t", T).calm().broken


def test_sessions_that_it_held_may_be_lost() -> None:
    """With what waited for them; what comes after they began anew is due again."""
    tale = Tale(sub_at=LOST).publish(1, "y/t").deliver(1, "y/t", T).ruin()
    tale.connect(S, "a", present=False).subscribe(S).calm()
    assert [] == tale.broken

    tale.publish(2, "y/t").deliver(2, "y/t", T).calm()
    assert ["lost"] == tale.broken


def test_sessions_that_others_held_are_due() -> None:
    """They are found, and get all."""
    assert ["session"] == Tale().ruin().connect(S, "a", present=False).broken
    assert ["lost"] == Tale().ruin().publish(1, "y/t").deliver(1, "y/t", T).calm().broken


def test_session_that_was_on_its_way_to_it_may_be_lost() -> None:
    """Its client had tried there, without an answer."""
    tale = Tale().add(Connecting, client=S, connection=99, node=LOST).ruin()

    assert [] == tale.connect(S, "a", present=False).broken


def test_what_it_had_not_answered_may_come_twice() -> None:
    """Others send it again, to some for the second time."""
    tale = Tale().send(1, "z/t").deliver(1, "z/t", S).ruin().calm()
    tale.acked(1).deliver(1, "z/t", S, T).calm()

    assert [] == tale.broken


def test_retained_values_of_its_own_may_be_lost() -> None:
    """Those of its zone, or of its outbox; until there is another one."""
    for tale, topic in ((Tale(), "z/k"), (Tale(at=LOST), "y/k")):
        tale.publish(1, topic, retain=True).deliver(1, topic, S, T).ruin().calm()
        tale.add(Remembered, values=())
        assert [] == tale.broken

        tale.publish(2, topic, retain=True).deliver(2, topic, S, T).calm()
        assert ["retained"] == tale.add(Remembered, values=()).broken


def test_retained_values_of_others_are_due() -> None:
    """Of another zone, published elsewhere."""
    tale = Tale().publish(1, "y/k", retain=True).deliver(1, "y/k", S, T).ruin().calm()

    assert ["retained"] == tale.add(Remembered, values=()).broken


def test_what_an_empty_root_took_for_others_comes_late_and_twice() -> None:
    """But it comes; what it had taken before may be lost."""
    tale = Tale().publish(1, "t").void().publish(2, "y/t").publish(3, "y/t")
    tale.deliver(3, "y/t", S, T).deliver(2, "y/t", S, T, S)
    assert [] == tale.calm().broken

    assert ["lost"] == Tale().void().publish(1, "y/t").calm().broken
    tale.publish(4, "y/t").publish(5, "y/t").deliver(5, "y/t", S, T).deliver(4, "y/t", S, T, S)
    assert ["duplicate", "order"] == tale.calm().broken


def test_what_an_empty_root_took_several_times_comes_twice_each_time() -> None:
    """A client sent it again, on another connection; nobody gets it more often."""
    tale = Tale().void().send(1, "y/t").connect(P, "a", present=True).send(1, "y/t", dup=True)
    tale.acked(1).deliver(1, "y/t", S, T, S, S, S)
    assert [] == tale.broken

    assert ["duplicate"] == tale.deliver(1, "y/t", S).calm().broken


def test_an_empty_root_knows_no_sessions() -> None:
    """One begins there, though it is elsewhere; at any other node, or in the calm, it is found."""
    tale = Tale().void().connect(S, LOST, present=False)
    assert [] == tale.broken

    assert ["session"] == tale.calm().connect(S, LOST, present=False).broken
    assert ["session"] == Tale().void().connect(S, "a", present=False).broken
