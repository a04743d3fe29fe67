"""What becomes of bytes that come over a link."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.cores import both, publish
from txbroker.model.publish_run import MOST


def steps(packet_reader: Any) -> list[Any]:
    """All that there is; runs as their packets."""
    found = []
    while (one := packet_reader.step()) is not None:
        found.append(one if isinstance(one, tuple) else one.raw)
    return found


@both
def test_a_batch_is_a_run_of_each_kind(core: Any) -> None:
    packet_reader = core.LinkReader(1000)
    packet_reader.expected = 5
    first, second = publish(b"a", b"1"), publish(b"b", b"2")
    third, fourth = publish(b"a", b"3", 1, 1), publish(b"c", b"4", 2, 1)
    packet_reader.feed(first + second + third + fourth + b"\0\x01x" + publish(b"a") + publish(b"a"))

    assert [
        first + second,
        third + fourth,
        (0, b"x"),
        publish(b"a"),
        (0x30, b"\0\x01a"),
    ] == steps(packet_reader)
    assert 0 == packet_reader.expected


@both
def test_dup_means_nothing(core: Any) -> None:
    packet_reader = core.LinkReader(1000)
    packet_reader.expected = 4
    packet_reader.feed(
        publish(b"a", b"1", 1, 1) + publish(b"a", b"2", 1, 1, 8) + publish(b"a", b"3", 2, 1)
    )
    packet_reader.feed(publish(b"a", b"", 0, 0, 8))

    run = packet_reader.step()
    assert (
        publish(b"a", b"1", 1, 1) + publish(b"a", b"2", 1, 1) + publish(b"a", b"3", 2, 1) == run.raw
    )
    assert (("",), 1) == (run.clients, run.qos)
    assert publish(b"a") == packet_reader.step().raw
    packet_reader.feed(publish(b"a", b"", 1, 1, 8))
    assert (0x32, publish(b"a", b"", 1, 1)[2:]) == packet_reader.step()


@both
def test_what_is_not_plain_counts_as_one_of_the_batch(core: Any) -> None:
    packet_reader = core.LinkReader(1000)
    packet_reader.expected = 3
    packet_reader.feed(publish(b"a") + publish(b"$a", b"", 0, 0, 1) + publish(b"a") + publish(b"b"))

    assert [
        publish(b"a"),
        (0x31, b"\0\x02$a"),
        publish(b"a"),
        (0x30, b"\0\x01b"),
    ] == steps(packet_reader)


@both
def test_what_the_owner_does_not_answer_for_is_in_no_run(core: Any) -> None:
    """Each comes by itself, also between others, and counts as one of the batch."""
    packet_reader = core.LinkReader(1000)
    packet_reader.bailiwick.set("a")
    packet_reader.bailiwick.put("a/b")
    packet_reader.expected = 6
    topics = [b"a", b"a/x", b"a/b", b"a/bb", b"b", b"a/c"]
    packet_reader.feed(b"".join(map(publish, topics)))

    a, a_x, cut_off, a_bb, foreign, a_c = map(publish, topics)
    assert [a + a_x, (0x30, cut_off[2:]), a_bb, (0x30, foreign[2:]), a_c] == steps(packet_reader)
    assert 0 == packet_reader.expected


@both
def test_a_bailiwick_is_a_zone_less_its_cuts(core: Any) -> None:
    """However the cuts lie among one another, and whatever sorts between them."""
    bailiwick = core.LinkReader(1000).bailiwick
    assert bailiwick.has("a") and bailiwick.has("/")
    for apex in ("a/b/c", "a/b", "a/b/d", "a/b-", "a/é"):
        bailiwick.put(apex)
    topics = ["a", "a/b", "a/b/c", "a/b-", "a/b-/x", "a/b.", "a/bb", "a/c", "a/é", "a/éé", "a/ü"]
    assert ["a", "a/b.", "a/bb", "a/c", "a/éé", "a/ü"] == list(filter(bailiwick.has, topics))
    bailiwick.drop("a/b")
    bailiwick.drop("a/x")
    assert ["a/b", "a/b/c"] == list(filter(bailiwick.has, topics[1:5]))
    bailiwick.set("a/b")
    assert ["a/b", "a/b/c"] == list(filter(bailiwick.has, topics))


@both
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_frames_may_come_in_any_pieces(core: Any, size: int) -> None:
    packet_reader = core.LinkReader(1000)
    packet_reader.expected = 3
    frames = publish(b"a", b"1") + publish(b"b", b"2" * 200) + publish(b"c", b"3")
    found = []
    for start in range(0, len(frames), size):
        packet_reader.feed(frames[start : start + size])
        found += steps(packet_reader)

    assert frames == b"".join(found)


@both
def test_a_run_has_a_most_of_messages(core: Any) -> None:
    packet_reader = core.LinkReader(1000)
    packet_reader.expected = MOST + 2
    packet_reader.feed(publish(b"a") * (MOST + 1))

    assert (MOST, 1, None) == (
        packet_reader.step().count,
        packet_reader.step().count,
        packet_reader.step(),
    )
    assert 1 == packet_reader.expected


@both
def test_a_large_frame_comes_only_from_whom_is_trusted(core: Any) -> None:
    packet_reader = core.LinkReader(10)
    packet_reader.feed(b"\0\x01a" + publish(b"a", bytes(10)))

    assert [(0, b"a")] == steps(packet_reader)
    assert "limits.packet" == packet_reader.fault.rule
    packet_reader = core.LinkReader(10)
    packet_reader.trust(1000)
    packet_reader.feed(publish(b"a", bytes(10)) + b"\x40")
    assert [(0x30, b"\0\x01a" + bytes(10))] == steps(packet_reader)
    assert (None, 0x40) == (packet_reader.fault, packet_reader.first_byte)


@both
def test_a_run_goes_before_the_fault_behind_it(core: Any) -> None:
    packet_reader = core.LinkReader(1000)
    packet_reader.expected = 2
    packet_reader.feed(publish(b"a") + b"\x30\xff\xff\xff\xff\xff")

    assert publish(b"a") == packet_reader.step().raw
    assert packet_reader.step() is None
    assert "section 2.2.3" == packet_reader.fault.rule
