"""The compiled core against its reference: random steps on both, and everything is the same."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.cores import COMPILED, REFERENCE, needs_compiled, publish
from tests.core.worlds import World

clients = st.integers(0, 2)
packet_ids = st.integers(1, 6)
apexes = st.sampled_from(["", "a", "a/b", "b", "\u00e9", "a/b/c", "a/"])
topics = st.sampled_from([b"a", b"a/b", b"b", b"a/b/c", "\u00e9/x".encode(), b"/", b"a/", b"bb"])
filters = st.sampled_from(
    ["a", "a/b", "#", "+", "+/b", "a/#", "\u00e9/+", "/", "a/+/c", "+/+", "b"]
)
odd_topics = (
    st.binary(max_size=20)
    | st.text(max_size=12).map(lambda text: text.encode(errors="surrogatepass"))
    | st.sampled_from([b"$SYS", b"a/+", b"#", b"", b"a\0", b"x" * 130])
)
payloads = st.binary(max_size=8) | st.sampled_from([b"p" * 120, b"q" * 16_380, b"r" * 200_000])


@st.composite
def publishes(draw: Any) -> bytes:
    topic = draw(topics if draw(st.integers(0, 5)) else odd_topics)
    packet_id = draw(packet_ids if draw(st.integers(0, 9)) else st.integers(0, 65_535))
    flags = 0 if draw(st.integers(0, 7)) else draw(st.sampled_from([1, 8, 9]))
    return publish(topic, draw(payloads), draw(st.sampled_from([0, 0, 1, 2])), packet_id, flags)


def lengthened(packet: bytes) -> bytes:
    """The same with a remaining length of more bytes than it needs, where that can be."""
    size = next(n for n in range(1, 5) if packet[n] < 128)
    spelled = packet[1 : size + 1]
    if size == 4:
        return packet
    return packet[:1] + spelled[:-1] + bytes((spelled[-1] | 128, 0)) + packet[size + 1 :]


answers = st.builds(
    lambda first, packet_id: bytes((first, 2)) + packet_id.to_bytes(2),
    st.sampled_from([0x40, 0x50, 0x62, 0x70]),
    packet_ids,
)
packets = st.one_of(
    publishes(),
    publishes(),
    publishes(),
    answers,
    publishes().map(lengthened),
    st.sampled_from([b"\xc0\0", b"\xe0\0", b"\0\x02xy", b"\x40\x02\0\0", b"\x60\x02\0\x01"]),
)


@st.composite
def streams(draw: Any) -> bytes:
    """Packets, mostly whole ones."""
    data = b"".join(draw(st.lists(packets, max_size=6)))
    harm = draw(st.integers(0, 11))
    if harm == 0:
        data += draw(st.binary(max_size=8))
    elif harm == 1 and data:
        place = draw(st.integers(0, min(len(data) - 1, 40)))
        data = data[:place] + draw(st.binary(min_size=1, max_size=2)) + data[place + 1 :]
    return data


runs = st.integers(0, 3)
parts = st.sampled_from(["p", "q"])
sizes = st.integers(0, 300) | st.sampled_from([1000, 263_000])
qos = st.integers(0, 2)
subscriptions = st.tuples(
    st.just("subscribe"),
    clients,
    filters,
    st.integers(0, 1),
    qos,
    st.sampled_from([True, True, True, True, False]),
)
steps = st.one_of(
    st.tuples(st.just("publish"), clients, streams(), parts, st.booleans()),
    st.tuples(st.just("publish"), clients, streams(), parts, st.booleans()),
    st.tuples(st.just("acknowledge_all"), clients),
    st.tuples(st.just("acknowledge_all"), clients),
    st.tuples(st.just("cut"), runs, st.integers(0, 5)),
    st.tuples(st.just("read"), clients, streams()),
    st.tuples(st.just("link"), st.integers(0, 6), streams()),
    st.tuples(st.just("takes"), clients, st.sampled_from([True, True, False])),
    st.tuples(st.just("route"), st.sampled_from(["routes", "bounds"]), apexes, st.integers(0, 4)),
    st.tuples(st.just("interest"), st.sampled_from([True, True, False]), filters, clients),
    subscriptions,
    st.tuples(st.just("unsubscribe"), clients, filters, st.integers(0, 1)),
    st.tuples(st.just("target"), st.integers(0, 9), qos, st.booleans()),
    st.tuples(st.just("place"), runs, st.sampled_from([0, 5, 2**40]), st.sampled_from(["", "e"])),
    st.tuples(st.just("select"), runs, st.lists(st.integers(0, 9), min_size=1, max_size=5)),
    st.tuples(st.just("rebuild"), runs),
    st.tuples(st.just("split"), runs),
    st.tuples(st.just("taken"), runs, clients),
    st.tuples(st.just("receivers"), runs),
    st.tuples(st.just("fan_out"), runs, parts),
    st.tuples(st.just("fan_out"), runs, parts),
    st.tuples(st.just("answer"), runs, clients, st.booleans()),
    st.tuples(st.just("hold"), clients, packet_ids),
    st.tuples(st.just("free"), clients, packet_ids),
    st.tuples(st.just("release"), clients, packet_ids),
    st.tuples(
        st.just("give"),
        clients,
        st.sampled_from(["give", "give_again", "give_first"]),
        st.integers(1, 2),
        sizes,
        parts,
        st.integers(1, 99),
    ),
    st.tuples(st.just("acknowledge"), clients, st.lists(packet_ids, max_size=4)),
    st.tuples(st.just("pump"), clients),
    st.tuples(st.just("receive"), clients, packet_ids),
    st.tuples(st.just("complete"), clients, packet_ids),
    st.tuples(st.just("send"), clients, sizes, st.booleans()),
    st.tuples(st.just("window"), clients, st.integers(0, 5), st.integers(0, 3000)),
    st.tuples(st.just("state"), clients, st.sampled_from([True, True, False]), st.booleans()),
    st.tuples(st.just("take"), clients),
    st.tuples(st.just("outputs")),
)


def assert_alike(cache_limit: int, done: list[tuple[Any, ...]]) -> None:
    expected, actual = World(REFERENCE, cache_limit), World(COMPILED, cache_limit)
    for step in done:
        assert expected.do(*step) == actual.do(*step), step
        assert expected.look() == actual.look(), step
    for client in range(3):
        assert expected.do("take", client) == actual.do("take", client)


@needs_compiled
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from([0, 1, 3, 100_000]),
    st.lists(subscriptions, max_size=8),
    st.lists(steps, min_size=5, max_size=40),
)
def test_whatever_is_done_comes_to_the_same(
    limit: int, before: list[tuple[Any, ...]], done: list[tuple[Any, ...]]
) -> None:
    assert_alike(limit, [*before, *done])


@needs_compiled
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["feed", "link"]),
    streams(),
    st.lists(st.integers(1, 50) | st.integers(1, 100_000), max_size=20),
    st.booleans(),
)
def test_bytes_may_be_cut_anywhere(kind: str, data: bytes, cuts: list[int], at_once: bool) -> None:
    """Steps follow each piece, or come when all of them were fed."""
    done: list[tuple[Any, ...]] = []
    for size in [*cuts, len(data) or 1]:
        piece, data = data[:size], data[size:]
        done.append(("link", 9, piece) if kind == "link" else ("feed", 0, piece))
        if kind == "feed" and at_once:
            done += [("step", 0)] * 2
    assert_alike(100_000, [*done, *[("step", 0)] * 9])


@needs_compiled
@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 20))
def test_bytes_of_any_kind_come_to_the_same(data: bytes, expected: int) -> None:
    assert_alike(100_000, [("read", 0, data), ("read", 2, data), ("link", expected, data)])
