"""Output is written once at the end of a turn; counters count."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from txbroker.model.counters import Counters
from txbroker.runtime.flush_queue import FlushQueue


class End:
    """Something with output; flushing it may give another one output."""

    def __init__(self, flush_queue: FlushQueue, then: End | None = None) -> None:
        self.flushed = 0
        self._turn = flush_queue
        self._then = then

    def flush(self) -> None:
        """Once more."""
        self.flushed += 1
        if self._then is not None:
            self._turn.mark_dirty(self._then)


def test_each_end_is_flushed_once_a_turn() -> None:
    """However often it was marked; also what flushing marks."""
    later: list[Callable[[], None]] = []
    flush_queue = FlushQueue(later.append)
    last = End(flush_queue)
    first = End(flush_queue, last)
    flush_queue.mark_dirty(first)
    flush_queue.mark_dirty(first)
    assert (first.flushed, last.flushed) == (0, 0)
    flush_queue.end()

    assert (first.flushed, last.flushed) == (1, 1)
    flush_queue.end()
    assert (first.flushed, last.flushed) == (1, 1)


def test_turn_ends_by_itself() -> None:
    """Where nobody ends it; one call is due at a time."""
    later: list[Callable[[], None]] = []
    flush_queue = FlushQueue(later.append)
    end = End(flush_queue)
    flush_queue.mark_dirty(end)
    flush_queue.mark_dirty(End(flush_queue))
    assert len(later) == 1
    later.pop()()
    assert end.flushed == 1
    flush_queue.mark_dirty(end)
    later.pop()()

    assert end.flushed == 2


def test_a_shared_turn_ends_once() -> None:
    """Whoever shares it may end it as often as it likes; nothing is scheduled."""
    later: list[Callable[[], None]] = []
    flush_queue = FlushQueue(later.append)
    end = End(flush_queue)
    seen = []

    def work() -> None:
        for _ in range(2):
            flush_queue.mark_dirty(end)
            flush_queue.end()
            seen.append(end.flushed)

    flush_queue.share(work)
    assert ([0, 0], 1, []) == (seen, end.flushed, later)


def test_one_that_fails_does_not_keep_others_from_being_flushed() -> None:
    """They are flushed soon after, whether the turn is shared or not."""
    later: list[Callable[[], None]] = []
    flush_queue = FlushQueue(later.append)

    class Broken(End):
        def flush(self) -> None:
            raise RuntimeError("a mistake")

    ends = [Broken(flush_queue), End(flush_queue)]

    def work() -> None:
        for end in ends:
            flush_queue.mark_dirty(end)

    def work_alone() -> None:
        work()
        flush_queue.end()

    for number, do in enumerate((lambda: flush_queue.share(work), work_alone), 1):
        with pytest.raises(RuntimeError):
            do()
        assert number - 1 == ends[1].flushed
        later.pop()()
        assert (number, []) == (ends[1].flushed, later)


def test_counters() -> None:
    """They start at 0; a snapshot stays as it was."""
    counters = Counters()
    assert counters.get("a.b") == 0
    counters.add("a.b")
    before = counters.snapshot()
    counters.add("a.b", 4)

    assert (counters.get("a.b"), before) == (5, {"a.b": 1})


def test_end_has_one_turn_of_its_own_at_a_time() -> None:
    """However often it asks; others have theirs first, and it can ask again in its own."""
    later: list[Callable[[], None]] = []
    flush_queue = FlushQueue(later.append)
    end = End(flush_queue)
    flush_queue.mark_next(end)
    flush_queue.mark_next(end)
    before = (len(later), end.flushed)
    later.pop(0)()
    flushed = end.flushed
    flush_queue.mark_next(end)
    later.pop()()

    assert ((1, 0), 1, 2) == (before, flushed, end.flushed)
