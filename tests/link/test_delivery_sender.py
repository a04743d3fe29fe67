"""The delivery stream to an edge that is slow or far behind: bounded, in order, all of it once."""

from __future__ import annotations

import pytest

from tests.support.journal import MemoryJournal, authority_of
from tests.support.recorders import cut
from tests.support.runs import messages_in
from txbroker.authority.edge_peer import EdgeCatchUp, EdgeGreeting
from txbroker.authority.retained_messages import RetainedQuery
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.journal.zone_journal import Record
from txbroker.link import delivery_sender as module
from txbroker.link.delivery_sender import READS, DeliverySender
from txbroker.link.frames import FrameReader
from txbroker.model.counters import Counters
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.message import Message
from txbroker.rpc.link_convert import cut_to_wire
from txbroker.v1 import link_pb2, types_pb2
from txbroker.v1.link_pb2 import LinkFrame

SIZE = 100
"""Bytes that each message of these tests counts for."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of four messages, a queue of three."""
    monkeypatch.setattr(module, "WINDOW", 4 * SIZE)
    monkeypatch.setattr(module, "OVERFLOW", 3 * SIZE)


class Port:
    """The owner's end of a link, as far as deliveries go (`EdgePort`)."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.dropped = 0

    def deliver(self, record: Record) -> None:
        self.dropped += not self.lines.deliveries.live(record)
        self.lines.most = max(self.lines.most, self.lines.deliveries.queued)

    def confirm_interest(self, request: int, offset: int, retained: RetainedQuery | None) -> None:
        assert retained is not None
        found = retained.gather()
        list(found.steps())
        answer = link_pb2.InterestAnswer(request=request, offset=offset, retained=len(found))
        self.lines.deliveries.enqueue_frame(LinkFrame(answer=answer), request, found)

    def announce_cut(self, cut: ZoneCut) -> None:
        self.lines.deliveries.enqueue_frame(LinkFrame(cut=cut_to_wire(cut)))

    def announce_forgotten_cut(self, cut: ZoneCut) -> None:
        raise NotImplementedError

    def announce_end(self, apex: str, epoch: int, offset: int | None = None) -> None:
        gone = types_pb2.Gone(apex=apex, epoch=epoch, offset=offset)
        self.lines.deliveries.enqueue_frame(LinkFrame(gone=gone))

    def unpark(self) -> None:
        """Nothing was parked."""

    def close(self, reason: str) -> None:
        """There is no connection."""


class Lines:
    """An owner, and what leaves for one edge: `got` is what the edge has read, in order."""

    def __init__(self, *, lazy: bool = False) -> None:
        self.table = DelegationTable("")
        self.journal: MemoryJournal
        self.authority, self.journal = authority_of("", self.table, lazy=lazy)
        self.authority.open(1)
        self.counters = Counters()
        self.marked = 0
        self.most = 0
        self.number = 0
        self.got: list[str] = []
        self.connect()

    def connect(self, position: int | None = None, *filters: str) -> EdgeCatchUp:
        """A new link; the edge resumes behind a position."""
        self.deliveries = DeliverySender(
            self.authority, self.counters, self.authority.router.make_packet_writer(), self._mark
        )
        self.port = Port(self)
        greeting = EdgeGreeting(
            edge="e", incarnation=1, filters=filters or ("#",), position=position
        )
        accepted = self.authority.reception.connect(greeting, self.port)
        assert accepted is not None
        self.deliveries.peer, catch_up = accepted
        self.deliveries.catch_up(catch_up)
        return catch_up

    def _mark(self) -> None:
        self.marked += 1

    def say(self, count: int = 1, topic: str = "t", qos: int = 1, *, retain: bool = False) -> None:
        """Numbered messages; those of QoS 0 say so."""
        for _ in range(count):
            self.number += 1
            text = f"{self.number}" if qos else f"qos 0 {self.number}"
            payload = text.encode().ljust(SIZE - 64 - len(topic))
            self.authority.publish(Message(topic, payload, qos, retain))

    def read(self, *, consume: bool = True) -> list[str]:
        """One turn; what has left, frames by their kind, kept as read with `consume`."""
        out: list[bytes] = []
        self.deliveries.write_to(out)
        told = []
        for item in FrameReader(1 << 20).read(b"".join(out)):
            if not isinstance(item, LinkFrame):
                told += [message.payload.decode().strip() for message in messages_in(item)]
                if consume:
                    self.deliveries.consumed += SIZE * len(messages_in(item))
            elif not item.HasField("batch"):
                told.append(str(item.WhichOneof("kind")))
        self.got += told
        return told

    def drain(self) -> list[str]:
        """Read until nothing comes any more, and nobody has to come back."""
        while True:
            self.marked = 0
            if not self.read() and not self.marked:
                return self.got


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


# -- a slow edge


def test_slow_edge_costs_no_more_than_the_queue() -> None:
    """What it is too slow for it reads from the journal: all of it, once, in order."""
    lines = Lines()
    lines.say(500)

    assert 4 * SIZE == lines.most
    assert numbers(1, 500) == lines.drain()
    assert (0, False) == (lines.deliveries.queued, lines.deliveries.is_reading)


def test_window_is_what_may_be_on_the_way() -> None:
    """Nothing leaves without credit; a chunk or a batch may pass the limit once."""
    lines = Lines()
    lines.say(50)
    first = lines.read(consume=False)
    second = lines.read(consume=False)

    assert (numbers(1, 4), []) == (first, second)
    lines.deliveries.consumed = 4 * SIZE
    assert numbers(1, 50) == lines.drain()


def test_edge_that_has_caught_up_is_live_again() -> None:
    """What comes then is queued, not read."""
    lines = Lines()
    lines.say(20)
    lines.drain()
    lines.say(2)
    is_reading = lines.deliveries.is_reading
    lines.drain()

    assert (False, numbers(1, 22)) == (is_reading, lines.got)


def test_what_comes_while_it_reads_is_left_to_the_journal() -> None:
    """However long it takes, in whatever steps."""
    lines = Lines()
    lines.say(10)
    for _ in range(100):
        lines.read()
        lines.say(3)

    assert 4 * SIZE == lines.most
    assert numbers(1, 310) == lines.drain()


def test_tells_keep_their_place_among_what_is_read() -> None:
    """A cut or an answer comes behind the last message before it, wherever that is."""
    lines = Lines()
    lines.say(10)
    lines.authority.announce(cut("z"))
    lines.say(10)
    peer = lines.authority.peers.get("e")
    assert peer is not None
    lines.authority.reception.add_interest(peer, "r", 1, True)
    lines.say(2, "r", retain=True)
    lines.authority.reception.add_interest(peer, "r", 2, True)
    lines.say(1)
    last = "22"  # is retained

    assert [
        *numbers(1, 10),
        "cut",
        *numbers(11, 20),
        "answer",
        *numbers(21, 22),
        "answer",
        last,
        "23",
    ] == lines.drain()


def test_filter_that_is_withdrawn_behind_a_cut_takes_nothing_away_before_it() -> None:
    """The subtree's records that the slow edge has not read yet are its own still."""
    lines = Lines()
    lines.connect(None, "z/a", "t")
    lines.say(10, "z/a")
    source = lines.authority.subtrees.prepare("z")
    lines.authority.subtrees.fence(source)
    lines.table.commit(cut("z"))
    lines.authority.subtrees.complete(source)
    lines.say(1)

    assert [*numbers(1, 10), "cut", "11"] == lines.drain()


