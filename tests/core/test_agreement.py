"""The compiled core against its reference: random steps on both, and everything is the same."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.cores import COMPILED, REFERENCE, needs_compiled
from tests.core.steps import Step, Steps
from tests.core.worlds import World


def assert_alike(cache_limit: int, steps: list[Step]) -> None:
    expected, actual = World(REFERENCE, cache_limit), World(COMPILED, cache_limit)
    for count, step in enumerate(steps):
        try:
            assert expected.do(*step) == actual.do(*step)
            assert expected.look() == actual.look()
        except Exception as error:
            error.add_note(f"in step {count}: {step}")
            raise
    for client in range(3):
        assert expected.do("take", client) == actual.do("take", client)


@needs_compiled
@settings(max_examples=80, deadline=None)
@given(st.sampled_from([0, 1, 3, 100_000]), st.integers(0, 2**64), st.integers(1, 120))
def test_whatever_is_done_comes_to_the_same(limit: int, seed: int, count: int) -> None:
    assert_alike(limit, Steps(seed).draw(count))


@needs_compiled
@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 20))
def test_bytes_of_any_kind_come_to_the_same(data: bytes, expected: int) -> None:
    assert_alike(100_000, [("read", 0, data), ("read", 2, data), ("link", expected, data)])


@needs_compiled
@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([b"\x30", b"\x03", b"\0", b"\x01", b"a", b"\x80", b"\x40"])))
def test_bytes_that_are_nearly_packets_come_to_the_same(data: list[bytes]) -> None:
    assert_alike(3, [("pieces", 0, data, True), ("link", 9, b"".join(data))])
