"""Intervals that a zone gives to its messages by topic, whoever published them."""

from __future__ import annotations

import pytest

from tests.core.cores import a_run, publish
from tests.support.journal import MemoryJournal, authority_of
from tests.support.recorders import cut
from txbroker import core
from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import TAKEN, PublishVerdict
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.mqtt.wire.message import Message

INTERVAL = b"\x02"


def serving(*rules: tuple[str, int]) -> tuple[Authority, MemoryJournal, DelegationTable]:
    table = DelegationTable("home")
    authority, journal = authority_of("home", table)
    authority.expiry.set(rules)
    authority.open(1)
    return authority, journal, table


def run_to(*topics: bytes, qos: int) -> core.Run:
    packets = [publish(topic, b"1", qos, number) for number, topic in enumerate(topics, 1)]
    run: core.Run = a_run(core, *packets)
    return run


@pytest.mark.parametrize(
    ("own", "left"),
    [(b"", 60), (INTERVAL + bytes([0, 0, 0, 61]), 60), (INTERVAL + bytes([0, 0, 0, 59]), 59)],
)
@pytest.mark.parametrize("qos", [0, 1])
def test_shorter_interval_counts(own: bytes, left: int, qos: int) -> None:
    """The publisher's or the zone's; other properties stay, and other topics are left alone."""
    authority, journal, _ = serving(("home/+/motion", 60), ("home/hall/#", 600))
    other = b"\x03\x00\x01t"

    authority.publish(Message("home/hall/motion", b"1", qos, True, properties=other + own))
    authority.publish(Message("home/other", b"1", qos))

    first, second = (record.message for record in journal.records)
    assert (left, None) == (first.expiry, second.expiry)
    assert other in first.properties and b"" == second.properties
    retained = authority.retained.get("home/hall/motion")
    assert retained is not None and left == retained.expiry


@pytest.mark.parametrize("qos", [0, 1])
def test_runs_of_other_topics_stay_runs(qos: int) -> None:
    """A run with such a topic is taken message by message; one without goes on as it is."""
    authority, _, table = serving(("home/+/motion", 60))
    topics = [b"home/hall/motion/x", b"home/x", b"home/motion"]
    plain = run_to(*topics, qos=qos)
    mixed = run_to(b"home/x", b"home/a/motion", qos=qos)

    assert authority.publish_run(plain)
    assert not authority.publish_run(mixed)
    assert TAKEN is authority.publish(mixed.message(1))

    table.commit(cut("home/a", 2))
    authority.announce(cut("home/a", 2))
    away = authority.publish(Message("home/a/motion", b"1", qos))
    assert away is PublishVerdict.NOT_AUTHORITATIVE


def test_rules_are_replaced() -> None:
    """By those of a file that was read again: for what comes from then on, runs included."""
    authority, journal, _ = serving(("home/a", 60), ("home/b", 60))
    authority.expiry.set([("home/b", 5), ("home/c", 7)])
    assert authority.publish_run(run_to(b"home/a", qos=1))
    for topic in ("home/a", "home/b", "home/c"):
        assert not (topic != "home/a" and authority.publish_run(run_to(topic.encode(), qos=1)))
        authority.publish(Message(topic, b"1", 1))
    assert [None, 5, 7] == [record.message.expiry for record in journal.records[-3:]]

    authority.expiry.set([])
    assert authority.publish_run(run_to(b"home/a", b"home/b", b"home/c", qos=1))