def test_qos0_has_its_limit_too() -> None:
    """It is in no journal: what does not fit is dropped, and the caller counts it."""
    lines = Lines()
    lines.say(10, qos=0)
    dropped = lines.port.dropped

    assert (4 * SIZE, 6) == (lines.most, dropped)
    assert [f"qos 0 {number}" for number in range(1, 5)] == lines.drain()


def test_qos0_comes_behind_what_is_read() -> None:
    """As long as there is room for it."""
    lines = Lines()
    lines.say(10)
    lines.read()  # four; the rest is read from the journal
    lines.say(1, qos=0)

    assert [*numbers(1, 10), "qos 0 11"] == lines.drain()


def test_what_was_trimmed_meanwhile_is_counted() -> None:
    """Retention comes first; an edge that was too slow hears of it by a counter."""
    lines = Lines()
    lines.say(10)
    lines.journal.trim(7)
    got = lines.drain()

    assert [*numbers(1, 4), *numbers(8, 10)] == got
    assert 3 == lines.counters.get("link.missed")


# -- a catch-up


def test_catch_up_that_is_larger_than_the_window() -> None:
    """It goes on as credit comes back; live messages come behind it, however many."""
    lines = Lines()
    lines.say(30)
    lines.connect(10)
    lines.deliveries.enqueue_frame(LinkFrame(online=link_pb2.Online()))
    lines.read()
    lines.say(20)

    assert 0 == lines.most - 4 * SIZE
    assert [*numbers(11, 30), "online", *numbers(31, 50)] == lines.drain()


