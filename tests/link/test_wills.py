"""Wills over a link: each is known as what it is, wherever it stands in a batch."""

from __future__ import annotations

from tests.link.test_life import Pair, taken, watch
from txbroker.edge.routing.publication import Publication
from txbroker.mqtt.wire.message import Message, WillId


def test_wills_among_other_publishes_are_taken_once() -> None:
    """Over two links of two edges, and all of them are acknowledged."""
    pair = Pair()
    port = watch(pair)
    done: list[str] = []
    wills: dict[str, WillId | None] = {
        "a": None,
        "w1": ("x", 1, 1),
        "b": None,
        "w2": ("x", 1, 2),
        "w1 again": ("x", 1, 1),
        "c": None,
    }
    for text, will in wills.items():
        message = Message("t", text.encode(), 1, client_id="c", will=will)
        pair.edge.publisher.publish(Publication(message, done=lambda text=text: done.append(text)))
    pair.link.pump()

    assert ["a", "w1", "b", "w2", "c"] == taken(port)
    assert [*wills] == done
