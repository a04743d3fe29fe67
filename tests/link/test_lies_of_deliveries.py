"""Deliveries of topics that the owner does not answer for: nobody gets them, the link ends."""

from __future__ import annotations

import pytest

from tests.link.test_life import Pair
from tests.link.test_senders import Owner, is_taken
from tests.support.pair import receive
from tests.support.recorders import cut
from txbroker.link.frames import LinkError, encode_frame
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.wire.encoder import encode_publish
from txbroker.rpc.link_convert import cut_to_wire
from txbroker.v1 import link_pb2, types_pb2
from txbroker.v1.link_pb2 import Batch, LinkFrame


class Liar:
    """The owner of zone `a` as its edge hears it; a client there wants everything."""

    def __init__(self, apex: str = "a") -> None:
        self.pair = Pair(apex)
        self.pair.client.subscribe(("#", 2), ("$SYS/#", 2))
        self.pair.link.pump()
        self.pair.alarms.advance(20)  # nobody knows where the root is
        self._offset = 0

    def deliver(self, *topics: str, qos: int = 0, kind: Batch.Kind.ValueType = Batch.LIVE) -> None:
        """A batch of them, each with its topic as its payload."""
        first = self._offset + 1 if qos else 0
        self._offset += len(topics) if qos else 0
        header = Batch(kind=kind, epoch=1, count=len(topics), offsets=[first])
        packets = [
            encode_publish(topic, topic.encode(), qos, False, False, 1 if qos else None)
            for topic in topics
        ]
        self._say(encode_frame(LinkFrame(batch=header)) + b"".join(packets))

    def cut(self, apex: str) -> None:
        self._say(encode_frame(LinkFrame(cut=cut_to_wire(cut(apex, 5)))))

    def end(self, apex: str) -> None:
        gone = types_pb2.Gone(apex=apex, epoch=5)
        self._say(encode_frame(LinkFrame(gone=gone)))

    def retain(self, topic: str) -> None:
        """The answer to an interest, with this message."""
        answer = link_pb2.InterestAnswer(request=1, offset=0, retained=1)
        header = Batch(kind=Batch.RETAINED, stream=1, count=1)
        self._say(encode_frame(LinkFrame(answer=answer)) + encode_frame(LinkFrame(batch=header)))
        self._say(encode_publish(topic, b"retained", 0, True, False, None))

    def claimed(self, apex: str) -> None:
        self._say(encode_frame(LinkFrame(claimed=link_pb2.Claimed(apexes=[apex]))))

    @property
    def heard(self) -> list[str]:
        self.pair.link.pump()
        return [payload.decode() for payload in self.pair.client.payloads]

    def _say(self, data: bytes) -> None:
        receive(self.pair.link.edge_end, data)


@pytest.mark.parametrize("kind", [Batch.LIVE, Batch.CATCH_UP])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic", ["b", "b/x", "ab/x", "A/x", "a /x", "/a/x", "$SYS/broker", "$a"])
def test_a_topic_outside_of_the_zone_is_refused(
    topic: str, qos: int, kind: Batch.Kind.ValueType
) -> None:
    """Also in the middle of a batch of others, which are the zone's."""
    liar = Liar()
    liar.deliver("a", "a/x", "a//", qos=qos, kind=kind)
    with pytest.raises(LinkError, match="not of zone 'a'"):
        liar.deliver("a/1", topic, "a/2", qos=qos, kind=kind)
    assert ["a", "a/x", "a//", "a/1"] == liar.heard


@pytest.mark.parametrize("topic", ["$SYS", "$SYS/broker"])
def test_what_is_local_to_a_node_comes_from_no_other(topic: str) -> None:
    """Not from the root's owner either, which has the other topics with a dollar."""
    liar = Liar("")
    liar.pair.client.subscribe(("$a/#", 0))
    liar.pair.link.pump()
    liar.deliver("$a/x", "$SYSTEM", qos=0)
    with pytest.raises(LinkError, match="not of zone ''"):
        liar.deliver(topic)
    assert ["$a/x"] == liar.heard