def test_live_messages_during_a_catch_up_are_not_queued() -> None:
    """A catch-up may take hours."""
    lines = Lines()
    lines.say(3)
    lines.drain()
    lines.say(20)
    lines.connect(3)
    lines.most = 0
    lines.say(100)

    assert 0 == lines.most
    assert numbers(1, 123) == lines.drain()


def test_others_have_their_turn_during_a_catch_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some chunks the rest is put off, also where nothing in them is for this edge."""
    monkeypatch.setattr(module, "WINDOW", 1 << 20)
    chunk = 3  # records that the journal reads at once
    lines = Lines()
    lines.say(READS * chunk + 1)
    lines.say(READS * chunk, "not wanted")
    lines.say(1)
    lines.connect(0, "t")
    turns = [(len(lines.read()), lines.marked) for _ in range(3)]

    assert [(READS * chunk, 1), (1, 2), (1, 2)] == turns


def test_nothing_is_read_before_it_is_durable() -> None:
    """A slow edge gets no more than others do."""
    lines = Lines(lazy=True)
    lines.say(10)
    lines.journal.sync(8)
    first = lines.drain()[:]
    lines.journal.sync()

    assert numbers(1, 8) == first
    assert numbers(1, 10) == lines.drain()


# -- claims in the middle of it


def inherit(lines: Lines) -> None:
    """The subtree z came here; the edge has not claimed it yet."""
    peer = lines.authority.peers.get("e")
    assert peer is not None
    peer.unclaimed["z"] = lines.authority.delivered


def claim(lines: Lines) -> None:
    peer = lines.authority.peers.get("e")
    assert peer is not None
    lines.deliveries.catch_up(lines.authority.reception.sync(peer, ["#"], {"z": None}))
    lines.deliveries.enqueue_frame(LinkFrame(claimed=link_pb2.Claimed(apexes=["z"])))


def test_claim_of_a_slow_edge_brings_each_record_once() -> None:
    """Those that waited for it come by the claim, the others by what is read already."""
    lines = Lines()
    inherit(lines)
    for _ in range(5):
        lines.say(1, "z/a")
        lines.say(2)
    claim(lines)
    lines.say(1, "z/a")
    lines.say(1)
    waited = ["1", "4", "7", "10", "13"]
    others = [number for number in numbers(1, 15) if number not in waited]

    assert [*others, *waited, "claimed", "16", "17"] == lines.drain()


def test_records_from_before_the_inheritance_do_not_wait() -> None:
    """The zone had the subtree before; a slow edge still has some of that to come."""
    lines = Lines()
    lines.say(10, "z/a")
    lines.authority.announce(cut("z"))
    inherit(lines)
    lines.say(2, "z/a")
    lines.say(1)
    first = lines.drain()[:]
    claim(lines)

    assert [*numbers(1, 10), "cut", "13"] == first
    assert [*first, "11", "12", "claimed"] == lines.drain()


def test_claim_leaves_records_from_before_the_inheritance_where_they_are() -> None:
    """They are read before the cut, and the claim begins behind that."""
    lines = Lines()
    lines.say(10, "z/a")
    lines.authority.announce(cut("z"))
    inherit(lines)
    lines.say(2, "z/a")
    claim(lines)

    assert [*numbers(1, 10), "cut", "11", "12", "claimed"] == lines.drain()
