"""What an edge writes into the delivery ledger of its node."""

from __future__ import annotations

from tests.edge.sessions.test_catch_up_after_moves import numbers, say, subscribed
from tests.support.edge_bench import Client, EdgeBench
from tests.support.keeping import MemoryTable
from tests.support.recorders import LedgerRecorder
from txbroker.edge.routing.edge_limits import EdgeLimits
from txbroker.edge.sessions.ledger_writer import STATED_AT_ONCE
from txbroker.edge.sessions.session_connect import PublishBarrier
from txbroker.edge.sessions.session_transfer import SessionTransfer
from txbroker.journal.delivery_ledger import LedgerKind, LedgerRow
from txbroker.model.epoch_transition import FOREVER, EpochTransition
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.window import SessionLimits
from txbroker.mqtt.wire.packets import Publish


def recorded(*apexes: str, age: float = 1e6, **limits: int) -> tuple[EdgeBench, LedgerRecorder]:
    """An edge with a ledger, whose zones are online."""
    ledger = LedgerRecorder()
    bench = EdgeBench(
        *apexes,
        limits=EdgeLimits(session=SessionLimits(**limits), session_age=age),
        ledger=ledger,
    )
    bench.online("", *apexes, offset=5)
    for apex in apexes:
        bench.online(apex, offset=7)
    return bench, ledger


def test_what_clients_acknowledge_is_delivered() -> None:
    """By place; neither QoS 0, nor what is retained, nor anything of a clean session."""
    bench, ledger = recorded()
    client = Client(bench, "c", clean=False)
    client.subscribe("#")
    bench.answer("", "#", "kept=r")
    clean = subscribed(bench, "x", name="clean", clean=True)
    say(bench, 6, 7)
    bench.deliver("", "x", "0", qos=0)
    ledger.take()
    got = client.got(), clean.got()

    assert ["Suback", "r:r", "0", "6", "7"] == sorted(
        got[0], key=["Suback", "r:r", "0", "6", "7"].index
    )
    assert [("delivery", "c", "", 6), ("delivery", "c", "", 7)] == ledger.take()


def test_a_qos_2_message_is_delivered_with_its_pubrec() -> None:
    """Once, whatever comes again; in the commit that remembers it."""
    bench, ledger = recorded()
    client = subscribed(bench, "x", qos=2)
    say(bench, 6, 6, qos=2)
    bench.settle()
    (publish,) = (p for p in client.events if isinstance(p, Publish))
    assert publish.packet_id is not None
    ledger.take()
    sender = client.session.durable_sender
    for _ in range(2):
        sender.on_pubrec(publish.packet_id)
        bench.settle()
    received = ledger.take()
    sender.on_pubcomp(publish.packet_id)

    assert [("delivery", "c", "", 6)] == received
    assert [] == ledger.take()


def test_a_subscription_begins_where_its_zones_confirm() -> None:
    """What is pending begins later; a clean session's subscriptions are nobody's business."""
    bench, ledger = recorded("a", "b")
    bench.lose("b")
    client = Client(bench, "c", clean=False)
    client.subscribe("#", qos=2)
    bench.answer("", "#")
    bench.answer("a", "#")
    before = ledger.take()
    bench.clock.advance(2.0)
    after = ledger.take()
    bench.online("b", offset=9)
    bench.answer("b", "#")
    late = ledger.take()
    subscribed(bench, "x", name="clean", clean=True)

    assert [] == before
    assert [("start", "c", "#", "", 5, 2), ("start", "c", "#", "a", 7, 2)] == after
    assert [("start", "c", "#", "b", 9, 2)] == late
    assert [] == ledger.take()


def test_a_subscription_ends_where_its_session_is() -> None:
    """In each part; what it has not been given by then is not its any more."""
    bench, ledger = recorded("a", inflight=2)
    client = subscribed(bench, "#", "x")
    ledger.take()
    say(bench, 6, 9)
    bench.settle()
    client.unsubscribe("#")
    bench.settle()

    assert [("end", "c", "#", "", 7, 1), ("end", "c", "#", "a", 7, 1)] == ledger.take()


def test_another_qos_counts_at_once_if_it_is_less() -> None:
    """And with the SUBACK in any case, from where the session is."""
    bench, ledger = recorded()
    client = subscribed(bench, "x")
    ledger.take()
    say(bench, 6, 6)
    client.got()
    client.subscribe("x", qos=0)
    less = ledger.take()
    bench.answer("", "x")
    client.got()
    ledger.take()
    client.subscribe("x", qos=2)
    more = ledger.take()
    bench.answer("", "x")

    assert ([("delivery", "c", "", 6), ("start", "c", "x", "", 6, 0)], []) == (less, more)
    assert [("start", "c", "x", "", 6, 2)] == ledger.take()


