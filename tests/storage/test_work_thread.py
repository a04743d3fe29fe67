"""Works that wait for the disk, side by side."""

from __future__ import annotations

import threading

import pytest

from txbroker.storage.work_thread import LANES, one_by_one, side_by_side


@pytest.mark.parametrize("count", [1, 2, LANES])
def test_works_meet(count: int) -> None:
    """Each work waits for all others: one after the other none would ever end."""
    meeting = threading.Barrier(count)

    side_by_side([lambda: meeting.wait(30) and None] * count)

    assert not meeting.broken


def test_all_of_many_are_done() -> None:
    """However many there are, a few threads do them, each once."""
    done: list[int] = []

    side_by_side([lambda n=n: done.append(n) for n in range(50)])

    assert sorted(done) == list(range(50))


def test_none_is_none() -> None:
    """Nothing to sync is no mistake."""
    side_by_side([])


def test_the_error_comes_when_all_have_ended() -> None:
    """Else a log that is still synced would be closed below the thread."""
    ended = threading.Event()
    meeting = threading.Barrier(2)

    def fail() -> None:
        meeting.wait(30)
        raise OSError("no disk")

    def take_time() -> None:
        meeting.wait(30)
        ended.wait(0.05)
        ended.set()

    with pytest.raises(OSError, match="no disk"):
        side_by_side([fail, take_time])
    assert ended.is_set()


def test_one_by_one_keeps_the_order() -> None:
    """For tests that fail each call of a disk in turn."""
    done: list[int] = []
    one_by_one([lambda: done.append(1), lambda: done.append(2)])
    assert [1, 2] == done
