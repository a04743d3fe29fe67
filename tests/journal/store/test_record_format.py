"""The body of a batch: any messages and runs of any publishers come back as they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.property_lists import plain_properties
from tests.support.runs import PlainRun, run_of
from txbroker.journal.store.record_format import (
    MOST_RECORDS,
    Piece,
    decode_records,
    encode_records,
    read_marks,
)
from txbroker.journal.zone_journal import Record
from txbroker.mqtt.wire.message import Message
from txbroker.storage.segment import Batch

Plain = tuple[int, str, bytes, int, bool, str, str]
Source = Message | tuple[list[Message], str]
"""A message, or the messages of a run and its edge."""

texts = st.text(max_size=20).filter(lambda text: "\0" not in text)
names = st.sampled_from(["", "root", "kitchen", "küche"])
topics = st.text(min_size=1, max_size=200).filter(lambda text: not set(text) & set("\0+#"))
messages = st.builds(
    Message,
    topics | st.sampled_from(["a", "a/b"]),
    st.binary(max_size=300),
    st.integers(0, 2),
    st.booleans(),
    texts,
    edge=names,
    properties=plain_properties,
)


def in_run(*qos: int) -> st.SearchStrategy[list[Message]]:
    one = st.builds(
        Message,
        topics,
        st.binary(max_size=300),
        st.sampled_from(qos),
        client_id=texts,
        properties=plain_properties,
    )
    return st.lists(one, min_size=1, max_size=10)


sources = st.lists(messages | st.tuples(in_run(0) | in_run(1, 2), names), min_size=1, max_size=10)


def pieces_of(made: Sequence[Source]) -> list[Piece]:
    return [one if isinstance(one, Message) else run_of(*one) for one in made]


def flat(made: Sequence[Source], node: str) -> list[Plain]:
    """What a batch that begins at 10 has to give, where `node` has written it."""
    found: list[tuple[Message, str]] = []
    for one in made:
        if isinstance(one, Message):
            found.append((one, one.edge))
        else:
            found += [(each, one[1]) for each in one[0]]
    return [
        (10 + at, one.topic, one.payload, one.qos, one.retain, one.client_id, edge or node)
        for at, (one, edge) in enumerate(found)
    ]


def properties_of(made: Sequence[Source]) -> list[bytes]:
    """Those of each message in `flat`."""
    messages = [one for each in made for one in ([each] if isinstance(each, Message) else each[0])]
    return [one.properties for one in messages]


def plain(record: Record) -> Plain:
    """What has to be equal of a record."""
    one = record.message
    who = one.client_id, one.edge
    return record.offset, one.topic, one.payload, one.qos, one.retain, *who


def batch_of(made: Sequence[Source], node: str = "n") -> Batch:
    body = encode_records(pieces_of(made), {}, node)
    return Batch(first=10, count=len(flat(made, node)), time=3, body=body)


@given(
    made=sources,
    marks=st.dictionaries(
        st.tuples(texts, st.integers(0, 1 << 40), texts, st.integers(0, 1 << 40)),
        st.integers(0, 1 << 60),
    ),
    node=names,
    skip=st.integers(0, 40),
    limit=st.integers(0, 40) | st.just(MOST_RECORDS),
)
def test_a_batch_is_what_was_put_into_it(
    made: list[Source],
    marks: dict[tuple[str, int, str, int], int],
    node: str,
    skip: int,
    limit: int,
) -> None:
    """From any of them on, in the middle of a run, too."""
    body = encode_records(pieces_of(made), marks, node)
    wanted = flat(made, node)
    batch = Batch(first=10, count=len(wanted), time=3, body=body)

    has_retained = any(isinstance(one, Message) and one.retain for one in made)
    assert (tuple(marks.items()), has_retained) == read_marks(body)
    found = decode_records(batch, skip, limit)
    assert wanted[skip : skip + limit] == [plain(record) for record in found]
    listed = properties_of(made)[skip : skip + limit]
    assert listed == [record.message.properties for record in found]


@given(made=sources)
def test_the_packet_of_a_record_is_the_one_that_was_stored(made: list[Source]) -> None:
    """Nothing is made anew for a link: all of them together are the batch's last bytes."""
    batch = batch_of(made)
    packets = b"".join(record.message.link_packet for record in decode_records(batch))

    raw = [one.raw if isinstance(one, PlainRun) else one.link_packet for one in pieces_of(made)]
    assert b"".join(raw) == packets
    assert batch.body.endswith(packets)


@given(made=sources, size=st.integers(1, 2000))
def test_decoding_stops_with_the_message_that_takes_the_size(made: list[Source], size: int) -> None:
    """A chunk has room for so many bytes, and is never empty."""
    found = decode_records(batch_of(made), size=size)
    sizes = [record.message.size for record in found]

    assert sum(sizes[:-1]) < size
    assert sum(sizes) >= size or len(found) == len(flat(made, "n"))


def test_lengths_of_every_width() -> None:
    """Of a packet, in one to four bytes, skipped and read."""
    sizes = [0, 120, 121, 122, 200, 16_370, 16_380, 2_097_140, 2_097_150, 5]
    made = [Message("t", bytes(size), 1 + size % 2) for size in sizes]
    batch = batch_of([(made, "")])
    for skip in range(len(sizes)):
        found = decode_records(batch, skip)
        assert sizes[skip:] == [len(record.message.payload) for record in found]


def test_what_a_batch_costs_does_not_grow_with_its_messages() -> None:
    """Those of one client; of several, by an index each."""
    for clients, each in ((1, 0), (3, 2)):
        costs = set()
        for count in (100, 1000):
            made = [Message("a/b", b"x", 1, client_id=f"c{at % clients}") for at in range(count)]
            costs.add(len(batch_of([(made, "e")]).body) - count * (len(made[0].link_packet) + each))
        assert 1 == len(costs)
        assert costs.pop() < 50


def test_as_many_publishers_as_there_are_messages() -> None:
    """In the largest batch that there is."""
    made = [Message("t", b"", client_id=str(at)) for at in range(MOST_RECORDS)]
    clients = tuple(one.client_id for one in made)
    run = PlainRun(
        count=len(made),
        size=1,
        qos=0,
        clients=clients,
        places=range(len(made)),
        raw=made[0].link_packet * len(made),
        edge="e",
    )
    batch = Batch(first=1, count=len(made), time=1, body=encode_records([run], {}, "n"))

    found = decode_records(batch)
    assert clients == tuple(record.message.client_id for record in found)
    assert {"e"} == {record.message.edge for record in found}


@pytest.mark.parametrize("before", [1, 300])
@pytest.mark.parametrize("kind", [bytes, list])
def test_publishers_of_runs_from_several_clients(
    kind: Callable[[Sequence[int]], Sequence[int]], before: int
) -> None:
    """Each message keeps its own, in whatever form a run says so and however many came before."""
    others = [Message("t", b"", client_id=f"other {number}") for number in range(before)]
    made = [Message("t", b"", client_id=name) for name in ("b", "a", "a", "c", "other 0", "b")]
    runs: list[PlainRun] = []
    for messages in (others[:200], others[200:], made, made[::-1]):
        if messages:
            run = run_of(messages)
            places = None if run.places is None else kind(run.places)
            runs.append(attrs.evolve(run, places=places))
    expected = [one.client_id for one in (*others, *made, *made[::-1])]
    body = encode_records(runs, {}, "n")

    found = decode_records(Batch(first=1, count=len(expected), time=1, body=body))
    assert expected == [record.message.client_id for record in found]
