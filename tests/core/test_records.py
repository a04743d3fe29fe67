"""Stored records are found by filter, whatever is in them; what is no batch is an error."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.cores import COMPILED, CORES, REFERENCE, both, needs_compiled
from tests.core.test_columns import body_of, damaged
from tests.journal.store.test_record_format import (
    Source,
    flat,
    pieces_of,
    properties_of,
    sources,
)
from txbroker.core.reference.stored import MOST
from txbroker.journal.store.record_format import encode_records, to_batch
from txbroker.model.errors import PeerError
from txbroker.model.topics import matches
from txbroker.mqtt.wire.message import OVERHEAD, Message

LEVELS = st.sampled_from(["", "a", "b", "ab", "ü", "$a", "a long level that has many bytes"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.builds(
    lambda levels, ends: "/".join([*levels, *ends]),
    st.lists(LEVELS | st.just("+"), min_size=1, max_size=3),
    st.sampled_from([(), ("#",)]),
).filter(bool) | st.just("#")


def records_of(core: Any, *batches: tuple[int, bytes, int], **limits: int) -> Any:
    found = core.StoredRecords(**limits)
    for batch in batches:
        if not found.add(*batch):
            break
    return found


def wholes(records: Any) -> list[tuple[Any, ...]]:
    """All records, when they were looked at in every way."""
    found = [tuple(records.record(place)) for place in range(len(records))]
    assert [one[0] for one in found] == records.offsets()
    assert b"".join(one[-1] for one in found) == records.packets()
    heads = []
    for place, (offset, topic, payload, qos, _, _, _, properties, packet) in enumerate(found):
        size = len(payload) + len(properties) + len(topic) + OVERHEAD
        heads.append((place, offset, topic, qos, size))
        assert (place, place + 1) == tuple(records.place_above(o) for o in (offset - 1, offset))
        assert packet.endswith(payload)
    shared = [head for head in heads if not head[2].startswith("$")]
    assert shared == records.find(["#"], 0, len(found) + 1)
    with pytest.raises(IndexError):
        records.record(len(found))
    assert records.size >= len(records.packets())
    return found


def read(
    core: Any, batches: list[tuple[int, bytes, int]], after: int, **limits: int
) -> list[tuple[Any, ...]]:
    """As a reader does: one piece after the other."""
    found: list[tuple[Any, ...]] = []
    while True:
        due = [batch for batch in batches if batch[0] + batch[2] > after + 1]
        records = records_of(core, *due, after=after, **limits)
        found += wholes(records)
        if records.through == after:
            return found
        assert records.through > after
        after = records.through


@settings(max_examples=50)
@given(
    batches=st.lists(sources, max_size=4),
    gaps=st.lists(st.integers(0, 5), min_size=4, max_size=4),
    after=st.integers(0, 25),
    through=st.integers(0, 40),
    most=st.integers(1, 12),
    room=st.integers(1, 300),
    least=st.integers(0, 2),
)
def test_records_come_back_as_they_were(
    batches: list[list[Source]],
    gaps: list[int],
    after: int,
    through: int,
    most: int,
    room: int,
    least: int,
) -> None:
    """Those that are asked for, each once and with its publisher, whatever is read at a time."""
    expected: list[Any] = []
    given: list[tuple[int, bytes, int]] = []
    first = 1
    for made, gap in zip(batches, gaps, strict=False):
        first += gap
        all_of = flat(made, "n")
        given.append((first, encode_records(pieces_of(made), {}, "n"), len(all_of)))
        expected += [
            (one[0] - 10 + first, *one[1:], listed)
            for one, listed in zip(all_of, properties_of(made), strict=True)
        ]
        first += len(all_of)
    wanted = [one for one in expected if after < one[0] <= through and one[3] >= least]

    for core in CORES:
        found = read(core, given, after, through=through, most=most, room=room, least=least)
        assert wanted == [one[:-1] for one in found]


@both
@pytest.mark.parametrize("limits", [{"most": 4}, {"room": 31}, {"through": 4}])
def test_batches_are_not_divided(core: Any, limits: dict[str, int]) -> None:
    """But the first one, where it is too large; nothing is then left out or comes twice."""
    body = body_of(*(Message("t", b"123", 1) for _ in range(3)))
    batches = [(1, body, 3), (4, body, 3), (7, body, 3)]
    assert [1, 2, 3] == records_of(core, *batches, **limits).offsets()
    assert [3] == records_of(core, *batches, after=2, **limits).offsets()[:1]
    found = records_of(
        core, (1, body_of(*(Message("t", b"123", 1) for _ in range(9))), 9), **limits
    )
    assert ([1, 2, 3, 4], 4) == (found.offsets(), found.through)


@both
@pytest.mark.parametrize(
    ("limits", "offsets", "through"),
    [
        ({"least": 1}, [11], 11),
        ({"least": 1, "most": 1}, [], 10),
        ({"least": 1, "through": 10}, [], 10),
        ({"through": 5}, [], 5),
        ({"after": 11}, [], 11),
        ({"after": 3, "through": 2}, [], 3),
    ],
)
def test_what_was_looked_at_is_known(
    core: Any, limits: dict[str, int], offsets: list[int], through: int
) -> None:
    """Holes, and what has a lower QoS, too."""
    found = records_of(core, (10, body_of(Message("t", b"0"), Message("t", b"1", 1)), 2), **limits)
    assert (offsets, through) == (found.offsets(), found.through)


@given(
    topics=st.lists(TOPICS, min_size=1, max_size=20),
    filters=st.lists(FILTERS, max_size=4),
    after=st.integers(0, 25),
    most=st.integers(1, 20),
)
def test_records_are_found_by_filter(
    topics: list[str], filters: list[str], after: int, most: int
) -> None:
    """The first ones that match, in order and each once."""
    body = body_of(*(Message(topic, b"", 1) for topic in topics))
    expected = [
        place
        for place, topic in enumerate(topics)
        if place + 1 > after and any(matches(one, topic) for one in filters)
    ]
    for core in CORES:
        records = records_of(core, (1, body, len(topics)))
        found = records.find(dict.fromkeys(filters), after, 1000)
        assert expected == [place for place, *_ in found]
        assert found[:most] == records.find(filters, after, most)
        sizes = [len(topic) + OVERHEAD for topic in topics]
        assert sum(sizes[records.place_above(after) :]) == records.size_above(after)


EXPIRING = b"\x02\0\0\0\x05"

KINDS = st.sampled_from(
    [
        *[(1, False, b"")] * 6,
        (1, False, b"\x01\x01"),
        (2, False, b""),
        (0, False, b""),
        (1, True, b""),
        (1, False, EXPIRING),
    ]
)


@given(
    topics=st.lists(TOPICS, min_size=1, max_size=20),
    kinds=st.lists(KINDS, min_size=20, max_size=20),
    filters=st.lists(FILTERS, min_size=1, max_size=4),
    after=st.integers(0, 25),
    through=st.integers(0, 25),
    most=st.integers(1, 20),
    room=st.integers(1, 200),
)
def test_matching_records_are_a_run(
    topics: list[str],
    kinds: list[tuple[int, bool, bytes]],
    filters: list[str],
    after: int,
    through: int,
    most: int,
    room: int,
) -> None:
    """All up to the first that is not plain, each once and as it was published."""
    messages = [
        Message(topic, b"%d" % place, qos, retain, properties=properties)
        for place, (topic, (qos, retain, properties)) in enumerate(zip(topics, kinds, strict=False))
    ]
    body, outcomes = body_of(*messages), []
    for core in CORES:
        records = records_of(core, (1, body, len(topics)))
        run, reached = records.run(filters, after, through, most=most, room=room)
        found = [] if run is None else [run.offset(index) for index in range(run.count)]
        wanted = [
            offset
            for _, offset, *_ in records.find(filters, after, 1000)
            if after < offset <= reached
        ]
        assert wanted == found and len(found) <= most
        assert after <= reached <= max(after, through)
        expected = [messages[offset - 1] for offset in found]
        assert all((one.qos, one.retain, one.expiry) == (1, False, None) for one in expected)
        if run is not None:
            assert run.raw == b"".join(one.link_packet for one in expected)
            assert [one.payload for one in expected] == [
                run.message(index).payload for index in range(run.count)
            ]
        is_end = reached == max(after, min(through, len(topics)))
        if (
            not is_end
            and len(found) < most
            and not sum(len(m.link_packet) for m in expected) >= room
        ):
            stop = messages[reached]
            is_plain = stop.qos == 1 and not stop.retain and stop.expiry is None
            assert not is_plain or stop.topic.startswith("$")
        outcomes.append((found, reached))
    assert 1 == len({str(one) for one in outcomes})


@both
def test_what_expires_is_read_by_itself(core: Any) -> None:
    """A journal knows its age, and a run does not."""
    messages = [Message("a", b"1", 1), Message("a", b"2", 1, properties=b"\2\0\0\0\5")]
    records = records_of(core, (1, body_of(*messages), 2))
    run, reached = records.run(["#"], 0, 2, most=9, room=999)

    assert (1, 1) == (run.count, reached)
    assert (None, 1) == records.run(["#"], 1, 2, most=9, room=999)


@both
def test_packets_of_another_node_are_records(core: Any) -> None:
    """Nobody says who published them."""
    messages = [Message("a", b"1", 1), Message("b", b"2", 2, True, properties=b"\x01\x01")]
    packets = b"".join(message.link_packet for message in messages)
    records = core.StoredRecords()
    records.add(*to_batch([100, 65_635], packets))

    assert [
        (100, "a", b"1", 1, False, "", "", b"", messages[0].link_packet),
        (65_635, "b", b"2", 2, True, "", "", b"\x01\x01", messages[1].link_packet),
    ] == wholes(records)
    with pytest.raises(OverflowError):
        to_batch([100, 65_636], packets)


@both
def test_batches_come_in_order(core: Any) -> None:
    body = body_of(Message("a", b"1"), Message("b", b"2"))
    records = records_of(core, (5, body, 2))
    for first, places in ((6, b""), (1, array("H", [1, 5]).tobytes()), (1 << 63, b"")):
        with pytest.raises(PeerError):
            records.add(first, body, 2, places)


def outcome(core: Any, body: bytes, count: int, places: bytes) -> Any:
    """All that a core makes of a batch."""
    records = core.StoredRecords(3, 50, least=1)
    try:
        said: Any = records.add(1, body, count, places)
    except PeerError as error:
        return str(error)
    return said, records.through, wholes(records), records.find(["#", "a/+"], 4, 5)


@needs_compiled
@settings(max_examples=100)
@given(
    made=sources,
    seed=st.integers(0, 1 << 32),
    changes=st.integers(0, 4),
    count=st.none() | st.integers(0, MOST + 1),
    places=st.none() | st.lists(st.integers(0, 100), max_size=8),
)
def test_both_make_the_same_of_anything(
    made: list[Source], seed: int, changes: int, count: int | None, places: list[int] | None
) -> None:
    """Nothing that is damaged is read beyond its end."""
    raw = b"" if places is None else array("H", places).tobytes()
    given = damaged(made, seed, changes), len(flat(made, "n")) if count is None else count, raw

    assert outcome(REFERENCE, *given) == outcome(COMPILED, *given)
