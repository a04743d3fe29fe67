"""
The journal service of real nodes: what readers who keep their own place get.

Records once given are given again, the same at the same offsets, whatever happened to the node.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest

from tests.support.history import History, Row
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient
from txbroker.journal.history.journal_service import MOST_STREAMS
from txbroker.v1 import journal_pb2

from .commands import output, wait_until
from .strangers import counter

NOW = time.time_ns() // 1000


def say(node: NodeProcess, *payloads: bytes, topic: str = "t", qos: int = 1, **flags: bool) -> None:
    """Publish, and wait until they are taken."""
    with RawClient(node.mqtt) as client:
        client.connect("talker")
        for payload in payloads:
            client.publish(topic, payload, qos=qos, **flags)
        client.ping()


def payloads(found: list[Row]) -> list[bytes]:
    return [row.payload for row in found]


@pytest.fixture
def solo(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[NodeProcess]:
    keys = getattr(request, "param", {})
    with NodeProcess(tmp_path, topology("solo", zone="", **keys)) as node:
        yield node
    assert not any("Traceback" in text for text in node.lines)


# -- one node that many tests ask


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeProcess, History]]:
    """A node that has been told a few things; tests of what it answers change nothing."""
    folder = tmp_path_factory.mktemp("told")
    with (
        NodeProcess(folder, topology("solo", zone="", journal="all")) as node,
        RawClient(node.mqtt) as one,
        RawClient(node.mqtt) as other,
    ):
        one.connect("one")
        other.connect("other")
        one.publish("home/küche/temp", b"0", qos=1)
        other.publish("home/bad/temp", b"1", qos=2)
        one.publish("home/küche/licht", b"2", qos=0)
        one.publish("home/küche/temp", b"3", qos=1, retain=True)
        other.publish("$own", b"4", qos=1)
        one.publish("home/küche", b"5", qos=1)
        with History(node.grpc) as history:
            yield node, history
    assert not any("Traceback" in text for text in node.lines)


def test_records_are_what_was_published(told: tuple[NodeProcess, History]) -> None:
    _, history = told
    part = history.parts()["", 1]

    assert (1, 7, False, False) == (part.first, part.end, part.closed, part.cut_off)
    found = history.read("", 1)
    times = [row.time for row in found]
    assert times == sorted(times)
    assert NOW < times[0] <= times[-1] < NOW + 3600 * 10**6
    assert [
        Row(1, "home/küche/temp", b"0", 1, False, "one", "solo", times[0]),
        Row(2, "home/bad/temp", b"1", 2, False, "other", "solo", times[1]),
        Row(3, "home/küche/licht", b"2", 0, False, "one", "solo", times[2]),
        Row(4, "home/küche/temp", b"3", 1, True, "one", "solo", times[3]),
        Row(5, "$own", b"4", 1, False, "other", "solo", times[4]),
        Row(6, "home/küche", b"5", 1, False, "one", "solo", times[5]),
    ] == found


@pytest.mark.parametrize(("start", "end"), [(1, 7), (2, 3), (3, 6), (6, 7), (4, 4), (7, 7)])
def test_a_range(told: tuple[NodeProcess, History], start: int, end: int) -> None:
    found = told[1].read("", 1, start=start, end=end)

    assert list(range(start, end)) == [row.offset for row in found]


def test_nothing_lies_behind_the_end(told: tuple[NodeProcess, History]) -> None:
    """Whoever asks for more is told how far there is something."""
    history = told[1]
    assert 7 == history.replies("", 1, end=100)[-1].through
    assert [(9, [])] == [(r.through, list(r.batches)) for r in history.replies("", 1, start=9)]


@pytest.mark.parametrize(
    ("topic_filter", "offsets"),
    [
        ("home/küche/temp", [1, 4]),
        ("home/+/temp", [1, 2, 4]),
        ("home/küche/#", [1, 3, 4, 6]),
        ("#", [1, 2, 3, 4, 6]),
        ("$own", [5]),
        ("nothing/here", []),
    ],
)
def test_a_filter(told: tuple[NodeProcess, History], topic_filter: str, offsets: list[int]) -> None:
    """Nothing else is sent."""
    history = told[1]
    assert offsets == [row.offset for row in history.read("", 1, filter=topic_filter)]
    inside = [offset for offset in offsets if 2 <= offset < 5]
    found = history.read("", 1, start=2, end=5, filter=topic_filter)
    assert inside == [row.offset for row in found]


def test_a_range_of_time(told: tuple[NodeProcess, History]) -> None:
    """From one up to the other, exclusive; and where it begins."""
    history = told[1]
    times = [row.time for row in history.read("", 1)]
    chosen = history.read("", 1, since=times[2], until=times[5])

    assert [t for t in times if times[2] <= t < times[5]] == [row.time for row in chosen]
    assert times.index(times[3]) + 1 == history.seek("", 1, times[3])
    assert 1 == history.seek("", 1, 0)
    assert 7 == history.seek("", 1, times[5] + 1)
    assert [] == history.read("", 1, since=times[5] + 1)


@pytest.mark.parametrize("call", ["Records", "Seek"])
def test_a_part_that_is_not_kept(told: tuple[NodeProcess, History], call: str) -> None:
    for zone, epoch, shown in (("", 2, "zone '' at epoch 2"), ("a\nb", 1, r"zone 'a\nb' at")):
        code, line = told[1].refusal(call, zone=zone, epoch=epoch)
        assert grpc.StatusCode.NOT_FOUND == code
        assert line.startswith("node 'solo' keeps no journal of " + shown)
        assert "\n" not in line


@pytest.mark.parametrize("topic_filter", ["a/#/b", "+a", "a\0"])
def test_a_filter_that_is_none(told: tuple[NodeProcess, History], topic_filter: str) -> None:
    code, line = told[1].refusal("Records", epoch=1, filter=topic_filter)

    assert grpc.StatusCode.INVALID_ARGUMENT == code
    assert line.startswith(f"filter {topic_filter!r}: ")
    assert "\n" not in line


def test_numbers_that_nobody_expects(told: tuple[NodeProcess, History]) -> None:
    history, most = told[1], (1 << 64) - 1
    assert [most] == [r.through for r in history.replies("", 1, start=most, end=most)]
    assert 7 == history.replies("", 1, start=1, end=most)[-1].through
    assert [] == history.read("", 1, since=-(1 << 63), until=-1)
    assert 1 == history.seek("", 1, -(1 << 63))
    assert 7 == history.seek("", 1, (1 << 63) - 1)
    assert grpc.StatusCode.NOT_FOUND == history.refusal("Records", epoch=most)[0]


# -- what happens to a node


@pytest.mark.parametrize(
    "solo",
    [{"durability": d, "journal": "all"} for d in ("sync", "interval", "memory")],
    indirect=True,
    ids=["sync", "interval", "memory"],
)
def test_a_kill_changes_nothing_that_was_shown(solo: NodeProcess) -> None:
    """Records that were given are there, at their offsets, and others get none of these."""
    shown: list[Row] = []
    for turn in range(2):
        say(solo, *(b"%d %d" % (turn, n) for n in range(20)), qos=turn)
        with History(solo.grpc) as history:
            part = history.parts()["", 1]
            found = history.read("", 1, end=part.end)
            assert shown == found[: len(shown)]
            assert [b"%d %d" % (turn, n) for n in range(20)] == payloads(found)[-20:]
            shown = found
        solo.kill()
        solo.start()
    with History(solo.grpc) as history:
        assert shown == history.read("", 1)


@pytest.mark.parametrize(
    "solo", [{"journal": "all", "sync_interval": "30s"}], indirect=True, ids=["30s"]
)
def test_qos_0_is_shown_as_soon_as_somebody_asks(solo: NodeProcess) -> None:
    """Though nobody else waits for it."""
    with RawClient(solo.mqtt) as client, History(solo.grpc) as history:
        client.connect("talker")
        for number in range(3):
            client.publish("t", b"%d" % number)
            client.ping()
            assert number + 2 == history.parts()["", 1].end
        assert [b"0", b"1", b"2"] == payloads(history.read("", 1))


def test_so_many_readers_and_no_more(solo: NodeProcess) -> None:
    """One more is refused; when one has gone another one may come. The node can end meanwhile."""
    say(solo, *([bytes(200_000)] * 60))
    with History(solo.grpc) as history:
        request = journal_pb2.RecordsRequest(epoch=1)
        streams = [history.stub.Records(request) for _ in range(MOST_STREAMS)]
        for stream in streams:
            next(stream)
        code, line = history.refusal("Records", epoch=1)
        assert grpc.StatusCode.RESOURCE_EXHAUSTED == code
        assert f"node 'solo' serves {MOST_STREAMS} readers at once; try again later" == line
        assert 1 == counter(solo, "history.refused")

        streams[0].close()
        wait_until(lambda: len(history.replies("", 1, end=2)) == 1, what="room")
        solo.terminate()


def test_readers_may_go_at_any_time(solo: NodeProcess) -> None:
    """In the middle of a reply that they do not take; the node says nothing of it."""
    say(solo, *([bytes(200_000)] * 60))
    for _ in range(3):
        with History(solo.grpc) as history:
            wait_until(partial(has_room, history), what="room")  # the last ones may not be gone yet
            streams = [
                history.stub.Records(journal_pb2.RecordsRequest(epoch=1))
                for _ in range(MOST_STREAMS)
            ]
            for stream in streams:
                next(stream)
    with History(solo.grpc) as history:
        wait_until(lambda: has_room(history), what="room")
    assert not any('"error"' in text for text in solo.lines)


def has_room(history: History) -> bool:
    """True if all streams that there may be are free."""
    streams = [
        history.stub.Records(journal_pb2.RecordsRequest(epoch=1, end=2))
        for _ in range(MOST_STREAMS)
    ]
    try:
        return all(1 == len(list(stream)) for stream in streams)
    except grpc.RpcError:
        return False


def test_a_reader_beside_who_publishes(solo: NodeProcess) -> None:
    """Reads on and on, each time from where it has come; nothing is missed or comes twice."""
    ended = threading.Event()

    def publish() -> None:
        with RawClient(solo.mqtt) as client:
            client.connect("talker")
            for number in range(300):
                client.publish(f"t/{number % 7}", b"%d" % number, qos=number % 3)
        ended.set()

    writer = threading.Thread(target=publish)
    writer.start()
    found: list[Row] = []
    with History(solo.grpc) as history:
        is_last = False
        while not is_last:
            is_last = ended.is_set()
            end = history.parts()["", 1].end
            start = found[-1].offset + 1 if found else 1
            found += history.read("", 1, start=start, end=end)
    writer.join()
    assert [b"%d" % n for n in range(300)] == payloads(found)
    assert list(range(1, 301)) == [row.offset for row in found]


# -- what happens to a zone


class Pair:
    """A root, and a child with the zone `a`."""

    def __init__(self, folder: Path) -> None:
        self.root = NodeProcess(folder, topology("root", zone=""))
        self.child = NodeProcess(folder, topology("child", zone="a", parent=self.root.grpc))

    def start(self) -> None:
        self.root.start()
        self.join()

    def join(self) -> None:
        self.child.start(ready=False)
        self.child.wait_event("join.granted", 30.0, zone="a")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    try:
        pair.start()
        yield pair
    finally:
        pair.child.close()
        pair.root.close()
    for text in (*pair.root.lines, *pair.child.lines):
        assert "Traceback" not in text, text


def state(history: History, zone: str) -> dict[int, tuple[int, bool, bool]]:
    """End, closed and cut off of the parts of a zone, by epoch."""
    return {
        epoch: (part.end, part.closed, part.cut_off)
        for (name, epoch), part in history.parts().items()
        if name == zone
    }


def test_a_zone_that_goes_back_and_comes_again(pair: Pair) -> None:
    """Its part is at the parent, closed, the same as before; the next one is at the child."""
    say(pair.child, b"1", b"2", topic="a/x")
    with History(pair.child.grpc) as history:
        assert {1: (3, False, False)} == state(history, "a")
        before = history.read("a", 1)

    output("retire", pair.child.grpc)

    assert 0 == pair.child.wait()
    with History(pair.root.grpc) as history:
        assert {1: (3, True, False)} == state(history, "a")
        assert {1: (1, False, False)} == state(history, "")
        assert before == history.read("a", 1)
    say(pair.root, b"3", topic="a/x")
    pair.join()
    say(pair.root, b"4", topic="a/x")
    with History(pair.child.grpc) as history:
        (epoch,) = {e for e, (_, is_closed, _) in state(history, "a").items() if not is_closed}
        assert epoch > 1
        assert [b"4"] == payloads(history.read("a", epoch))
    with History(pair.root.grpc) as history:
        assert [b"3"] == payloads(history.read("", 1))
        assert before == history.read("a", 1)


def test_a_zone_that_was_reclaimed(pair: Pair) -> None:
    """What its node has is closed and cut off until it is replayed or dropped."""
    say(pair.child, b"1", b"2", topic="a/x")
    with History(pair.child.grpc) as history:
        before = history.read("a", 1)
    pair.child.kill()
    output("reclaim", pair.root.grpc, "a")
    say(pair.root, b"3", topic="a/x")
    with History(pair.root.grpc) as history:
        assert {} == state(history, "a")
        assert [b"3"] == payloads(history.read("", 1))

    pair.child.start()
    pair.child.wait_event("zone.divergent", zone="a", epoch=1)

    with History(pair.child.grpc) as history:
        assert {1: (3, True, True)} == state(history, "a")
        assert before == history.read("a", 1)
        output("divergent", "replay", pair.child.grpc, "a")
        pair.child.wait_event("join.granted", zone="a")
        wait_until(lambda: len(state(history, "a")) == 2, what="the next part")
        states = state(history, "a")
        assert (3, True, False) == states.pop(1)
        ((_, (end, is_closed, is_cut_off)),) = states.items()
        assert (1, False, False) == (end, is_closed, is_cut_off)
        assert before == history.read("a", 1)


def test_a_node_that_is_not_granted_its_zone_yet(pair: Pair) -> None:
    """It shows what it has, open, as it may go on."""
    say(pair.child, b"1", topic="a/x")
    pair.child.kill()
    pair.root.kill()

    pair.child.start()

    with History(pair.child.grpc) as history:
        assert {1: (2, False, False)} == state(history, "a")
        assert [b"1"] == payloads(history.read("a", 1))