def test_a_session_that_ends_drops_what_it_waited_for() -> None:
    """What is not acknowledged, and what was not sent; then its subscriptions end."""
    bench, ledger = recorded(inflight=2, age=10.0)
    client = subscribed(bench, "x")
    say(bench, 6, 9)
    bench.settle()
    client.leave()
    ledger.take()
    bench.clock.advance(11.0)
    bench.edge.clients.expire_sessions()

    assert [
        ("dropped", "c", "", 8, 9),
        ("dropped", "c", "", 6, 6),
        ("dropped", "c", "", 7, 7),
        ("end", "c", "x", "", 9, 1),
    ] == ledger.take()


def test_what_is_beyond_a_limit_is_dropped() -> None:
    """The oldest, as a range; the rest is delivered."""
    bench, ledger = recorded(messages=10)
    client = subscribed(bench, "x")
    client.leave()
    say(bench, 6, 25)
    ledger.take()
    client = Client(bench, "c", clean=False)

    assert numbers(16, 25) == client.got()
    taken = ledger.take()
    assert [("dropped", "c", "", 6, 15)] == [row for row in taken if row[0] == "dropped"]
    assert {("delivery", "c", "", offset) for offset in range(16, 26)} == set(taken[1:])


def test_what_a_journal_has_no_more_is_dropped() -> None:
    """Where retention was faster than the session."""
    bench, ledger = recorded()
    client = subscribed(bench, "x")
    client.leave()
    say(bench, 6, 20)
    bench.journals.trim(JournalId("", 1), 10)
    ledger.take()
    client = Client(bench, "c", clean=False)

    assert numbers(11, 20) == client.got()
    assert ("dropped", "c", "", 6, 10) == ledger.take()[0]


def test_a_session_that_moves_does_not_end() -> None:
    """At its new node it states where it has come to; deliveries follow there."""
    bench, ledger = recorded()
    there, other = recorded()
    client = subscribed(bench, "x")
    say(bench, 6, 8)
    client.got()
    client.leave()
    ledger.take()
    transfer = SessionTransfer(bench.edge, PublishBarrier(), MemoryTable(), MemoryTable())
    state = transfer.freeze("c")
    assert state is not None
    SessionTransfer(there.edge, PublishBarrier(), MemoryTable(), MemoryTable()).adopt("c", state, 2)
    transfer.release("c", b"token")

    assert "c" not in bench.edge.clients.sessions
    assert [] == ledger.take()
    assert [("start", "c", "x", "", 8, 1)] == other.take()


def test_what_holds_is_stated_a_few_sessions_at_a_time() -> None:
    """From where each is, with the passages; those that ended meanwhile say nothing."""
    bench, ledger = recorded("a")
    for number in range(STATED_AT_ONCE + 1):
        subscribed(bench, "a/#", name=f"c{number}")
    ledger.take()
    transition = EpochTransition(
        apex="a",
        left=LogPosition(JournalId("a", 1), FOREVER),
        entered=LogPosition(JournalId("", 1), 4),
    )
    ledger_writer = bench.edge.recording
    assert ledger_writer is not None
    ledger_writer.state(bench.edge.clients.sessions.values())
    bench.edge.clients.delete("c0")
    ledger.take()
    ended = [ledger_writer.advance([transition])]
    told = ledger.rows[0], len(ledger.take())
    ended.append(ledger_writer.advance([transition]))

    assert (False, True, False) == (*ended, ledger_writer.is_stating)
    expected = LedgerRow(
        LedgerKind.PASSAGE,
        0,
        topic_filter="a",
        part=JournalId("", 1),
        offset=4,
        through=FOREVER,
        left=JournalId("a", 1),
    )
    assert (expected, 1 + 2 * STATED_AT_ONCE) == told
    assert [] == ledger.take()


def test_subscriptions_to_sys_are_not_recorded() -> None:
    """Nothing of $SYS is in any journal."""
    bench, ledger = recorded()
    client = Client(bench, "c", clean=False)
    client.subscribe("$SYS/#")
    client.unsubscribe("$SYS/#")
    bench.settle()

    assert [] == ledger.take()
