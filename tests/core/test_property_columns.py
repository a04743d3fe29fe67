"""Properties of stored records become columns, beside records that have none."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.cores import COMPILED, CORES, REFERENCE, both, needs_compiled
from tests.support.property_lists import plain_properties, sized, user_property
from txbroker.core import FilledProperties
from txbroker.journal.store.record_format import encode_records
from txbroker.model.errors import PeerError
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packet_kind import PacketKind
from txbroker.mqtt.wire.properties import decode_properties

ALL = (
    b"\x01\x01\x02\xff\xff\xff\xfe"
    + (b"\x03" + sized("tëxt".encode()))
    + (b"\x08" + sized(b"answers/1"))
    + (b"\x09" + sized(b"\0\xff"))
    + user_property("b", "1")
    + user_property("a")
    + user_property("b", "2")
)
EVERY = {
    "expiry": 0xFFFFFFFE,
    "payload_format": 1,
    "content_type": "tëxt".encode(),
    "response_topic": b"answers/1",
    "correlation_data": b"\0\xff",
    "user_properties": [(b"b", b"1"), (b"a", b""), (b"b", b"2")],
}

_expiries = st.just(b"") | st.integers(0, 0xFFFFFFFF).map(lambda n: b"\x02" + n.to_bytes(4))
lists = st.just(b"") | st.builds(lambda one, other: one + other, plain_properties, _expiries)


def body_of(lists: Sequence[bytes]) -> bytes:
    """A batch with a record for each list; some have no list at all."""
    return encode_records(
        [Message("a", b"%d" % n, n % 3, properties=one) for n, one in enumerate(lists)], {}, "n"
    )


def added(core: Any, batches: Sequence[Sequence[bytes]]) -> Any:
    columns = core.Columns()
    first = 1
    for lists in batches:
        columns.add(first, 7, body_of(lists), len(lists))
        first += len(lists)
    return columns


def rows_of(properties: FilledProperties, count: int) -> list[dict[str, Any]]:
    """The properties of each row, without those that it has not."""

    def texts(ends: bytes, data: bytes) -> list[bytes]:
        numbers = array("i", ends)
        assert (0, len(data)) == (numbers[0], numbers[-1])
        return [data[a:b] for a, b in zip(numbers, numbers[1:], strict=False)]

    pairs = list(zip(texts(*properties.names), texts(*properties.values), strict=True))
    ends = array("i", properties.user_properties[1])
    assert len(pairs) == ends[-1]
    values: dict[str, Sequence[Any]] = {
        "expiry": array("q", properties.expiry[1]),
        "payload_format": array("b", properties.payload_format[1]),
        "content_type": texts(*properties.content_type[1:]),
        "response_topic": texts(*properties.response_topic[1:]),
        "correlation_data": texts(*properties.correlation_data[1:]),
        "user_properties": [pairs[a:b] for a, b in zip(ends, ends[1:], strict=False)],
    }
    found: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, column in values.items():
        valid = getattr(properties, name)[0]
        bits = [valid[n >> 3] >> (n & 7) & 1 for n in range(8 * len(valid))]
        assert count == len(column)
        assert (count + 7) // 8 == len(valid)
        assert not any(bits[count:])
        for row, value in enumerate(column):
            if bits[row]:
                found[row][name] = value
            else:
                assert not value
    return found


def decoded(raw: bytes) -> dict[str, Any]:
    """What the decoder finds in a list."""
    one = decode_properties(raw, PacketKind.PUBLISH)

    def encoded(text: str | None) -> bytes | None:
        return None if text is None else text.encode()

    found = {
        "expiry": one.message_expiry,
        "payload_format": one.payload_format,
        "content_type": encoded(one.content_type),
        "response_topic": encoded(one.response_topic),
        "correlation_data": one.correlation_data,
        "user_properties": [(a.encode(), b.encode()) for a, b in one.user_properties] or None,
    }
    return {name: value for name, value in found.items() if value is not None}


@settings(max_examples=60, deadline=None)
@given(batches=st.lists(st.lists(lists, min_size=1, max_size=20), max_size=4))
def test_each_row_has_the_properties_of_its_message(batches: list[list[bytes]]) -> None:
    """In both cores the same, as the decoder finds them."""
    flat = [one for batch in batches for one in batch]
    found = [added(core, batches).finish().properties for core in CORES]

    assert all(one == found[0] for one in found)
    if not any(flat):
        assert found[0] is None
    else:
        assert list(map(decoded, flat)) == rows_of(found[0], len(flat))


@both
def test_every_property_at_once(core: Any) -> None:
    properties = added(core, [[b""] * 9, [b"", ALL, b""]]).finish().properties

    assert [{}] * 10 + [EVERY, {}] == rows_of(properties, 12)


@both
def test_columns_are_of_use_again(core: Any) -> None:
    """What the records before had is forgotten."""
    columns = added(core, [[ALL, ALL]])
    assert [EVERY, EVERY] == rows_of(columns.finish().properties, 2)
    columns.add(10, 7, body_of([b"", b""]), 2)
    assert columns.finish().properties is None
    columns.add(20, 7, body_of([b"", ALL]), 2)
    assert [{}, EVERY] == rows_of(columns.finish().properties, 2)


@both
def test_a_malformed_batch_leaves_no_properties(core: Any) -> None:
    columns = added(core, [[ALL]])
    with pytest.raises(PeerError):
        columns.add(10, 7, body_of([ALL, ALL]) + b"\0", 2)
    columns.add(10, 7, body_of([b"", ALL]), 2)

    assert [EVERY, {}, EVERY] == rows_of(columns.finish().properties, 3)


@needs_compiled
def test_many_rows() -> None:
    """More than any buffer has room for at first."""
    batches = [[(ALL, b"", user_property("n", str(n)))[n % 3] for n in range(2000)]] * 3

    one, other = (added(core, batches).finish() for core in (REFERENCE, COMPILED))

    assert one == other
    assert one.properties is not None
