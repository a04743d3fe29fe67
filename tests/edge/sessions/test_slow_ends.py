"""
A session with very many filters ends: what it costs others, and what holds until it is done.

Time passes only in steps, as in `test_map_changes`.
"""

from __future__ import annotations

import gc
import time
from unittest import mock

from tests.edge.sessions.test_map_changes import busy_bench
from tests.support.edge_bench import Client, EdgeBench
from txbroker.runtime.slices import LONGEST

FILTERS = [f"a/{number}/+" for number in range(300)]


def subscribed(bench: EdgeBench, name: str, *, clean: bool = True) -> Client:
    """A client with all of the filters, which the root's owner has confirmed."""
    client = Client(bench, name, clean=clean)
    client.subscribe(*FILTERS)
    for topic_filter in FILTERS:
        bench.answer("", topic_filter)
    bench.settle()
    bench.take()
    return client


def withdrawn(bench: EdgeBench) -> list[str]:
    """The filters that the root's owner was told of since the last call."""
    return [event[2] for event in bench.take() if event[1] == "remove"]


def test_end_of_a_session_is_worked_off_in_turns() -> None:
    """Its filters are withdrawn one after the other; nothing goes to it meanwhile."""
    bench = busy_bench()
    bench.online("")
    client = subscribed(bench, "c")
    client.leave()
    early = withdrawn(bench)
    bench.deliver("", "a/299/x", "late", qos=0)
    bench.settle()

    assert len(early) < 100
    assert set(FILTERS) == {*early, *withdrawn(bench)}
    assert 0 == bench.edge.interests.filters
    assert not [packet for packet in client.events if "late" in repr(packet)]


def test_successor_keeps_the_filters_that_it_has_by_then() -> None:
    """Though those of the one before are still to be withdrawn."""
    bench = busy_bench()
    bench.online("")
    subscribed(bench, "c").leave()
    early = withdrawn(bench)
    gone, kept = early[0], next(f for f in FILTERS if f not in early)
    successor = Client(bench, "c")
    successor.subscribe(gone, kept)
    bench.settle()
    left = withdrawn(bench)
    for topic_filter in (gone, kept):
        bench.answer("", topic_filter)
    bench.deliver("", gone.replace("+", "x"), "one")
    bench.deliver("", kept.replace("+", "x"), "two", offset=2)

    assert {gone, kept}.isdisjoint(left)
    assert {gone, kept} == bench.route("").interest.filters
    assert ["Suback", "one", "two"] == successor.got()


def test_no_turn_is_long_when_a_session_ends() -> None:
    """Of real time, with as many filters as a session may have."""
    bench = EdgeBench()
    bench.online("")
    client = Client(bench, "c")
    for start in range(0, 10_000, 1000):
        client.subscribe(*(f"a/{number}/+" for number in range(start, start + 1000)))
    turns: list[float] = []
    gc.collect()
    gc.disable()  # a collection looks at all that other tests left
    try:
        with mock.patch.object(bench.edge.slices, "_now", time.thread_time):
            while not turns or bench.edge.interests.filters:
                start = time.thread_time()
                if turns:
                    bench.work()
                else:
                    client.leave()
                turns.append(time.thread_time() - start)
    finally:
        gc.enable()

    assert len(turns) > 3
    assert max(turns) < 10 * LONGEST
