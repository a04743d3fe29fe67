"""Stored batches become columns, whatever is in them; what is no batch is an error."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.core.cores import COMPILED, CORES, REFERENCE, both, needs_compiled, publish
from tests.journal.store.test_record_format import Source, flat, pieces_of, sources
from txbroker.core.reference.stored import MOST, PROBLEMS
from txbroker.journal.store.record_format import encode_records
from txbroker.model.errors import PeerError
from txbroker.mqtt.wire.message import Message

Row = tuple[int, str, bytes, int, bool, str, str]


def rows(filled: Any) -> list[tuple[Row, int]]:
    """What columns say of each record: as `flat` has it, and the time."""

    def texts(column: Any) -> list[bytes]:
        ends = array("i", column.ends)
        assert len(column.data) == ends[-1]
        return [column.data[ends[n] : ends[n + 1]] for n in range(filled.rows)]

    bits = [filled.retain[n >> 3] >> (n & 7) & 1 for n in range(8 * len(filled.retain))]
    assert not any(bits[filled.rows :])
    topics, payloads = texts(filled.topics), texts(filled.payloads)
    offsets, created = array("q", filled.offset), array("q", filled.created)
    publishers = [filled.publishers[place] for place in array("i", filled.publisher)]
    lengths = {len(one) for one in (topics, payloads, offsets, created, publishers, filled.qos)}
    assert {filled.rows} == lengths
    return [
        (
            (offsets[n], topics[n].decode(), payloads[n], filled.qos[n], bits[n] == 1)
            + publishers[n],
            created[n],
        )
        for n in range(filled.rows)
    ]


def body_of(*messages: Message, node: str = "n") -> bytes:
    return encode_records(messages, {}, node)


@settings(max_examples=50)
@given(
    batches=st.lists(sources, max_size=5),
    gaps=st.lists(st.integers(0, 1000), min_size=5, max_size=5),
    marks=st.dictionaries(
        st.tuples(st.text(max_size=3), st.just(1), st.text(max_size=3), st.just(2)),
        st.integers(0, 1 << 60),
        max_size=3,
    ),
)
def test_records_come_back_as_they_were(
    batches: list[list[Source]], gaps: list[int], marks: dict[Any, int]
) -> None:
    expected: list[tuple[Row, int]] = []
    given: list[tuple[int, int, bytes, int]] = []
    first = 1
    for number, (made, gap) in enumerate(zip(batches, gaps, strict=False)):
        first += gap
        wanted = flat(made, "n")
        given.append((first, number, encode_records(pieces_of(made), marks, "n"), len(wanted)))
        expected += [((one[0] - 10 + first, *one[1:]), number) for one in wanted]
        first += len(wanted)

    for core in CORES:
        columns = core.Columns()
        for batch in given:
            columns.add(*batch)
        assert len(expected) == columns.count
        assert sum(len(r[1].encode()) + len(r[2]) for r, _ in expected) == columns.size
        filled = columns.finish()
        assert expected == rows(filled)
        assert len(set(filled.publishers)) == len(filled.publishers)
        assert 0 == columns.count == columns.size


@both
def test_columns_are_of_use_again(core: Any) -> None:
    columns = core.Columns()
    columns.add(1, 7, body_of(Message("a", b"1", client_id="c")), 1)
    first = columns.finish()
    columns.add(2, 8, body_of(Message("b", b"2", 1, True, client_id="d")), 1)

    assert [((1, "a", b"1", 0, False, "c", "n"), 7)] == rows(first)
    assert [((2, "b", b"2", 1, True, "d", "n"), 8)] == rows(columns.finish())
    assert (0, [], b"\0" * 4) == (
        (empty := columns.finish()).rows,
        empty.publishers,
        empty.topics.ends,
    )


@both
def test_payloads_may_be_left_out(core: Any) -> None:
    columns = core.Columns(payload=False)
    columns.add(1, 7, body_of(Message("a", b"12"), Message("b", b"3", 2)), 2)

    filled = columns.finish()
    assert ([0, 0, 0], b"") == (list(array("i", filled.payloads.ends)), filled.payloads.data)
    assert b"ab" == filled.topics.data


@both
def test_places_say_where_records_lie(core: Any) -> None:
    columns = core.Columns()
    body = body_of(Message("a", b"1"), Message("b", b"2"))
    columns.add(100, 7, body, 2, array("H", [3, 65_534]).tobytes())

    assert [103, 65_634] == [row[0] for row, _ in rows(columns.finish())]
    for wrong in ([3], [3, 3], [4, 3], [1, 2, 3]):
        with pytest.raises(PeerError, match=r"offset 70000 is malformed: its places"):
            columns.add(70_000, 7, body, 2, array("H", wrong).tobytes())


@both
def test_offsets_are_those_that_were_asked_for(core: Any) -> None:
    columns = core.Columns(10, 20)
    two = body_of(Message("a", b""), Message("b", b""))
    for first in (8, 9, 19, 20, 1 << 62, (1 << 64) - 1):
        with pytest.raises(PeerError, match="its offsets are not those that come next"):
            columns.add(first, 0, two, 2)
    columns.add(10, 0, two, 2)
    with pytest.raises(PeerError, match="offset 11 is malformed: its offsets"):
        columns.add(11, 0, two, 2)
    columns.add(12, 0, two, 2)
    columns.add(18, 0, two, 2)

    assert [10, 11, 12, 13, 18, 19] == [row[0] for row, _ in rows(columns.finish())]
    with pytest.raises(PeerError):
        columns.add(19, 0, body_of(Message("a", b"")), 1)


HEAD = b"\0" + b"\0\0" + b"\1\0" + b"\1\0" + b"\1\0e" + b"\1\0c"
MALFORMED = {
    "it ends too early": [
        b"",
        HEAD[:6],
        HEAD[:8],
        HEAD[:-1],
        HEAD,
        HEAD + b"\x30",
        HEAD + b"\x30\x80",
        HEAD + publish(b"t")[:-1],
        b"\0\1\0\1\0\1\0" + HEAD[7:],
    ],
    "no publisher is named": [b"\0\0\0\0\0\1\0" + HEAD[7:], b"\0\0\0\1\0\0\0" + HEAD[7:]],
    "an index is too high": [
        b"\0\0\0\2\0\1\0" + b"\0\0\0\0\1\0c" + b"\2\0" + publish(b"t"),
        b"\0\0\0\1\0\2\0" + b"\0\0\0\0\1\0c" + b"\2\0" + publish(b"t"),
    ],
    "a name is no UTF-8": [
        HEAD[:-1] + b"\xff" + publish(b"t"),
        HEAD[:9] + b"\xff" + HEAD[10:] + publish(b"t"),
    ],
    "a packet is no PUBLISH": [
        HEAD + b"\x40\2\0\1",
        HEAD + b"\x36" + publish(b"t")[1:],
        HEAD + b"\x30\x80\x80\x80\x80\1",
        HEAD + b"\x30\1\0",
        HEAD + b"\x30\3\0\2t",
        HEAD + b"\x32\4\0\1t\0",
    ],
    "a topic is not valid": [
        HEAD + publish(topic) for topic in (b"", b"\xff", b"a/+", b"#", b"\0", b"\xed\xa0\x80")
    ],
    "something follows its last packet": [HEAD + publish(b"t") * 2, HEAD + publish(b"t") + b"\0"],
}


@both
@pytest.mark.parametrize(
    ("problem", "body"), [(problem, body) for problem, all_ in MALFORMED.items() for body in all_]
)
def test_malformed_bodies_are_one_line_and_leave_nothing(
    core: Any, problem: str, body: bytes
) -> None:
    columns, sieve = core.Columns(), core.Sieve(lambda _: True)
    for number in range(3):
        columns.add(1 + number, 0, body_of(Message("t", b"1", 0, True)), 1)

    line = f"the stored batch of offset 77 is malformed: {problem}"
    with pytest.raises(PeerError) as raised:
        columns.add(77, 0, body, 1)
    assert line == str(raised.value)
    if problem != "a name is no UTF-8":
        with pytest.raises(PeerError) as raised:
            sieve.sift(77, body, 1, 0, 100)
        assert line == str(raised.value)
    columns.add(77, 0, body_of(Message("t", b"1")), 1)

    found = [(row[0], row[2], row[4]) for row, _ in rows(columns.finish())]
    assert [(1, b"1", True), (2, b"1", True), (3, b"1", True), (77, b"1", False)] == found


@both
@pytest.mark.parametrize("count", [0, MOST + 1, 1 << 40])
def test_a_number_of_records_that_no_batch_has(core: Any, count: int) -> None:
    body = body_of(Message("t", b""))
    with pytest.raises(PeerError, match=PROBLEMS[9]):
        core.Columns().add(1, 0, body, count)
    with pytest.raises(PeerError, match=PROBLEMS[9]):
        core.Sieve(lambda _: True).sift(1, body, count, 0, 10)


@settings(max_examples=50)
@given(made=sources, wanted=st.sets(st.integers(0, 30)), low=st.integers(0, 40))
def test_a_sieve_leaves_what_is_asked_for(made: list[Source], wanted: set[int], low: int) -> None:
    """By topic and by offset; what is left are the same records at the same offsets."""
    body = encode_records(pieces_of(made), {("e", 1, "z", 2): 3}, "n")
    before = [(one, 5) for one in flat(made, "n")]
    left = [(r, t) for r, t in before if len(r[1]) in wanted and low <= r[0] < 40]
    for core in CORES:
        sift_and_look(core, body, before, left, wanted, low)


def sift_and_look(
    core: Any,
    body: bytes,
    before: list[tuple[Row, int]],
    left: list[tuple[Row, int]],
    wanted: set[int],
    low: int,
) -> None:
    asked: list[str] = []

    def matches(topic: str) -> bool:
        asked.append(topic)
        return len(topic) in wanted

    sieve = core.Sieve(matches)
    found = sieve.sift(10, body, len(before), low, 40)

    if len(left) == len(before):
        assert found is None
    elif not left:
        assert (b"", b"") == found
    else:
        columns = core.Columns(low, 40)
        columns.add(10, 5, found[0], len(left), found[1])
        assert left == rows(columns.finish())
        assert len(found[0]) <= len(body)
    assert len(asked) == len(set(asked))
    assert found == sieve.sift(10, body, len(before), low, 40)


@both
def test_what_matching_raises_comes_through(core: Any) -> None:
    def fail(topic: str) -> bool:
        raise RuntimeError(topic)

    with pytest.raises(RuntimeError, match="t"):
        core.Sieve(fail).sift(1, body_of(Message("t", b"")), 1, 0, 10)


@both
def test_many_batches_of_one_record(core: Any) -> None:
    columns = core.Columns()
    for number in range(1000):
        who = f"c{number % 7}"
        columns.add(number, number, body_of(Message("a/b", b"x" * number, client_id=who)), 1)

    filled = columns.finish()
    assert [(f"c{n}", "n") for n in range(7)] == filled.publishers
    assert [n % 7 for n in range(1000)] == list(array("i", filled.publisher))
    assert sum(range(1000)) == len(filled.payloads.data)


def damaged(made: list[Source], seed: int, changes: int) -> bytes:
    """A body that somebody has spoiled."""
    body = bytearray(encode_records(pieces_of(made), {("e", 1, "z", 2): 3}, "n"))
    chance = random.Random(seed)
    for _ in range(changes):
        place = chance.randrange(len(body))
        if chance.random() < 0.7:
            body[place] = chance.choice([0, 1, 2, 127, 128, 255, chance.randrange(256)])
        else:
            del body[place : place + chance.randrange(4)]
    return bytes(body)


def outcome(core: Any, body: bytes, count: int, places: bytes) -> Any:
    """All that a core makes of a batch."""
    found: list[Any] = []
    columns = core.Columns()
    sieve = core.Sieve(lambda topic: len(topic) % 2 == 1)
    for work in (
        lambda: columns.add(1, 2, body, count, places),
        lambda: sieve.sift(1, body, count, 2, 1 << 40),
    ):
        try:
            found.append(work())
        except PeerError as error:
            found.append(str(error))
    return found, columns.count, columns.size, tuple(columns.finish())


@needs_compiled
@settings(max_examples=100)
@given(
    made=sources,
    seed=st.integers(0, 1 << 32),
    changes=st.integers(0, 4),
    count=st.none() | st.integers(0, MOST + 1),
    places=st.binary(max_size=8),
)
@example(made=[Message("t", b"")], seed=0, changes=0, count=1, places=b"\xff\xff")
def test_both_agree_on_what_somebody_has_spoiled(
    made: list[Source], seed: int, changes: int, count: int | None, places: bytes
) -> None:
    number = len(flat(made, "n")) if count is None else count
    given = damaged(made, seed, changes), number, places

    assert outcome(REFERENCE, *given) == outcome(COMPILED, *given)