@pytest.mark.parametrize("qos", [0, 1])
def test_a_topic_that_the_owner_has_cut_off_is_refused(qos: int) -> None:
    """It is another node's until the owner says that it came back."""
    liar = Liar()
    liar.deliver("a/b/x", qos=qos)
    liar.cut("a/b")
    liar.deliver("a/bc", "a/c", qos=qos)
    liar.end("a/b")
    liar.deliver("a/b/y", qos=qos)
    liar.cut("a/b")
    with pytest.raises(LinkError, match="not of zone 'a'"):
        liar.deliver("a/1", "a/b/z", qos=qos)
    assert ["a/b/x", "a/bc", "a/c", "a/b/y", "a/1"] == liar.heard


def test_cuts_that_a_new_link_tells_of_count() -> None:
    liar = Liar()
    liar.pair.table.commit(cut("a/b"))
    liar.pair.link.cut()
    liar.pair.connect()
    with pytest.raises(LinkError, match="not of zone 'a'"):
        liar.deliver("a/b/x")
    assert [] == liar.heard


def test_a_retained_message_of_a_zone_that_was_cut_off_is_refused() -> None:
    liar = Liar()
    liar.cut("a/b")
    with pytest.raises(LinkError, match="not of zone 'a'"):
        liar.retain("a/b/x")


def test_what_was_claimed_comes_behind_the_cut_that_overtook_the_claim() -> None:
    """The owner had it meanwhile, and reads it from its journal; later there is no more of it."""
    liar = Liar()
    liar.pair.link.edge_end.sync(["#"], ["a/b"])
    liar.cut("a/b")
    liar.deliver("a/b/x", "a/c", qos=1, kind=Batch.CATCH_UP)
    liar.claimed("a/b")
    with pytest.raises(LinkError, match="not of zone 'a'"):
        liar.deliver("a/b/y", qos=1, kind=Batch.CATCH_UP)
    assert ["a/b/x", "a/c"] == liar.heard


@pytest.mark.parametrize("is_told", [True, False])
def test_what_was_claimed_ends_where_the_new_owner_begins(is_told: bool) -> None:
    """The owner of the cut says where; one that never answers the claim would go on for ever."""
    liar = Liar()
    liar.pair.link.edge_end.sync(["#"], ["a/b"])
    liar.cut("a/b")
    below = liar.pair.edge.zones.add(cut("a/b", 5))
    liar.pair.edge.on_owner(below, 5, LogPosition(JournalId("a", 1 if is_told else 2), 2))
    liar.deliver("a/b/1", "a/b/2", qos=1, kind=Batch.CATCH_UP)
    if is_told:
        with pytest.raises(LinkError, match="not of zone 'a'"):
            liar.deliver("a/b/3", qos=1, kind=Batch.CATCH_UP)
    else:  # of another epoch: that says nothing here
        liar.deliver("a/b/3", qos=1, kind=Batch.CATCH_UP)
    assert "a/b/2" in liar.heard


def test_nothing_of_a_cut_is_live_though_a_claim_is_open() -> None:
    liar = Liar()
    liar.pair.link.edge_end.sync(["#"], ["a/b"])
    liar.cut("a/b")
    with pytest.raises(LinkError, match="not of zone 'a'"):
        liar.deliver("a/b/x")


def test_the_core_takes_nothing_of_a_cut_behind_a_known_header() -> None:
    """Deliveries of QoS 0 go to clients there, and no end of a link sees them."""
    owner = Owner()
    link, router = owner.bench.link, owner.bench.edge.router
    assert not is_taken(router, link.edge_end.reader.packet_reader, owner.deliver(b"1"))
    link.edge_end.work()
    assert is_taken(router, link.edge_end.reader.packet_reader, owner.deliver(b"2"))
    receive(link.edge_end, encode_frame(LinkFrame(cut=cut_to_wire(cut("x")))))
    assert not is_taken(router, link.edge_end.reader.packet_reader, owner.deliver(b"3"))
    with pytest.raises(LinkError, match="not of zone ''"):
        link.edge_end.work()
    assert [b"1", b"2"] == owner.client.payloads


def test_a_retained_message_that_no_answer_has_told_of_is_refused() -> None:
    """It would count as one of an answer that comes later."""
    liar = Liar()
    header = Batch(kind=Batch.RETAINED, stream=1, count=1)
    liar._say(encode_frame(LinkFrame(batch=header)))

    with pytest.raises(LinkError, match="belongs to an answer"):
        liar._say(encode_publish("a/x", b"retained", 0, True, False, None))
