"""The queue of one zone, and who waits for whom: step by step, its rules checked after each."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from txbroker.edge.routing.held_publishes import HeldPublishes
from txbroker.edge.routing.publication import InDoubt, Publication
from txbroker.edge.routing.publish_queue import PublishQueue, WaitingBytes
from txbroker.mqtt.wire.message import Message

KEY = ("e", 1, "z", 1)


def publication(topic: str = "z/t", qos: int = 1) -> Publication:
    return Publication(Message(topic, b"12345", qos))


class Walk:
    """A queue on a link, one other queue that may hold it, and a drain."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.backlog = WaitingBytes()
        self.queue = PublishQueue("z", self.backlog)
        self.holder = PublishQueue("", WaitingBytes())
        self.drain = SimpleNamespace(is_busy=True)
        self.queue.drain([self.drain])
        self.steps: dict[str, Callable[[], Any]] = {
            "wait": lambda: self.queue.wait(publication(qos=self.rng.randrange(3))),
            "wait first": lambda: self.queue.wait_first([publication(), publication(qos=0)]),
            "send": self.send,
            "answer": lambda: self.queue.take_sent_through(self.queue.first_sequence),
            "break": lambda: self.queue.doubt_sent(KEY),
            "settle": lambda: self.queue.settle_doubts({KEY: self.rng.randrange(3)}),
            "keep elsewhere": self.shorten,
            "hold": lambda: self.queue.hold(self.holder),
            "release": lambda: self.queue.release(self.holder),
            "go behind": self.go_behind,
            "drained": self.drained,
            "pass drains": lambda: self.queue.pass_drains(),
            "drop QoS 0": lambda: self.queue.drop_waiting_qos0(),
        }

    def send(self) -> None:
        if self.queue.waiting:
            item = self.queue.next_waiting()
            if item.qos:
                self.queue.note_sent(item)

    def shorten(self) -> None:
        if self.queue.doubts:
            self.queue.shorten_doubt(1)

    def go_behind(self) -> None:
        self.drain.is_busy = True
        self.queue.go_behind()

    def drained(self) -> None:
        self.drain.is_busy = False
        self.queue.look_at_drains()


@pytest.mark.parametrize("seed", range(20))
def test_each_step_keeps_the_rules(seed: int) -> None:
    """Whatever comes in which order: what is counted is there, and is clear where nothing waits."""
    walk = Walk(seed)
    for _ in range(100):
        walk.rng.choice(list(walk.steps.values()))()
        walk.queue.check(is_linked=True)
        assert walk.backlog.size == walk.queue.waiting_size


class Zone:
    """A route, as far as others wait for it."""

    def __init__(self, apex: str) -> None:
        self.apex = apex
        self.queue = PublishQueue(apex, WaitingBytes())


def zones() -> tuple[Any, Any]:
    """A zone with a publish in flight that belongs to the zone below it."""
    above, below = Zone(""), Zone("z")
    above.queue.note_sent(publication())
    return above, below


def test_who_is_held_is_released_by_the_last_answer() -> None:
    """And is held by nobody after that."""
    above, below = zones()
    held = HeldPublishes()
    held.hold(above, {"z": below})
    assert below.queue.is_held
    assert [] == list(held.release(above))

    above.queue.take_sent_through(1)

    assert [below] == list(held.release(above))
    assert not below.queue.is_held and below.queue.is_clear
    assert [] == list(held.release(above))


def test_who_was_held_waits_for_the_heir() -> None:
    """Where that took over what is in doubt; else it waits for nobody."""
    for is_taken_over in (True, False):
        above, below = zones()
        held = HeldPublishes()
        held.hold(above, {"z": below})
        heir: Any = Zone("")
        sent = tuple(above.queue.take_sent())
        if is_taken_over:
            heir.queue.add_doubts([InDoubt(key=KEY, first=1, publications=sent)])

        released = held.forget(above, heir)

        assert ([] if is_taken_over else [below]) == released
        assert is_taken_over == below.queue.is_held
        if is_taken_over:
            heir.queue.take_doubts()
            assert [below] == list(held.release(heir))
            assert not below.queue.is_held
