"""The message expiry interval in a property list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txbroker.mqtt.wire.message_expiry import expiry_of, with_expiry
from txbroker.mqtt.wire.properties import Properties, encode_properties


def listed(expiry: int | None) -> bytes:
    """A list with an interval among other properties."""
    return encode_properties(
        Properties(content_type="t", message_expiry=expiry, user_properties=(("a", "b"),))
    )


@pytest.mark.parametrize("left, written", [(59.1, 60), (59.0, 59), (0.1, 1), (0.0, 0), (-5.0, 0)])
def test_what_is_left_is_rounded_up(left: float, written: int) -> None:
    """A message must not expire early; one that is over has 0."""
    assert listed(written) == with_expiry(listed(60), left)


@given(now=st.floats(0, 1e9), expiry=st.integers(0, 0xFFFFFFFF))
def test_no_time_adds_nothing(now: float, expiry: int) -> None:
    """What a sum and a difference of seconds leave may be a trifle more than the interval."""
    assert expiry == expiry_of(with_expiry(listed(expiry), (now + expiry) - now + 1e-6))


def test_a_list_without_interval_stays() -> None:
    """It does not expire."""
    assert expiry_of(listed(None)) is None
    assert listed(None) == with_expiry(listed(None), 5.0)
