"""The rule of groups: each message to one member, at QoS 2 once."""

from __future__ import annotations

from .events import (
    Acknowledged,
    Calm,
    Connected,
    Connecting,
    Down,
    Event,
    Processed,
    Sent,
    Subscribed,
    SubscribeSent,
)
from .groups import PREFIX
from .history import check

FILTERS = ((PREFIX + "#", 2),)


class Story:
    """Two members of a group at nodes `a` and `b`, and a publisher of one message of QoS 2."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        for connection, node in enumerate(("a", "b")):
            about = {"client": f"member-{node}", "connection": connection}
            self.add(Connecting, **about, node=node)
            self.add(Connected, **about, code=0, session_present=False)
            self.add(SubscribeSent, **about, filters=FILTERS)
            self.add(Subscribed, **about, filters=FILTERS)
        about = {"client": "pub", "connection": 2}
        self.add(Connecting, **about, node="c")
        self.add(Connected, **about, code=0, session_present=False)
        self.add(Calm)
        self.add(Sent, **about, number=1, topic="t", qos=2)
        self.add(Acknowledged, **about, number=1, kind="PUBREC")
        self.add(Acknowledged, **about, number=1, kind="PUBCOMP")

    def add(self, kind: type[Event], /, **fields: object) -> Story:
        self.events.append(kind(at=float(len(self.events)), **fields))
        return self

    def process(self, connection: int) -> Story:
        about = {"client": "member-" + "ab"[connection], "connection": connection}
        return self.add(Processed, **about, publisher="pub", number=1, qos=2, is_fresh=True)

    def broken(self) -> list[str]:
        return [violation.rule for violation in check(self.events)]


def test_one_member_processes_a_message() -> None:
    """No member: it is missed in the calm. Two of them: one is too many."""
    assert ["group"] == Story().add(Calm).broken()
    assert [] == Story().process(0).add(Calm).broken()
    assert ["group"] == Story().process(0).process(1).broken()


def test_an_answer_may_die_with_the_node_of_the_member() -> None:
    """Another node's death is no excuse, nor is one after all answers were told."""
    assert [] == Story().process(0).add(Down, node="a").process(1).broken()
    assert ["group"] == Story().process(0).add(Down, node="b").process(1).broken()
    assert ["group"] == Story().process(0).add(Calm).add(Down, node="a").process(1).broken()
