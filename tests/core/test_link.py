"""What becomes of bytes that come over a link."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.cores import both, publish
from txbroker.model.publish_run import MOST


def steps(inlet: Any) -> list[Any]:
    """All that there is; runs as their packets."""
    found = []
    while (one := inlet.step()) is not None:
        found.append(one if isinstance(one, tuple) else one.raw)
    return found


@both
def test_a_batch_is_a_run_of_each_kind(core: Any) -> None:
    inlet = core.LinkInlet(1000)
    inlet.expected = 5
    first, second = publish(b"a", b"1"), publish(b"b", b"2")
    third, fourth = publish(b"a", b"3", 1, 1), publish(b"c", b"4", 2, 1)
    inlet.feed(first + second + third + fourth + b"\0\x01x" + publish(b"a") + publish(b"a"))

    assert [
        first + second,
        third + fourth,
        (0, b"x"),
        publish(b"a"),
        (0x30, b"\0\x01a"),
    ] == steps(inlet)
    assert 0 == inlet.expected


@both
def test_dup_means_nothing(core: Any) -> None:
    inlet = core.LinkInlet(1000)
    inlet.expected = 4
    inlet.feed(publish(b"a", b"1", 1, 1) + publish(b"a", b"2", 1, 1, 8) + publish(b"a", b"3", 2, 1))
    inlet.feed(publish(b"a", b"", 0, 0, 8))

    run = inlet.step()
    assert (
        publish(b"a", b"1", 1, 1) + publish(b"a", b"2", 1, 1) + publish(b"a", b"3", 2, 1) == run.raw
    )
    assert (("",), 1) == (run.clients, run.qos)
    assert publish(b"a") == inlet.step().raw
    inlet.feed(publish(b"a", b"", 1, 1, 8))
    assert (0x32, publish(b"a", b"", 1, 1)[2:]) == inlet.step()


@both
def test_what_is_not_plain_counts_as_one_of_the_batch(core: Any) -> None:
    inlet = core.LinkInlet(1000)
    inlet.expected = 3
    inlet.feed(publish(b"a") + publish(b"$a", b"", 0, 0, 1) + publish(b"a") + publish(b"b"))

    assert [
        publish(b"a"),
        (0x31, b"\0\x02$a"),
        publish(b"a"),
        (0x30, b"\0\x01b"),
    ] == steps(inlet)


@both
def test_what_the_owner_does_not_answer_for_is_in_no_run(core: Any) -> None:
    """Each comes by itself, also between others, and counts as one of the batch."""
    inlet = core.LinkInlet(1000)
    inlet.bailiwick.set("a")
    inlet.bailiwick.put("a/b")
    inlet.expected = 6
    topics = [b"a", b"a/x", b"a/b", b"a/bb", b"b", b"a/c"]
    inlet.feed(b"".join(map(publish, topics)))

    a, a_x, cut_off, a_bb, foreign, a_c = map(publish, topics)
    assert [a + a_x, (0x30, cut_off[2:]), a_bb, (0x30, foreign[2:]), a_c] == steps(inlet)
    assert 0 == inlet.expected


@both
def test_a_bailiwick_is_a_zone_less_its_cuts(core: Any) -> None:
    """However the cuts lie among one another, and whatever sorts between them."""
    bailiwick = core.LinkInlet(1000).bailiwick
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
    inlet = core.LinkInlet(1000)
    inlet.expected = 3
    frames = publish(b"a", b"1") + publish(b"b", b"2" * 200) + publish(b"c", b"3")
    found = []
    for start in range(0, len(frames), size):
        inlet.feed(frames[start : start + size])
        found += steps(inlet)

    assert frames == b"".join(found)


@both
def test_a_run_has_a_most_of_messages(core: Any) -> None:
    inlet = core.LinkInlet(1000)
    inlet.expected = MOST + 2
    inlet.feed(publish(b"a") * (MOST + 1))

    assert (MOST, 1, None) == (inlet.step().count, inlet.step().count, inlet.step())
    assert 1 == inlet.expected


@both
def test_a_large_frame_comes_only_from_whom_is_trusted(core: Any) -> None:
    inlet = core.LinkInlet(10)
    inlet.feed(b"\0\x01a" + publish(b"a", bytes(10)))

    assert [(0, b"a")] == steps(inlet)
    assert "limits.packet" == inlet.fault.rule
    inlet = core.LinkInlet(10)
    inlet.trust(1000)
    inlet.feed(publish(b"a", bytes(10)) + b"\x40")
    assert [(0x30, b"\0\x01a" + bytes(10))] == steps(inlet)
    assert (None, 0x40) == (inlet.fault, inlet.first_byte)


@both
def test_a_run_goes_before_the_fault_behind_it(core: Any) -> None:
    inlet = core.LinkInlet(1000)
    inlet.expected = 2
    inlet.feed(publish(b"a") + b"\x30\xff\xff\xff\xff\xff")

    assert publish(b"a") == inlet.step().raw
    assert inlet.step() is None
    assert "section 2.2.3" == inlet.fault.rule
